"""A model with early exits as one ONNX graph: it answers as the model does, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from early_models import WIRINGS, draw_batch, make_early_model, make_plain_model
from test_onnx_encoder import OPENVINO

from compress.contracts import Batch, Needs
from compress.data.batches.examples import take_rows
from compress.encoder.config.schemes import QuantizationSpec
from compress.encoder.integers.convert import calibrate, plan_quantization, quantize_model
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.onnx.check import compute_reference, model_answer
from compress.onnx.encoder import encode
from compress.onnx.session import FileSession, OnnxSession
from compress.onnx.tracing import trace_model

onnx = pytest.importorskip("onnx")
LOGITS = Needs(logits=True)


def quantized() -> Model:
    plain = make_plain_model()
    made = quantize_model(plain, plan_quantization(QuantizationSpec(scheme="per-token"), plain)).eval()
    calibrate(made, [])
    return made


def answer(model: Model, batch: Batch, kind: type[FileSession] = OnnxSession, **how: int) -> torch.Tensor:
    logits = kind(encode(model, "task", **how).SerializeToString(), threads=1)(batch, LOGITS).logits  # type: ignore[call-arg]
    assert logits is not None
    return logits


@torch.inference_mode()
@pytest.mark.parametrize("runtime", [OnnxSession, OPENVINO])
@pytest.mark.parametrize("wiring", [*WIRINGS, "quantized"])
def test_sure_and_unsure_rows_of_one_batch(wiring: str, runtime: type[FileSession]) -> None:
    model = make_early_model(quantized() if wiring == "quantized" else make_plain_model(wiring))
    batch = draw_batch()
    found = model.answer_early(batch)
    want, places = found.logits, found.places
    assert set(places.tolist()) == {0, 1, 2}
    proto = encode(model, "task")
    onnx.checker.check_model(proto, full_check=True)
    session = runtime(proto.SerializeToString(), threads=1)  # type: ignore[call-arg]
    got = session(batch, LOGITS).logits
    torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)
    for place in range(3):  # alone, and only with rows that leave by the same exit
        rows = np.flatnonzero(places == place)
        torch.testing.assert_close(session(take_rows(batch, rows), LOGITS).logits, want[rows], atol=1e-3, rtol=1e-3)
        one = session(take_rows(batch, rows[:1]), LOGITS).logits
        torch.testing.assert_close(one, want[rows[:1]], atol=1e-3, rtol=1e-3)


@torch.inference_mode()
@pytest.mark.parametrize("opset", [17, 22])
def test_thresholds_of_0_and_1_are_the_exit_and_the_model_itself(opset: int) -> None:
    plain, batch = make_plain_model(), draw_batch(8)
    never = make_early_model(plain, (1.0, 1.0))
    torch.testing.assert_close(answer(never, batch, opset=opset), answer(plain, batch, opset=opset))
    always = make_early_model(plain, (0.0, 0.0))
    torch.testing.assert_close(
        answer(always, batch, opset=opset), always.answer_early(batch).logits, atol=1e-5, rtol=1e-5
    )


def test_every_tensor_is_stored_once() -> None:
    plain = make_plain_model()
    early = make_early_model(plain)
    with pytest.raises(UserError, match="torch's exporter does not write early exits"):
        trace_model(early, "task", notes={})
    more = encode(early, "task").ByteSize() - encode(plain, "task").ByteSize()
    assert 0 < more - 4 * sum(p.numel() for p in early.exits.parameters()) < 8000, "nodes alone"


@torch.inference_mode()
def test_rows_at_a_threshold_are_not_held_against_a_file() -> None:
    plain, batch = make_plain_model(), draw_batch()
    early = make_early_model(plain, (0.0, 0.0))
    confidence = early.answer_early(batch).logits.softmax(-1).amax(-1)
    edge = float(confidence.sort().values[20])  # of one row, which rounding decides about
    model, other = (make_early_model(plain, (edge + shift, 1.0)) for shift in (-1e-5, 1e-5))
    expected = compute_reference(model, "task", [batch], "rows")
    assert 20 < sum(b.rows for b in expected.batches) < batch.rows
    assert expected.check(model_answer(other, "task")).complaint is None
    moved = make_early_model(plain, (edge + 0.1, 1.0))
    assert expected.check(model_answer(moved, "task")).complaint is not None
