"""A training step never waits for the device, and launches no more kernels than the table says.

The table is training_steps.json; it may only fall. `python tests/simcuda/test_training_steps.py` writes it anew.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from typing import Any

from processes import FOLDER, run_script

TABLE = FOLDER / "training_steps.json"
BASE = "0x1@12+6"
"""The layers of BERT-base and its usual student."""
COMPARES_LAYERS = "task,DistilBERT,TinyBERT,attention KL,minilm,minilmv2,pkd,similarity,cka,vector similarity"
MOST_KERNELS = 1200
EVERY = ("all@0.1x2", "task,DistilBERT,TinyBERT,minilm,vectors@0x1", f"{COMPARES_LAYERS}@{BASE}")
"""Every objective in two micro-batches with dropout; one of each way to read a teacher in one without it; those that
compare layers at the size of a real model."""
SOME = ("task,TinyBERT,decoupled_kd@0.1x2",)


def _check(found: dict[str, Any]) -> None:
    table = json.loads(TABLE.read_text())
    for name, figures in found.items():
        assert figures["waits"] == 0, (name, figures["where"])
        assert figures["any_order"] == [], (name, "--deterministic would reject them")
        assert figures["log_waits"] == 1, (name, "a step that writes a line into the log reads its figures in one copy")
        assert figures["told_waits"] == 0, name
        assert figures["mfu_pct"] > 0, (name, "the operations of teacher and student are known")
        assert figures["copies"] <= table["steps"][name]["copies"], name
        if table["torch"] == importlib.metadata.version("torch"):  # another one divides operators otherwise
            assert figures["kernels"] <= table["steps"][name]["kernels"], name


def test_no_step_waits() -> None:
    """The quick run tries some objectives; one process takes seconds to load the device."""
    if os.environ.get("COMPRESS_TESTS") == "all":
        found = run_script("training_steps.py", *EVERY)
        assert found.keys() == json.loads(TABLE.read_text())["steps"].keys()
    else:
        found = run_script("training_steps.py", *SOME)
        assert len(found) == 3
    _check(found)


def test_no_loss_takes_many_times_the_kernels_of_the_task_loss() -> None:
    """A loss that is computed sequence by sequence, or head by head, does."""
    steps = json.loads(TABLE.read_text())["steps"]
    kernels = {name: figures["kernels"] for name, figures in steps.items() if name.endswith(BASE)}
    assert len(kernels) == len(COMPARES_LAYERS.split(","))
    assert max(kernels.values()) < MOST_KERNELS, kernels


def _write() -> None:
    found = run_script("training_steps.py", *EVERY)
    steps = {name: {kind: x[kind] for kind in ("kernels", "copies")} for name, x in found.items()}
    document = {"torch": importlib.metadata.version("torch"), "steps": steps}
    TABLE.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    _write()
