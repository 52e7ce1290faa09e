"""What the loop is given of a stage, and what must be the same for a checkpoint to be continued."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from compress.recipe import load_recipe
from compress.run.train import build_training_context, build_training_identity
from compress.training.context import NullLog

PREPARED: Any = SimpleNamespace(validate=None, select=("accuracy", "max"), watched={}, identity={"teacher": "abc"})


def context(**more: Any) -> Any:
    return SimpleNamespace(folder=Path("work"), device="cpu", precision="fp32", seed=3, **more)


def spec(*changes: str) -> Any:
    from compress.recipe import parse_override

    return load_recipe("smoke", [parse_override(text) for text in changes]).stages[1]


def test_the_context_is_the_stage_s_and_may_be_overruled() -> None:
    beside: dict[str, Any] = {"log": NullLog(), "progress": None, "stop": None}
    told = build_training_context(PREPARED, context(), **beside)
    assert (told.folder, told.device, told.precision, told.seed) == (Path("work"), torch.device("cpu"), "fp32", 3)
    assert told.select == ("accuracy", "max")
    assert told.threads is None
    other = build_training_context(PREPARED, context(), **beside, select=None, threads="auto")
    assert (other.select, other.threads, other.seed) == (None, "auto", 3)


def test_a_checkpoint_is_of_one_stage_and_one_seed() -> None:
    same = build_training_identity(spec(), context(), PREPARED)
    assert same == build_training_identity(spec(), context(), PREPARED)
    assert (same["seed"], same["teacher"]) == ("3", "abc")
    changed = build_training_identity(spec("stages.1.training.learning_rate=0.001"), context(), PREPARED)
    assert changed["stage"] != same["stage"]


def test_the_identity_of_earlier_versions_stays_valid() -> None:
    """Keys that came later and are not set are not part of it."""
    dumped = spec().model_dump(mode="json")["training"]
    assert not {"threads", "min_steps", "max_steps"} & {*dumped}
