"""The pipeline: a recipe's stages run one after the other; the models are measured and reported.

    recipe ─ stages ─ prepare → training loop → finish → model folder ─ measure → table, card, MLflow

A stage whose model folder exists and is complete is not run again, so a stopped run resumes where it stopped; within a
stage it resumes from the newest valid checkpoint.
"""

from compress.run.results import RunReport, input_folder, work_folder
from compress.run.run import Run, run_recipe
from compress.run.train import build_training_context, train_prepared

__all__ = [
    "Run",
    "RunReport",
    "input_folder",
    "run_recipe",
    "train_prepared",
    "build_training_context",
    "work_folder",
]
