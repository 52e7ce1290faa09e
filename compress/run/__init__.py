"""The river: a recipe's stages, one after the other, then measured and told.

    recipe ─ stages ─ prepare → training loop → finish → model folder ─ measure → table, card, MLflow

A stage whose model folder is there and whole is not run again, so a stopped run goes on where it stopped, within a
stage from its newest valid checkpoint.
"""

from compress.run.results import RunReport, input_folder, work_folder
from compress.run.run import Run, run_recipe
from compress.run.train import train_prepared, training_context, training_identity

__all__ = [
    "Run",
    "RunReport",
    "input_folder",
    "run_recipe",
    "train_prepared",
    "training_context",
    "training_identity",
    "work_folder",
]
