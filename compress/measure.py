"""Models on the same rows and the same machine: quality, size, operations, latency, throughput, memory.

All models of one call are timed in turn (A B A B ...), so their ratios hold on a machine whose speed drifts, and are
scored on the same rows, so that the difference to the reference is a paired one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from compress.contracts import Batch, Measurement, Needs
from compress.data.batches import evaluation_batches
from compress.errors import UserError, printable
from compress.predictor import MAX_TOKENS, Predictor
from evaluation.cost.device import describe
from evaluation.cost.flops import count_flops
from evaluation.cost.latency import Latency, measure_interleaved
from evaluation.cost.memory import peak_memory_mb
from evaluation.cost.size import MB, count_parameters, weights_bytes
from evaluation.quality.agreement import agreement
from evaluation.quality.confusion import confusion
from evaluation.quality.intervals import bootstrap_table
from evaluation.quality.metrics import table_metrics
from evaluation.quality.paired import paired_accuracy


@dataclass(frozen=True)
class Subject:
    """A model to measure. role: teacher, student or control."""

    name: str
    folder: Path
    role: str = "student"


@dataclass(frozen=True)
class Measured:
    """A subject with its figures. correct: (rows,) whether each row was answered right."""

    subject: Subject
    measurement: Measurement
    correct: np.ndarray | None = None

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        return {
            "name": self.subject.name,
            "role": self.subject.role,
            "folder": str(self.subject.folder),
            "values": dict(self.measurement.values),
            "context": dict(self.measurement.context),
        }


@dataclass(frozen=True)
class CostPlan:
    """How cost is measured: one sequence of `length` real tokens for latency, real rows for throughput."""

    batch: int = 1
    length: int = 128
    repeats: int = 50
    warmup: int = 5
    throughput_rows: int = 512
    seconds: float = 10.0


def measure(
    subjects: Sequence[Subject],
    rows,
    *,
    dataset: str,
    digest: str,
    max_length: int,
    cost: CostPlan,
    bootstrap: int = 1000,
    device: str = "cpu",
    precision: Literal["fp32", "bf16"] = "fp32",
    say: Callable[[str], None] = lambda _: None,
) -> list[Measured]:
    """Measure every subject on labelled `rows` of one split; the first subject of role teacher is the reference.

    Raises UserError when two models answer different labels.
    """
    predictors = [Predictor(s.folder, device=device, precision=precision) for s in subjects]
    _require_same_labels(subjects, predictors)
    logits, encoded = [], []
    for subject, predictor in zip(subjects, predictors, strict=True):
        say(f"scoring {subject.name} on {len(rows)} rows")
        examples = predictor.encode_rows(rows, max_length=max_length)
        encoded.append(examples)
        logits.append(predictor.logits(examples))
    gold = np.asarray(encoded[0].labels)
    say("timing " + ", ".join(s.name for s in subjects))
    costs = measure_cost(predictors, [_sample(e, cost.throughput_rows) for e in encoded], cost)
    reference = next((i for i, s in enumerate(subjects) if s.role == "teacher"), None)
    measured = []
    for i, subject in enumerate(subjects):
        values = {**quality(gold, logits[i], bootstrap), **costs[i].values}
        context = {**costs[i].context, "dataset": dataset, "dataset_digest": digest, "rows": str(len(gold))}
        if reference is not None and i != reference:
            values |= against(gold, logits[i], logits[reference], bootstrap)
            values |= ratios(values, quality(gold, logits[reference], 1), costs[reference].values)
        measured.append(Measured(subject, Measurement(values, context), _correct(gold, logits[i])))
    return measured


def _require_same_labels(subjects: Sequence[Subject], predictors: Sequence[Predictor]) -> None:
    first = predictors[0].label_names
    for subject, predictor in zip(subjects, predictors, strict=True):
        if predictor.label_names != first:
            raise UserError(
                f"{subject.name} and {subjects[0].name} answer different labels",
                where=str(subject.folder),
                why=printable(f"{', '.join(predictor.label_names)} against {', '.join(first)}", 200),
                do="compare models of one task",
            )


def quality(gold: np.ndarray, logits: np.ndarray, bootstrap: int) -> dict[str, float]:
    """Every classification metric with its 95 % interval, by MLflow name."""
    table = confusion(gold, logits.argmax(-1), logits.shape[1])
    values: dict[str, float] = {}
    for name, score in table_metrics().items():
        interval = bootstrap_table(table, score, resamples=bootstrap)
        values[f"quality/{name}"] = interval.value
        values[f"quality/{name}_low"], values[f"quality/{name}_high"] = interval.low, interval.high
    values["quality/majority_baseline"] = float(table.sum(1).max() / table.sum())
    return values


def against(gold: np.ndarray, logits: np.ndarray, reference: np.ndarray, bootstrap: int) -> dict[str, float]:
    """Fidelity to the reference and the paired difference in accuracy, by MLflow name."""
    alike = agreement(logits, reference, resamples=bootstrap)
    paired = paired_accuracy(_correct(gold, logits), _correct(gold, reference), resamples=bootstrap)
    return {
        "vs_teacher/agreement_pct": 100 * alike.same.value,
        "vs_teacher/agreement_pct_low": 100 * alike.same.low,
        "vs_teacher/agreement_pct_high": 100 * alike.same.high,
        "vs_teacher/kl": alike.kl,
        "vs_teacher/accuracy_difference": paired.difference.value,
        "vs_teacher/accuracy_difference_low": paired.difference.low,
        "vs_teacher/accuracy_difference_high": paired.difference.high,
        "vs_teacher/p_value": paired.p_value,
    }


def ratios(
    values: Mapping[str, float], teacher_quality: Mapping[str, float], teacher: Mapping[str, float]
) -> dict[str, float]:
    """How much was kept and gained against the teacher, measured in the same run."""
    kept = 100 * values["quality/accuracy"] / teacher_quality["quality/accuracy"]
    return {"vs_teacher/quality_kept_pct": kept, **cost_ratios(values, teacher)}


def cost_ratios(values: Mapping[str, float], teacher: Mapping[str, float]) -> dict[str, float]:
    """Times smaller and faster than the teacher, measured in the same run."""
    return {
        "vs_teacher/size_ratio": teacher["size/disk_mb"] / values["size/disk_mb"],
        "vs_teacher/params_ratio": teacher["size/params_m"] / values["size/params_m"],
        "vs_teacher/speedup": teacher["speed/latency_p50_ms"] / values["speed/latency_p50_ms"],
        "vs_teacher/throughput_ratio": values["speed/throughput_sps"] / teacher["speed/throughput_sps"],
    }


def measure_cost(predictors: Sequence[Predictor], samples: Sequence, cost: CostPlan) -> list[Measurement]:
    """Size, operations, latency, throughput and memory of each model.

    samples: per model, encoded rows with the lengths of real input; throughput runs them packed.
    """
    device = predictors[0].device
    wait = torch.cuda.synchronize if device.startswith("cuda") else None
    fixed = [_fixed_batch(p, cost) for p in predictors]
    lengths = [int(b.max_length) for b in fixed]
    latencies = measure_interleaved(
        [lambda p=p, b=b: p(b) for p, b in zip(predictors, fixed, strict=True)],
        warmup=cost.warmup,
        repeats=cost.repeats,
        seconds=cost.seconds,
        synchronize=wait,
    )
    mixes = [[b.to(device) for b in evaluation_batches(s, MAX_TOKENS)] for s in samples]
    passes = [lambda p=p, m=m: [p(b) for b in m] for p, m in zip(predictors, mixes, strict=True)]
    throughputs = measure_interleaved(passes, warmup=1, repeats=5, seconds=cost.seconds, synchronize=wait)
    results = []
    for i, p in enumerate(predictors):
        count = count_parameters(p.model, p.model.embedding_parameter_names())
        single = replace_rows(fixed[i], 1)
        values = {
            "size/disk_mb": weights_bytes(p.folder) / MB,
            "size/params_m": count.total / MB,
            "size/params_no_embedding_m": count.without_embedding / MB,
            "speed/gflops": count_flops(lambda p=p, b=single: p.model(b.to(device), Needs(logits=True))) / 1e9,
            "speed/latency_p50_ms": latencies[i].p50,
            "speed/latency_p95_ms": latencies[i].p95,
            "speed/latency_p99_ms": latencies[i].p99,
            "speed/throughput_sps": len(samples[i]) / (throughputs[i].p50 / 1000),
            "memory/peak_mb": peak_memory_mb(passes[i], device),
            "memory/weights_mb": count.bytes / MB,
        }
        results.append(Measurement(values, _context(p, cost, lengths[i], latencies[i], samples[i])))
    return results


def _context(p: Predictor, cost: CostPlan, length: int, latency: Latency, sample) -> dict[str, str]:
    here = describe(p.device)
    return {
        **here,
        "runtime": f"torch {here['torch']}, packed",
        "precision": p.precision,
        "latency_shape": f"batch {cost.batch} x {length} tokens",
        "throughput_mix": f"{len(sample)} rows, mean {sample.lengths.mean():.1f} tokens, packed to {MAX_TOKENS}",
        "repeats": str(latency.repeats),
        "contaminated": "yes" if latency.contaminated else "no",
    }


def _fixed_batch(p: Predictor, cost: CostPlan) -> Batch:
    """`batch` sequences of `length` random tokens: latency depends on the count of tokens, not on which they are."""
    length = min(cost.length, p.max_length)
    generator = torch.Generator().manual_seed(0)
    total = cost.batch * length
    return Batch(
        input_ids=torch.randint(0, p.config.vocabulary, (total,), generator=generator),
        segment_ids=torch.zeros(total, dtype=torch.int64),
        position_ids=torch.arange(length).repeat(cost.batch),
        cu_seqlens=torch.arange(0, total + 1, length),
        max_length=length,
        row_ids=torch.arange(cost.batch),
    ).to(p.device)


def replace_rows(batch: Batch, rows: int) -> Batch:
    """The first `rows` sequences of a packed batch."""
    end = int(batch.cu_seqlens[rows])
    return replace(
        batch,
        input_ids=batch.input_ids[:end],
        segment_ids=batch.segment_ids[:end],
        position_ids=batch.position_ids[:end],
        cu_seqlens=batch.cu_seqlens[: rows + 1],
        row_ids=batch.row_ids[:rows],
    )


def _correct(gold: np.ndarray, logits: np.ndarray) -> np.ndarray:
    return logits.argmax(-1) == gold


def _sample(examples, rows: int):
    """Evenly spaced rows: the lengths of real input, the same rows for every model."""
    if len(examples) <= rows:
        return examples
    return examples.take(np.linspace(0, len(examples) - 1, rows).astype(int))
