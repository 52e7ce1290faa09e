"""What a text costs that leaves behind a layer, in the runtime that serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from compress.cascade.candidates import sample_validation_texts
from compress.cascade.request import CascadeRequest
from compress.contracts import Batch, Needs, Teacher
from compress.encoder.config.exits import ExitConfig
from compress.encoder.modules.model import Model
from compress.encoder.reshape.early_exits import add_exits
from compress.onnx.runtimes import IN_TORCH
from compress.predict.predictor import Predictor, prepare_in_torch
from compress.predict.real_texts import TextCalls, TextLatency
from evaluation.cost.latency import measure_interleaved

REPEATS, SECONDS = 20, 3.0
ALL, NONE = 0.0, 1.0
"""Thresholds that every row and no row is above."""


@dataclass(frozen=True)
class ExitCosts:
    """Milliseconds of a text. whole: of the model without exits.  exits: layer → of a text that leaves behind it,
    without its tokenization.  overhead: of an exit that does not answer."""

    whole: TextLatency
    exits: Mapping[int, float]
    overhead: float


def measure_costs(request: CascadeRequest, predictor: Predictor, heads: Mapping[int, nn.Linear]) -> ExitCosts:
    """heads: layer → exit. predictor: of the model without exits, in the runtime that serves.

    Each model is timed in turn with the one without exits, so that no more than two are in memory.
    """
    calls = TextCalls.of(sample_validation_texts(request), predictor)
    plain, layers = predictor.reference, list(heads)
    whole = serve(plain, predictor)
    variants = [((layer,), ALL) for layer in layers] + [(tuple(layers), NONE)]
    known, ratios = [], []
    with request.watch("timing the exits", len(variants), "models") as progress:
        for done, (places, threshold) in enumerate(variants, 1):
            exits = [ExitConfig(layer, threshold) for layer in places]
            early = serve(add_exits(plain, exits, [heads[layer] for layer in places]), predictor)
            theirs, ours = _time(calls, [whole, early], request.device)
            known.append(theirs)
            ratios.append((ours.mean - ours.tokenization) / (theirs.mean - theirs.tokenization))
            progress.update(done)
    usual = sorted(known, key=lambda one: one.mean)[len(known) // 2]
    ms, (*shares, none) = usual.mean - usual.tokenization, ratios
    costs = {layer: share * ms for layer, share in zip(layers, shares, strict=True)}
    return ExitCosts(usual, costs, max(0.0, none - 1) * ms / len(layers))


def serve(model: Model, predictor: Predictor) -> Teacher:
    """The model in the runtime of another one."""
    if predictor.runtime in IN_TORCH:
        return prepare_in_torch(model, predictor.runtime, predictor.precision)
    from compress.onnx.encoder import encode
    from compress.onnx.openvino_session import OpenVinoSession
    from compress.onnx.session import OnnxSession

    content = encode(model, "task").SerializeToString()
    if predictor.runtime == "openvino":
        return OpenVinoSession(content, precision=predictor.precision)
    return OnnxSession(content)


def _time(calls: TextCalls, models: Sequence[Teacher], device: str) -> list[TextLatency]:
    needs = Needs(logits=True)

    def answer(model: Teacher, batch: Batch) -> object:
        return model(batch.to(device), needs).logits

    parts = [calls.parts(lambda batch, m=model: answer(m, batch)) for model in models]
    found = measure_interleaved(parts, device=device, warmup=1, repeats=REPEATS, seconds=SECONDS)
    return [TextLatency.of(latency) for latency in found]
