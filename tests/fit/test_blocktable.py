"""The table of building blocks gives back the costs that its samples were made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.fit.cost import block_table as blocktable
from compress.fit.cost.blocks import Blocks, LayerCost
from compress.fit.cost.samples import Sample, count_rows, is_last_layer_apart
from compress.fit.cost.serving import Serving

CONFIG = EncoderConfig(vocabulary=50, hidden=64, layers=(LayerShape(4, 16, 96),) * 6, max_positions=32)
HEADS = {"first": HeadConfig("classification", labels=3), "all": HeadConfig("token_classification", labels=3)}
BASE, LAYER, LAST, ROW = 0.7, (0.4, 0.1, 0.01), (0.2, 0.03, 0.001), 100


def made_of(sample: Any, apart: bool) -> float:
    """Milliseconds: a constant and so much of each layer, of each of its heads and neurons."""
    shapes, total = sample.shapes, BASE
    for place, (heads, neurons) in enumerate(shapes):
        fixed, head, neuron = LAST if apart and place == len(shapes) - 1 else LAYER
        total += fixed + head * heads + neuron * neurons
    return total


def sized(sample: Any, vocabulary: int) -> int:
    return 5000 + vocabulary * ROW + sum(1000 + 10 * h + n for h, n in sample.shapes)


def table_of(head: str, patch: pytest.MonkeyPatch) -> tuple[Blocks, bool]:
    heads, serving = {"task": HEADS[head]}, Serving("onnxruntime", 1, 32)
    apart = is_last_layer_apart(heads, serving)

    def built(sample: Any, config: EncoderConfig, *_: object) -> tuple[Callable[[object], object], int]:
        return lambda _: made_of(sample, apart), sized(sample, count_rows(config))

    patch.setattr(blocktable, "_build", built)
    patch.setattr(
        blocktable, "count_bytes", lambda sample, config, heads, serving, vocabulary: sized(sample, vocabulary)
    )
    patch.setattr(blocktable, "_least", lambda calls, *_: ([call() for call in calls], False))
    return blocktable.measure(CONFIG, heads, serving), apart


def parts(cost: LayerCost, heads: int, neurons: int) -> np.ndarray:
    """(2,) milliseconds and megabytes of a layer in 8 bits."""
    curves: Mapping[str, int] = {"attention": heads, "feed_forward": neurons}
    return np.sum([np.concatenate(getattr(cost, k)[8].at(np.array([n]))) for k, n in curves.items()], axis=0)


@pytest.mark.parametrize("head", HEADS)
def test_sums_are_what_models_of_any_shape_take(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table, apart = table_of(head, monkeypatch)
    assert apart is (head == "first")
    assert (table.last != table.layer) is apart
    assert table.checks == pytest.approx((1.0,) * 5)
    for depth, heads, neurons in ((6, 4, 96), (3, 2, 50), (1, 1, 1), (5, 3, 17)):
        wanted = Sample(depth, heads, neurons, 8, 8)
        ms, mb = (depth - 1) * parts(table.layer, heads, neurons) + parts(table.last, heads, neurons)
        assert table.ms + ms == pytest.approx(made_of(wanted, apart))
        rows = table.embeddings[8, 0].mb + 50 * table.embeddings[8, 0].row_mb
        assert table.mb + mb + rows == pytest.approx(sized(wanted, 50) / 1e6)
    assert Blocks.from_json(table.as_json(), "here") == table


def test_the_last_layer_is_any_where_torch_serves() -> None:
    assert not is_last_layer_apart({"task": HEADS["first"]}, Serving("torch-int8"))


@pytest.mark.parametrize("harm", [b"", b"{", b"[1]", b'{"blocks": 7}', b"\xff\x00\x17", None])
def test_a_damaged_table_in_the_cache_is_measured_again(
    harm: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path))
    heads, serving, said = {"task": HEADS["all"]}, Serving("onnxruntime", 1, 32), Notes()
    measured, _ = table_of("all", monkeypatch)
    monkeypatch.setattr(blocktable, "measure", lambda *_: measured)
    _, path = blocktable.table(CONFIG, heads, serving, said)  # pyright: ignore[reportArgumentType]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if harm is None else harm)
    said.lines.clear()
    again, _ = blocktable.table(CONFIG, heads, serving, said)  # pyright: ignore[reportArgumentType]
    assert again == measured
    assert said.lines[0] == f"the cost table in the cache is damaged and is measured again: {path}"
    assert path.read_bytes() == whole
    said.lines.clear()
    blocktable.table(CONFIG, heads, serving, said)  # pyright: ignore[reportArgumentType]
    assert said.lines == []


class Notes:
    """Of a console: what it says, and no progress."""

    slow_progress = None

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)
