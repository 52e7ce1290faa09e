"""A model that drops tokens as an ONNX graph: TopK and a gather, row by row as the model does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from early_models import draw_batch, make_plain_model
from test_onnx_encoder import OPENVINO
from test_onnx_exits import quantized

from compress.contracts import Needs
from compress.data.batches.examples import take_rows
from compress.encoder.reshape.dropped_tokens import drop_tokens
from compress.errors import UserError
from compress.onnx.check import compute_reference, file_answer, model_answer
from compress.onnx.encoder import encode
from compress.onnx.session import FileSession, OnnxSession
from compress.onnx.tracing import trace_model

onnx = pytest.importorskip("onnx")
LOGITS = Needs(logits=True)
KEPT = (70, 30, 30)
ONCE = ((50, 50, 50), (100, 50, 50))
"""Plans with a single step: nothing but its counts reads the lengths, and a runtime may simplify that."""


@torch.inference_mode()
@pytest.mark.parametrize("runtime", [OnnxSession, OPENVINO])
@pytest.mark.parametrize(
    ("integers", "opset", "kept"),
    [(False, 17, KEPT), (False, 22, KEPT), (True, 17, KEPT), *((False, 17, kept) for kept in ONCE)],
)
def test_rows_of_one_batch_and_rows_alone(
    runtime: type[FileSession], integers: bool, opset: int, kept: tuple[int, ...]
) -> None:
    model, batch = drop_tokens(quantized() if integers else make_plain_model(), kept), draw_batch()
    proto = encode(model, "task", opset=opset)
    onnx.checker.check_model(proto, full_check=True)
    session = runtime(proto.SerializeToString(), threads=1)  # type: ignore[call-arg]
    expected = compute_reference(model, "task", [batch], "rows")
    assert expected.check(file_answer(session)).complaint is None
    want = model(batch, LOGITS).logits
    assert want is not None
    for rows in ([3], [0, 7, 11]):
        got = session(take_rows(batch, np.array(rows)), LOGITS).logits
        torch.testing.assert_close(got, want[rows], atol=1e-3, rtol=1e-3)


@torch.inference_mode()
def test_what_rounding_decides_is_not_held_against_a_file() -> None:
    model, batch = drop_tokens(make_plain_model(), KEPT), draw_batch()
    margins = model.keep_tokens(batch).find_margins()
    assert (margins > 0).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("compress.onnx.check.CLOSE_SHARE", float(margins.median()))
        assert sum(b.rows for b in compute_reference(model, "task", [batch], "rows").batches) < batch.rows
    other = drop_tokens(make_plain_model(), (70, 40, 40))
    assert compute_reference(model, "task", [batch], "rows").check(model_answer(other, "task")).complaint is not None


def test_other_heads_and_other_writers() -> None:
    model = drop_tokens(make_plain_model(), KEPT)
    with pytest.raises(UserError, match="torch's exporter does not write token dropping"):
        trace_model(model, "task", notes={})
    assert not any(node.op_type == "TopK" for node in encode(model, None).graph.node), "states are those of all tokens"
