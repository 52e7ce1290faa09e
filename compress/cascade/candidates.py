"""The models that a cascade may be made of, on validation rows: how sure and how right each is, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compress.cascade.request import CascadeRequest
from compress.modelfolder import private
from compress.predict.cascade import choose_stage_runtime
from compress.predict.predictor import Predictor
from compress.predict.real_texts import TextCalls, TextLatency, TextSample, sample_texts
from compress.stages.shared.proof import SPLIT
from evaluation.cascade import ScoredModels, compute_confidence
from evaluation.cost.latency import measure_interleaved
from evaluation.quality.calibration import NoTemperatureError, fit_validated_temperature

REPEATS, SECONDS = 20, 4.0


@dataclass(frozen=True)
class Candidate:
    """One model. temperature: by which its probabilities fit the rows that propose.  confidence: (N,) with it.
    right: (N,) bool.  latency: over texts of these rows, each alone."""

    name: str
    folder: Path
    predictor: Predictor
    temperature: float
    confidence: np.ndarray
    right: np.ndarray
    latency: TextLatency

    @property
    def parameters(self) -> int:
        """Of its encoder: heads of early exits make no model larger."""
        return self.predictor.config.count_parameters()

    @property
    def is_quantized(self) -> bool:
        """Whether its weights are rounded."""
        return self.predictor.config.quantization is not None

    @property
    def has_exits(self) -> bool:
        """Whether it may answer after fewer than all of its layers."""
        return private.has_exits(self.folder)


def measure_candidates(request: CascadeRequest) -> list[Candidate]:
    """All models, the fastest first."""
    rows = request.table.split(SPLIT)
    predictors = {name: open_model(request, folder) for name, folder in request.models.items()}
    for predictor in predictors.values():
        predictor.answer_in_order_of(request.table.label_names)
    logits = {}
    for name, predictor in predictors.items():
        examples = predictor.encode_rows(rows, max_length=request.max_length)
        with request.watch(f"scoring {name} on {SPLIT} rows", len(examples), "rows") as progress:
            logits[name] = predictor.logits(examples, told=progress.update)
    latencies = _measure_latencies(request, list(predictors.values()))
    gold, proposing, found = np.asarray(rows.labels), request.proposing, []
    for (name, predictor), latency in zip(predictors.items(), latencies, strict=True):
        temperature = fit_temperature(logits[name][proposing], gold[proposing])
        sure, right = compute_confidence(logits[name] / temperature), logits[name].argmax(-1) == gold
        found.append(Candidate(name, predictor.folder, predictor, temperature, sure, right, latency))
    return sorted(found, key=lambda one: one.latency.mean)


def find_parent(candidates: Sequence[Candidate]) -> int:
    """The place of the model that losses are measured against: the largest, of equally large ones one that is not
    quantized and has no early exits, of several the slowest."""

    def rank(one: Candidate) -> tuple[int, bool, bool, float]:
        return one.parameters, not one.is_quantized, not one.has_exits, one.latency.mean

    return max(range(len(candidates)), key=lambda place: rank(candidates[place]))


def gather_scores(candidates: Sequence[Candidate]) -> ScoredModels:
    """What the choice reads of them."""
    return ScoredModels(
        np.stack([c.confidence for c in candidates]),
        np.stack([c.right for c in candidates]),
        np.array([c.latency.mean - c.latency.tokenization for c in candidates]),
        np.array([c.latency.tokenization for c in candidates]),
        [c.predictor.tokenizer.fingerprint for c in candidates],
    )


def open_model(request: CascadeRequest, folder: Path) -> Predictor:
    """A model in the runtime that the request names, else in its own."""
    runtime = choose_stage_runtime(folder, request.device, request.runtime)
    return Predictor(
        folder, device=request.device, task=request.table.task, settings=dict(request.settings), runtime=runtime
    )


def sample_validation_texts(request: CascadeRequest) -> TextSample:
    """Texts that what is chosen from is timed on: of rows that propose, since an order follows from the times."""
    table = request.table
    rows = table.split(SPLIT).take(np.flatnonzero(request.proposing))
    return sample_texts(
        rows, data=f"{table.display_name}/{SPLIT}", digest=table.measured_fingerprint,
        max_length=request.max_length,
    )  # fmt: skip


def _measure_latencies(request: CascadeRequest, predictors: Sequence[Predictor]) -> list[TextLatency]:
    texts = sample_validation_texts(request)
    with request.watch("timing the models", None, "rounds") as progress:
        found = measure_interleaved(
            [TextCalls.of(texts, p).parts(p) for p in predictors],
            device=request.device, warmup=1, repeats=REPEATS, seconds=SECONDS, told=progress.update,
        )  # fmt: skip
    return [TextLatency.of(latency) for latency in found]


def fit_temperature(logits: np.ndarray, gold: np.ndarray) -> float:
    """1 where no temperature improves the probabilities of rows that it was not fitted on: no answer depends on it."""
    try:
        return fit_validated_temperature(logits, gold).temperature
    except NoTemperatureError:
        return 1.0
