"""Many rows through an exported file, in length buckets: the answers are those that each row gets alone."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import test_onnx_encoder as floats
from test_onnx_integers import quantized

from compress.data.batches.evaluation_batches import bucketed_batches
from compress.data.batches.examples import Examples, collate
from compress.encoder.config.encoder import EncoderConfig, LayerShape
from compress.encoder.modules.model import Model
from compress.onnx.encoder import encode
from compress.onnx.session import OnnxSession
from compress.predict.file_batches import choose_file_budget, count_call_tokens
from compress.predict.predictor import Predictor

ROWS = 60
KINDS = {
    "classes": ("classification", 5),
    "tags": ("tags", 7),
    "scores": ("regression", 1),
    "spans": ("questions", 2),
    "vectors": ("vectors-mean", 32),
}


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_one_row_alone(kind: str) -> None:
    heads, width = KINDS[kind]
    predictor, examples = predictor_of(floats.model_of("bert", heads)), rows()
    done: list[int] = []
    found = predictor.logits(examples, max_tokens=64, told=done.append)
    assert found.shape == (len(examples.ids) if kind in ("tags", "spans") else ROWS, width)
    assert (done[-1], done) == (ROWS, sorted(done))
    np.testing.assert_allclose(found, alone(predictor, examples), atol=1e-5)


def test_integers_do_not_depend_on_the_other_rows() -> None:
    """But for a number between two codes, which sums of floats in another order may round otherwise."""
    predictor, examples = predictor_of(quantized("bert", "classification")), rows()
    apart = np.abs(predictor.logits(examples, max_tokens=64) - alone(predictor, examples)).max(-1)
    assert np.mean(apart < 1e-5) > 0.8


def test_a_file_is_given_rows_of_one_length_and_torch_any() -> None:
    predictor, examples = predictor_of(floats.model_of("bert", "classification")), rows()
    padding = [batch.rows * batch.max_length - batch.tokens for batch in bucketed_batches(examples, 64, 1)]
    assert sum(padding) <= 10
    assert len(predictor.batches(examples)) == 1, "a tiny model: a call costs more than the padding of 60 rows"
    predictor.runtime = "torch"
    assert len(predictor.batches(examples, 64)) == pytest.approx(len(examples.ids) / 64, abs=6)


@pytest.mark.parametrize(
    ("hidden", "heads", "feed_forward", "budget", "call"), [(384, 12, 1536, 1024, 20), (768, 12, 3072, 512, 5)]
)
def test_larger_layers_get_smaller_batches(hidden: int, heads: int, feed_forward: int, budget: int, call: int) -> None:
    layers = (LayerShape(heads, hidden // heads, feed_forward),) * 6
    config = EncoderConfig(vocabulary=10, hidden=hidden, layers=layers, max_positions=8)
    assert (choose_file_budget(config, "onnxruntime"), count_call_tokens(config)) == (budget, call)
    assert choose_file_budget(config, "openvino") == 2 * budget


def predictor_of(model: Model) -> Predictor:
    """One without a folder."""
    made = Predictor.__new__(Predictor)
    proto = encode(model, next(iter(model.heads)))
    content = proto.SerializeToString()
    holders = sys.getrefcount(content)
    session = OnnxSession(content, threads=1)
    assert sys.getrefcount(content) == holders, "a session that holds its file's content takes twice the memory"
    made.__dict__.update(runtime="onnxruntime", device="cpu", config=model.config, _order=None, run=session)
    return made


def rows() -> Examples:
    """ROWS rows of 3 to 19 random tokens."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 20, ROWS)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    return Examples(
        ids=rng.integers(1, 61, total).astype(np.int32),
        offsets=offsets,
        segments=np.zeros(total, np.uint8),
        special=np.zeros(total, dtype=bool),
        labels=np.zeros(ROWS, np.int64),
        numbers=np.arange(1, ROWS + 1),
        cut=0,
        fingerprint="",
    )


def alone(predictor: Predictor, examples: Examples) -> np.ndarray:
    return np.concatenate([predictor(collate(examples, np.array([i]))).numpy() for i in range(len(examples))])
