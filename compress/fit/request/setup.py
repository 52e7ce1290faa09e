"""What is settled before anything is planned: which runtime will serve, and what no model can be smaller than."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from compress.console import Console
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.tables.random_rows import draw_mixed_rows
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.fit.cost.serving import (
    Bits,
    Serving,
    build_parts,
    candidates,
    content,
    count_stored_bytes,
    mean_over_texts,
    open_runtime,
    quantize_to_bits,
)
from compress.modelfolder.folder import LoadedModel
from compress.onnx.check import compute_reference, file_answer
from compress.predict.predictor import MAX_TOKENS
from evaluation.cost.latency import measure_interleaved
from evaluation.cost.size import MB

CHECKED = 32
"""Rows of random tokens that a runtime must answer as the model does."""


def choose_serving(loaded: LoadedModel, asked: str | None, shape: dict[str, Any], console: Console) -> Serving:
    """The runtime that is asked for; of several the one that answers the whole model in 8 bits soonest, of those that
    answer as it does. Raises UserError where none does."""
    able = candidates(asked, shape["device"])
    servings = [Serving(runtime, **shape) for runtime in able]
    if len(servings) == 1:
        return servings[0]
    made = quantize_to_bits(loaded.model, Bits.uniform(8), servings[0])
    written = content(made)
    batches = list(evaluation_batches(draw_mixed_rows(loaded.config.vocabulary, 64, CHECKED), MAX_TOKENS))
    expected = compute_reference(made, "task", batches, "random tokens")
    right, calls = [], []
    for serving in servings:
        try:
            answer = file_answer(open_runtime(written, serving))
        except UserError as problem:
            console.note(f"{serving.runtime}: skipped: {problem.what}")
            continue
        check = expected.check(answer)
        if check.complaint is not None:
            console.note(f"{serving.runtime}: skipped: {check.complaint}")
            continue
        right.append(serving)
        calls.append(build_parts(made, serving, written))
    if not right:
        raise UserError(
            "no runtime reproduces the model's outputs", where=str(loaded.path), do="choose one with --runtime"
        )
    timed = measure_interleaved(calls, device=right[0].device, repeats=20, seconds=3.0)
    least = [mean_over_texts(s, latency).minimum for s, latency in zip(right, timed, strict=True)]
    for serving, ms in zip(right, least, strict=True):
        console.note(f"{serving.runtime}: {ms:.2f} ms for the full model in 8 bits")
    return right[int(np.argmin(least))]


def compute_least_megabytes(loaded: LoadedModel, asked: str | None, shape: dict[str, Any]) -> float:
    """Of one layer of one head and one neuron over no vocabulary to speak of: no plan is smaller."""
    serving = Serving(candidates(asked, shape["device"])[0], **shape)
    config = loaded.config
    layer = dataclasses.replace(config.layers[0], heads=1, feed_forward=1)
    small = dataclasses.replace(
        config, layers=(layer,), vocabulary=config.pad_id + 8, layer_groups=None, sharing=None, windows=None,
        first_norm=True, rotary_bases=None if config.rotary_bases is None else config.rotary_bases[:1],
    )  # fmt: skip
    made = Model(small, {"task": loaded.heads["task"]}).initialize(0).eval()
    bits = min(serving.table_bits) if serving.writes else serving.bits[0]
    made = quantize_to_bits(made, Bits.uniform(serving.bits[0], bits), serving)
    return (len(content(made)) if serving.writes else count_stored_bytes(made)) / MB
