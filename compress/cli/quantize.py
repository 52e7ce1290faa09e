"""Quantize an encoder, with or without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compress.cli._flags import model_command
from compress.stages.quantize.flags import TABLE

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@model_command(TABLE, "onnx")
def command(options: RunOptions, model: str | None, given: dict[str, Any]) -> None:
    """Quantize the weights, activations and embeddings of MODEL, and write an ONNX file that computes in integers.

    \b
      compress quantize FOLDER --data DATA

    MODEL is a fine-tuned folder, runs:/..., models:/..., or a recipe that makes one. The sensitivity of each module to
    quantization is measured; with --max-drop the most sensitive modules fall back. With --mode qat the quantized model
    is trained with MODEL as its teacher, and a second time on labels only; the best on validation is kept.

    \b
      compress quantize FOLDER --scheme static-percentile --max-drop 0.5 --data DATA
      compress quantize FOLDER --mode qat --scheme static --data DATA
      compress quantize FOLDER --mode qat --bits 2 --data DATA

    The result's model.onnx holds integers and is what is measured (--no-onnx skips it). The folder beside it keeps
    float weights, which are rounded when used: its scores in torch are reported as fake_quantized/...
    """
    from compress.cli._flags import listening, resolve, run

    console, name = listening(options), options.recipe or TABLE.recipe_for(given)
    verb = TABLE.kind if given["mode"] == "ptq" else None
    loaded = resolve(TABLE, name, model, given, options)
    run(loaded, options, console, verb=verb, seeds=given["seeds"])
