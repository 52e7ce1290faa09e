"""Drop the least attended tokens between the layers of an encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compress.cli._flags import model_command, run_table
from compress.stages.drop_tokens.flags import TABLE

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@model_command(TABLE)
def command(options: RunOptions, model: str | None, given: dict[str, Any]) -> None:
    """Make MODEL faster on long texts: between its layers, drop the tokens that receive the least attention.

    \b
      compress drop-tokens FOLDER --data DATA --max-drop 0.5

    MODEL is a folder, runs:/…, models:/…, or a recipe that makes one. After the attention of some layers, only a share
    of the text's tokens is kept, always with the first. The shares are chosen on validation rows, by the measured
    loss and the measured time of each layer: the fastest whose loss is proven to be within --max-drop, with
    --confidence. This holds only if the same rows did not choose MODEL. Exit code 3: none is proven, or none saves
    time; no model is made. Recovery training then distils MODEL into the result. The model is measured before, after
    dropping tokens and after recovery training.

    \b
      compress drop-tokens FOLDER --data DATA --max-drop 0.5 --no-recover
      compress drop-tokens FOLDER --data DATA --keep-tokens 100,75,50,50,50,50

    For classification, regression and reranking with a head on the first token; --max-drop needs one label per text.
    Token classification, question answering, embeddings and heads on the mean of all tokens need all tokens, and models
    with rotary or relative positions or local attention are not supported. The result can be quantized and exported to
    ONNX. Stock Hugging Face classes cannot load its folder. The ONNX file runs in onnxruntime and OpenVINO.
    Experimental: short texts gain little.
    """
    run_table(TABLE, model, given, options)
