"""Costs over the lengths of texts: a weighted sum of tables that are measured at a few lengths."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compress.contracts import TextLengths
from compress.encoder.config.encoder import EncoderConfig
from compress.fit.cost import block_table, text_costs
from compress.fit.cost.blocks import Blocks, Curve, LayerCost, TableCost, add_weighted
from compress.fit.cost.cost_model import was_fixed_length
from compress.fit.cost.serving import Serving
from compress.fit.cost.text_costs import choose_lengths, name_table, weigh_lengths

CONFIG = EncoderConfig.uniform(vocabulary=50, hidden=16, layers=2, heads=2, feed_forward=8, max_positions=100)


def texts_of(*tokens: float, sequences: tuple[int, ...] | None = None, batch: int = 1) -> Any:
    many = np.array(sequences or (batch,) * len(tokens))
    return SimpleNamespace(
        lengths=np.array(tokens), sequences=many, sample=SimpleNamespace(shape=SimpleNamespace(batch=batch))
    )


def blocks(length: int, busy: bool = False) -> Blocks:
    """Of which everything grows evenly with the length."""
    curve = lambda scale: Curve((1, 2), (scale * length, 2.0 * scale * length), (0.1, 0.2))  # noqa: E731
    layer = LayerCost({8: curve(1.0)}, {8: curve(2.0)})
    last = LayerCost({8: curve(0.5)}, {8: curve(0.25)})
    return Blocks(layer, last, {(8, 0): TableCost(0.1 * length, 1.0, 0.01)}, 3.0 * length, 2.0, busy, (1.0, 1.1))


def test_a_fit_that_was_begun_goes_on_as_it_was_timed(tmp_path: Path) -> None:
    assert not was_fixed_length(tmp_path), "it was not begun"
    for shape, fixed in (
        (None, True), ("batch 1 x 128 tokens", True), (str(TextLengths(1, "x/test", "0" * 8, 9)), False)
    ):  # fmt: skip
        content = {"runtime": "torch"} | ({} if shape is None else {"latency_shape": shape})
        (tmp_path / "costs.json").write_text(json.dumps(content))
        assert was_fixed_length(tmp_path) is fixed, shape


@pytest.mark.parametrize(
    ("least", "most", "positions", "lengths"),
    [
        (4, 50, 512, [8, 16, 32, 64]),
        (17, 33, 512, [16, 32, 64]),
        (16, 16, 512, [16]),
        (3, 7, 512, [8]),
        (300, 512, 512, [256, 512]),
        (90, 100, 100, [64, 100]),
        (4, 4, 6, [6]),
    ],
)
def test_lengths_that_are_measured_surround_those_of_the_texts(
    least: float, most: float, positions: int, lengths: list[int]
) -> None:
    assert choose_lengths(least, most, positions) == lengths


def test_weights_are_those_of_interpolation() -> None:
    assert weigh_lengths(texts_of(12, 16, 20), 512) == pytest.approx({8: 1 / 6, 16: 3 / 4, 32: 1 / 12})
    assert sum(weigh_lengths(texts_of(5, 9, 77, 130), 512).values()) == pytest.approx(1)
    assert weigh_lengths(texts_of(4, 6), 512) == {8: 1.0}, "short texts count as the shortest"
    windows = weigh_lengths(texts_of(64, 64, sequences=(1, 3)), 512)
    assert windows == pytest.approx({64: 2.0}), "a text in three windows costs three sequences"
    assert sum(weigh_lengths(texts_of(9, 20, batch=8), 512).values()) == pytest.approx(1), "a batch is one call"


def test_the_mean_cost_is_the_weighted_sum_of_tables() -> None:
    lengths = (10.0, 20.0, 28.0)
    parts = [(weight, blocks(length)) for length, weight in weigh_lengths(texts_of(*lengths), 512).items()]
    mean, wanted = add_weighted(parts), blocks(1)
    for found, one in (
        (mean.layer.attention[8], wanted.layer.attention[8]),
        (mean.layer.feed_forward[8], wanted.layer.feed_forward[8]),
        (mean.last.attention[8], wanted.last.attention[8]),
    ):  # fmt: skip
        assert found.ms == pytest.approx(np.mean(lengths) * np.array(one.ms))
        assert found.mb == one.mb
    assert mean.ms == pytest.approx(3 * np.mean(lengths))
    assert mean.embeddings[8, 0].ms == pytest.approx(0.1 * np.mean(lengths))
    assert (mean.mb, mean.busy, mean.checks) == (2.0, False, pytest.approx((1.0, 1.1)))
    assert add_weighted([(0.5, blocks(8)), (0.5, blocks(16, busy=True))]).busy
    assert Blocks.from_json(mean.as_json(), "here") == mean
    assert add_weighted([(1.0, blocks(8))]) == blocks(8)


def test_a_table_of_texts_is_made_of_tables_that_other_data_share(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def table(config: Any, heads: Any, serving: Serving, console: Any, built: dict[Any, Any]) -> Any:
        measured.append(serving.length)
        assert serving.texts is None
        built[serving.length] = None
        assert len(built) == len(measured), "small models are made once for all lengths"
        return blocks(serving.length), None

    monkeypatch.setattr(block_table, "table", table)
    console: Any = None
    serving = Serving("onnxruntime", texts=texts_of(12, 20))
    found, name = text_costs.table(CONFIG, {}, serving, console)
    assert measured == [8, 16, 32]
    assert found.ms == pytest.approx(3 * 16)
    assert name == name_table(CONFIG, {}, serving)
    other = dataclasses.replace(serving, texts=texts_of(12, 21))
    fixed = Serving("onnxruntime", length=16)
    assert len({name, name_table(CONFIG, {}, other), name_table(CONFIG, {}, fixed)}) == 3
    assert name_table(CONFIG, {}, fixed) == block_table.place(CONFIG, {}, fixed).name, "as fits of version 0.1 have it"
