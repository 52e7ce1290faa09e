"""The stage of `compress prune-width` on a toy, in this process: every target, and what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_pairs_of_verbs import Workshop

from compress.encoder.config.encoder import EncoderConfig
from compress.errors import UserError
from compress.modelfolder.folder import inspect, load_model
from compress.stages.prune_width.costs import Counts, operations, parameters


@pytest.fixture(scope="module")
def workshop(
    tmp_path_factory: pytest.TempPathFactory, toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str]
) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("widths"), toy_tokenizer_files, len(toy_vocabulary))


@pytest.fixture
def cut(workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The config of the toy (4 layers of 2 heads of 16, 32 neurons, hidden 32) after the stage."""
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path))

    def run(**asked: Any) -> EncoderConfig:
        return inspect(workshop.run("prune_width", workshop.teacher, {"rows": 16, **asked})).config

    return run


def test_counts_shares_and_budgets(cut: Any, workshop: Workshop) -> None:
    made = cut(keep_heads=1, intermediate_size=[6, 5, 4, 3])
    assert [(s.heads, s.feed_forward) for s in made.layers] == [(1, 6), (1, 5), (1, 4), (1, 3)]
    heads = {"task": inspect(workshop.teacher).heads["task"]}  # what the stage carries on
    whole = inspect(workshop.teacher).config
    for uneven in (False, True):
        for kind in ("fisher", "random"):
            row = {"importance": {"kind": kind}, "uneven": uneven}
            costs = parameters(whole, heads)
            assert costs.of(Counts.of(cut(target_params=0.8, **row))) <= 0.8 * costs.maximum
            made = cut(target_flops=0.5, **row)
            costs = operations(whole, heads, 32)
            assert 0.3 * costs.maximum < costs.of(Counts.of(made)) <= 0.5 * costs.maximum
    total = sum(s.feed_forward for s in cut(intermediate_size=10, uneven=True, importance={"kind": "random"}).layers)
    assert total == 40


def test_part_of_the_way(cut: Any) -> None:
    assert {s.feed_forward for s in cut(intermediate_size=8, schedule=0.5).layers} == {20}


@pytest.mark.parametrize("stream", ["directions", "channels"])
def test_hidden_states_and_heads_become_narrower(cut: Any, workshop: Workshop, stream: str) -> None:
    made = cut(hidden=8, stream=stream, importance={"kind": "activation"})
    assert (made.hidden, {(s.heads, s.head_width) for s in made.layers}) == (8, {(2, 4)}), "a stock shape"
    made = cut(hidden=12, head_width=4, intermediate_size=12, stream=stream, importance={"kind": "fisher"})
    assert (made.hidden, {(s.heads, s.head_width, s.feed_forward) for s in made.layers}) == (12, {(2, 4, 12)})


def test_a_latency_is_proved_by_timing(cut: Any) -> None:
    with pytest.raises(
        UserError, match=r"target_latency: 1e-06 ms cannot be reached by width pruning here: the fastest"
    ):
        cut(target_latency=1e-6, importance={"kind": "random"})
    with pytest.raises(UserError, match=r"target_latency: 1e\+06 ms is not below the model's latency: the model takes"):
        cut(target_latency=1e6, importance={"kind": "random"})


def test_what_layers_share_stays_shared(workshop: Workshop) -> None:
    folder = workshop.run("prune_width", workshop.first("share"), {"ratio": 0.5, "rows": 16})
    model = load_model(folder).model
    assert model.config.sharing is not None
    assert sum(p.numel() for p in model.encoder.parameters()) == model.config.count_parameters()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"keep_heads": 3}, "keep_heads, layer 0: cannot keep 3 of 2 heads; use 1..2"),
        ({"keep_heads": 0}, "keep_heads, layer 0: all 2 heads would be removed; use 1..2; compress prune-layers drops"),
        (
            {"intermediate_size": [1, 2]},
            "intermediate_size: 2 numbers for 4 layers; give one for all layers, or one per layer",
        ),
        ({"keep_heads": 2}, "keep_heads: all heads would be kept; keep fewer"),
        ({"hidden": 9}, "hidden: hidden 9 is not divisible by 2 heads: a stock shape has heads of hidden / heads"),
        ({"hidden": 32}, "hidden: hidden 32 is not smaller than the model's: the model has 32; use less than 32"),
        ({"head_width": 17}, "layer 0: head_width 17 exceeds the model's: its heads are 16 wide"),
        ({"target_params": 10.0}, "target_params: 10 parameters cannot be reached by width pruning: with one head and"),
        ({"target_flops": 1e12}, "target_flops: 1000G operations is not below the model's cost: the model has"),
        (
            {"ratio": 0.5, "importance": {"kind": "taylor", "on": "teacher"}},
            "the model is its own teacher: at the start its outputs equal the teacher's",
        ),
    ],
)
def test_what_cannot_be(cut: Any, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        cut(**asked)
    assert message in refused.value.line()
