"""What lies below a changed part is computed once, and the answers are those of the whole model to the bit."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from compress.contracts import Batch, EncoderOutput, Needs
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import Examples
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.infer.layer_walk import without_output
from compress.encoder.infer.prepare import prepare
from compress.encoder.infer.second_moments import compute_second_moments
from compress.encoder.integers.fake_quantized import set_mode
from compress.encoder.modules.model import Model
from compress.fit.cost.serving import FLOAT, Bits, Serving, quantize_to_bits
from compress.fit.loss.reading import Reading
from compress.fit.loss.row_answers import ANSWERS, answer_changed, answers
from compress.predict.predictor import build_fixed_batch

PARTS = ("attention", "feed_forward")
BUILDS: Mapping[str, Mapping[str, Any]] = {
    "bert": {},
    "albert": {"layer_groups": (0, 0, 0), "embedding": 8},
    "modernbert": {
        "norm": "pre", "first_norm": False, "gated": True, "bias": False, "positions": "rotary", "segments": 0,
        "rotary_bases": (1e4, 1e3, 1e4), "windows": (None, 4, None),
    },
}  # fmt: skip


def build_model(build: str) -> Model:
    shape = EncoderConfig.uniform(vocabulary=40, hidden=16, layers=3, heads=2, feed_forward=24, max_positions=16)
    config = dataclasses.replace(shape, **BUILDS[build])
    return Model(config, {"task": HeadConfig("classification", labels=2)}).initialize(1).eval()


def ask(model: Any, batch: Batch) -> torch.Tensor:
    with torch.inference_mode():
        logits = model(batch, ANSWERS).logits
    assert logits is not None
    return logits


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("packed", [False, True])
def test_answers_are_those_of_the_whole_model(build: str, packed: bool) -> None:
    model = build_model(build)
    if packed:
        model = prepare(model).model
    batch = build_fixed_batch(model.config, 3, 9)
    whole, reading = ask(model, batch), Reading(model, batch)
    for _ in range(model.config.depth):
        for part in PARTS:
            logits = reading.answer(part).logits
            assert logits is not None
            assert torch.equal(logits, whole), part
        reading.step()


@pytest.mark.parametrize("build", ["bert", "modernbert"])
def test_a_part_that_changes_is_computed_with_all_that_follows_it(build: str) -> None:
    made = quantize_to_bits(build_model(build), Bits({"encoder.layers.*": 4}, FLOAT, FLOAT), Serving("onnxruntime"))
    batch = build_fixed_batch(made.config, 3, 9)
    set_mode(made, "float")
    reading = Reading(made, batch)
    runs: Counter[str] = Counter()
    for layer in made.encoder.layers:
        for part in PARTS:
            getattr(layer, part).register_forward_hook(lambda *_, part=part: runs.update([part]))
    for number in range(made.config.depth):
        left = made.config.depth - number
        for part in PARTS:
            start = f"encoder.layers.{number}.{part}."
            set_mode(made, lambda name, start=start: "quantized" if name.startswith(start) else "float")
            whole = ask(made, batch)
            assert torch.isfinite(whole).all()
            runs.clear()
            logits = reading.answer(part).logits
            assert logits is not None
            assert torch.equal(logits, whole)
            # What is between the halves is computed when it is first asked for, and known to `step`.
            assert runs == {"attention": left, "feed_forward": left}
            set_mode(made, "float")
        runs.clear()
        reading.step()
        assert runs == {"feed_forward": 1}


def test_without_its_output_matrix_a_part_gives_what_that_reads() -> None:
    model = build_model("bert")
    layer: Any = model.encoder.layers[0]
    x = torch.randn(5, 16)
    with torch.no_grad():
        whole = layer.feed_forward(x)
        with without_output(layer, "feed_forward"):
            inner = layer.feed_forward(x)
        assert inner.shape == (5, 24)
        assert torch.equal(layer.feed_forward.down(inner), whole)


@pytest.mark.parametrize("width", [1, 255, 256, 600])
def test_second_moments_are_sums_over_tokens(width: int) -> None:
    x = torch.randn(50, width, generator=torch.Generator().manual_seed(0))
    wide = torch.cat([x, torch.ones(50, 1)], 1).double()
    found = compute_second_moments(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wide.T @ wide, rtol=1e-4, atol=1e-4)
    assert torch.equal(found, found.T)
    assert int(found[-1, -1]) == 50


def build_examples(texts: list[list[int]]) -> Examples:
    ids = np.concatenate([np.array(text, np.int32) for text in texts])
    rows = len(texts)
    return Examples(
        ids=ids,
        offsets=np.concatenate([[0], np.cumsum([len(text) for text in texts])]),
        segments=np.zeros(len(ids), np.uint8),
        special=np.zeros(len(ids), bool),
        labels=np.full(rows, -100),
        numbers=np.arange(1, rows + 1),
        cut=0,
        fingerprint="",
    )


class Sum:
    """Answers rows with the sum of their tokens, or tokens with themselves. rows: how many it answered."""

    def __init__(self, per_token: bool) -> None:
        self.per_token, self.rows = per_token, 0

    def __call__(self, batch: Batch, needs: Needs) -> EncoderOutput:
        self.rows += batch.rows
        ids = batch.input_ids.float()
        ends = batch.cu_seqlens.tolist()
        sums = torch.stack([ids[a:b].sum() for a, b in itertools.pairwise(ends)])
        return EncoderOutput(last_hidden=ids, logits=(ids if self.per_token else sums)[:, None])


@pytest.mark.parametrize("per_token", [False, True])
def test_rows_of_the_same_tokens_are_not_answered_again(per_token: bool) -> None:
    before = build_examples([[1, 2, 3], [4, 5], [6, 7, 8, 9], [3, 1]])
    known = answers(Sum(per_token), before, "cpu"), before  # type: ignore[arg-type]
    for texts, changed in (
        ([[1, 2, 3], [4, 5], [6, 7, 8, 9], [3, 1]], 0),
        ([[1, 2, 3], [4, 9, 5], [6, 7, 8, 9], [3, 2]], 2),
        ([[2, 2], [9], [6, 7], [3, 2, 1]], 4),
        ([[1, 2, 3], [4, 5]], 2),  # windows of long texts, whose number changed
    ):
        model, after = Sum(per_token), build_examples(texts)
        found = answer_changed(model, after, known, "cpu")  # type: ignore[arg-type]
        assert model.rows == changed
        assert np.array_equal(found, answers(Sum(per_token), after, "cpu"))  # type: ignore[arg-type]


def test_some_rows_alone_are_batched() -> None:
    examples = build_examples([[1, 2, 3], [4, 5], [6, 7, 8, 9], [3, 1]])
    parts = evaluation_batches(examples, 5, np.array([0, 2, 3]))
    assert [batch.row_ids.tolist() for batch in parts] == [[3, 0], [2]]
