"""A float model as torch.export sees it, translated by torch's own ONNX exporter: a second route beside our writer.

For people whose tools expect that exporter's graph, and as a second opinion on ours: both are held to the same check.
It reads no rounded numbers, and names of its own stand inside; inputs and outputs are called as our writer calls them.
"""

from __future__ import annotations

from importlib import util
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from compress.console import silence_output
from compress.contracts import EncoderOutput
from compress.encoder.modules.answers import answer_of, needs_of
from compress.encoder.modules.model import Model
from compress.errors import ExitCode, UserError
from compress.onnx.axes import BATCH, EXACT, IDS, INT8_PRODUCTS, LENGTH, MASK, SEGMENTS
from compress.onnx.session import SPANS

if TYPE_CHECKING:
    from onnx import ModelProto

OLDEST, NEWEST = 18, 22
WHERE = "--writer torch"


def trace_model(model: Model, head: str | None, *, opset: int = OLDEST, notes: dict[str, str]) -> ModelProto:
    """What `encoder.encode` gives, by `torch.onnx.export(dynamo=True)`.

    Raises UserError without the package onnxscript, for an opset that torch does not write, for a quantized model, and
    for a model that torch cannot trace.
    """
    if util.find_spec("onnxscript") is None:
        raise UserError(
            "onnxscript is not installed",
            where=WHERE,
            do="pip install 'compress-bert[onnx]'",
            code=ExitCode.ENVIRONMENT,
        )
    from onnx.helper import find_min_ir_version_for

    if model.config.quantization is not None:
        raise UserError(
            "torch's exporter cannot write quantized weights as integers",
            where=WHERE,
            why="the model is quantized",
            do="remove --writer: the default writer writes integers",
        )
    if not OLDEST <= opset <= NEWEST:
        raise UserError(f"torch supports opset {OLDEST} to {NEWEST}", where=f"--opset {opset}", do="use one of these")
    if head is not None and model.head_configs[head].kind == "embedding":
        raise UserError(
            "torch's exporter does not write embeddings", where=WHERE,
            do="remove --writer, or add --head none for the states of the tokens",
        )  # fmt: skip
    if head == "task" and model.config.kept_tokens:
        raise UserError("torch's exporter does not write token dropping", where=WHERE, do="remove --writer")
    if head == "task" and model.exits:
        raise UserError("torch's exporter does not write early exits", where=WHERE, do="remove --writer")
    module = _Padded(model, head).eval()
    count = 3 if model.config.segments > 1 else 2
    ids = torch.ones(3, min(7, model.config.max_positions), dtype=torch.int64)
    sizes = {0: torch.export.Dim(BATCH, min=1, max=2**16)}
    sizes[1] = torch.export.Dim(LENGTH, min=2, max=model.config.max_positions)
    try:
        with silence_output(), torch.no_grad():  # it speaks of operators for other kinds of models
            program: Any = torch.onnx.export(
                module,
                (ids, torch.ones_like(ids), torch.zeros_like(ids))[:count],
                dynamo=True,
                opset_version=opset,
                input_names=[IDS, MASK, SEGMENTS][:count],
                output_names=module.names,
                dynamic_shapes=(sizes,) * count,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise UserError(
            "torch cannot trace this model",
            where=WHERE,
            why=str(error).strip().partition("\n")[0][:160],
            do="remove --writer: the default writer supports every model of compress",
        ) from error
    made = program.model_proto
    made.ir_version = find_min_ir_version_for(list(made.opset_import), ignore_unknown=True)
    for key, value in {INT8_PRODUCTS: EXACT, **notes}.items():  # it has none
        made.metadata_props.add(key=key, value=value)
    return made


class _Padded(nn.Module):
    """ids, mask, segments (B, L) → what the file gives, by position. names: of that."""

    def __init__(self, model: Model, head: str | None) -> None:
        super().__init__()
        self.model, self.head = model, head
        self.spans = head is not None and model.head_configs[head].kind == "question_answering"
        bare = ["last_hidden_state", *(["pooler_output"] if model.config.pooler else [])]
        self.names = bare if head is None else list(SPANS) if self.spans else ["logits"]
        self.needs = needs_of([], pooled=model.config.pooler) if head is None else needs_of([head])

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor | None = None) -> tuple[Tensor, ...]:
        found: EncoderOutput = self.model.forward_padded(ids, mask, segments, self.needs)
        answer = answer_of(found, self.head)
        if self.head is None and found.pooled is not None:
            return answer, found.pooled
        return tuple(answer.unbind(-1)) if self.spans else (answer,)
