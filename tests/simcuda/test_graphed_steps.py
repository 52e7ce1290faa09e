"""Training steps that are replayed as CUDA graphs, and those that are not (see also checks.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from processes import run_script
from torch import nn

from compress.contracts import TrainingPlan
from compress.training.graphed import find_obstacle

REPLAYED = ("DistilBERT,mixed,same,1", "TinyBERT,mixed,same,1", "vectors,equal,same,1", "decoupled_kd,equal,same,1")
LAUNCHED = ("TinyBERT,mixed,varying,1", "task,equal,same,2", "two tokenizers,equal,same,1")
MIXED = tuple(f"{case},log-normal,varying,1" for case in ("tags", "DistilBERT", "TinyBERT"))
FREE, TIMED = "tags,log-normal,varying,1,auto", "tags,log-normal,varying,1,timed"
NEVER_UNASKED = ("TinyBERT,equal,same,1,auto", "contrastive,equal,same,1,auto")
STEPS, WARM_UPS = 9, 3


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """The figures of all trainings. One process makes them: it takes seconds to load the device."""
    return run_script("graphed_steps.py", *REPLAYED, *LAUNCHED, *MIXED, FREE, TIMED, *NEVER_UNASKED)


@pytest.mark.thorough
def test_replayed_steps_equal_launched_ones(trained: dict[str, Any]) -> None:
    found = {name: trained[name] for name in (*REPLAYED, *LAUNCHED)}
    for name, figures in found.items():
        assert figures["differs"] == 0, (name, figures)
        assert figures["waits"] == 0, (name, figures)
    assert {name: figures["replays"] for name, figures in found.items()} == {
        **dict.fromkeys(REPLAYED, STEPS - WARM_UPS),
        **dict.fromkeys(LAUNCHED, 0),
    }
    for name in LAUNCHED:
        (line,) = found[name]["warnings"]
        assert line.startswith("training without CUDA graphs from here on: "), name


@pytest.mark.thorough
def test_steps_of_mixed_lengths_are_replayed(trained: dict[str, Any]) -> None:
    """Padded, they equal launched ones bit for bit, dropout included."""
    for name in MIXED:
        figures = trained[name]
        assert figures["differs"] == 0, (name, figures)
        assert figures["waits"] == 0, (name, figures)
        assert figures["replays"] == figures["repeated"] > 0, (name, figures)
        assert figures["warnings"] == []
        assert figures["said"][-1].endswith("replayed as CUDA graphs; 8% of the tokens were padding")


@pytest.mark.thorough
def test_small_steps_are_replayed_unasked_where_padding_is_free(trained: dict[str, Any]) -> None:
    free, timed = trained[FREE], trained[TIMED]
    assert timed["differs"] == 0, "what was timed before is forgotten"
    assert timed["replays"] > timed["repeated"], "for a time limit, steps are timed that are replayed"
    assert free["replays"] == free["repeated"] > 0
    (line,) = free["said"]
    assert line.endswith("replayed as CUDA graphs; 8% of the tokens were padding")
    for name in NEVER_UNASKED:
        figures = trained[name]
        assert (figures["replays"], figures["said"], figures["warnings"]) == (0, [], []), name


def test_what_cannot_be_a_graph_is_reported() -> None:
    gpu, module = torch.device("cuda", 0), nn.Linear(1, 1)
    assert find_obstacle(module, torch.device("cpu"), False) == "there are no CUDA graphs on a CPU"
    assert find_obstacle(module, gpu, True) == "CUDA graphs do not support several processes"
    assert find_obstacle(module, gpu, False) == "a loss of this training changes from step to step"


def test_old_recipes_keep_their_hash() -> None:
    assert TrainingPlan().cuda_graphs == "auto"
    assert "cuda_graphs" not in TrainingPlan().model_dump()
    assert TrainingPlan(cuda_graphs=True).model_dump()["cuda_graphs"] is True
    assert TrainingPlan(cuda_graphs=False).model_dump()["cuda_graphs"] is False
