"""A step of models as wide as BERT-base reads nothing of the device, whatever the objective.

Their layers are few: `test_training_steps.py` makes steps of 12 and 6 layers with what compares layers.
There is no list of exceptions. A new objective is a case by itself (`step_cases.CASES`).
"""

from __future__ import annotations

import os

from processes import run_script

SOME = ("task", "two tokenizers")


def test_every_objective_runs_on_fake_tensors() -> None:
    """The quick run tries some, with fewer layers."""
    arguments = ("4+2",) if os.environ.get("COMPRESS_TESTS") == "all" else ("2+1", *SOME)
    found = run_script("fake_steps.py", *arguments)
    for name in ("item", "nonzero", "mask"):
        assert found.pop(name), f"{name} is not noticed"
    assert len(found) >= 4
    assert {name: why for name, why in found.items() if why} == {}
