"""What models take: size, operations, latency, throughput, memory and energy, timed in turn on one machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compress.contracts import Batch, FixedLength, LatencyShape, Measurement, Watch, unwatched
from compress.data.batches.examples import Examples
from compress.data.tables.table import Rows
from compress.measure.operations import count_gflops
from compress.onnx.runtimes import IN_TORCH
from compress.predict.predictor import Predictor, build_fixed_batch
from compress.predict.real_texts import TextCalls, TextLatency, TextSample, mean_of_calls
from compress.recipe.schema import LatencySpec
from evaluation.cost.device import describe
from evaluation.cost.energy import find_counters, measure_energy
from evaluation.cost.gpu import read_state
from evaluation.cost.latency import Latency, compare_latencies, find_synchronize, measure_interleaved
from evaluation.cost.memory import peak_memory_mb
from evaluation.cost.size import MB, count_parameters, weights_bytes

ENERGY = "energy/joules_per_1000_texts"
"""Of the whole device, where its counters can be read."""
TOKENS, LEAST = 64, 8
"""Of a row of the throughput, on average: where texts are longer, or rows have many, as a query with its documents,
fewer rows are timed, but no fewer than LEAST. Each pass over them is made six times, however long it takes."""


@dataclass(frozen=True)
class CostPlan:
    """How cost is measured: real rows for throughput; for latency the texts of the data, or, where it is given,
    sequences of `length` random tokens. texts: other texts than those of the rows that are scored.  timed: without it
    only what needs no clock is measured."""

    batch: int = 1
    length: int | None = None
    texts: TextSample | None = None
    repeats: int = 50
    warmup: int = 5
    throughput_rows: int = 512
    seconds: float = 10.0
    timed: bool = True


@dataclass(frozen=True)
class Cost:
    """What a model takes. latency: of a batch of the planned shape, on average over the texts.  pass_: of all the
    sampled rows, packed. Both are None where nothing was timed."""

    measurement: Measurement
    latency: Latency | None = None
    pass_: Latency | None = None


class _Shaped:
    """A model with what its latency is of. shape: the condition.  tokens: lengths of the texts, for people; empty for
    random tokens of one length."""

    def __init__(self, predictor: Predictor, cost: CostPlan, length: int) -> None:
        self.predictor, self.tokens = predictor, ""
        self._texts = None if cost.texts is None else TextCalls.of(cost.texts, predictor)
        if self._texts is None:
            self.shape: LatencyShape = FixedLength(cost.batch, length)
            self._batches = [build_fixed_batch(predictor.config, cost.batch, length).to(predictor.device)]
        else:
            self.shape, self.tokens = self._texts.sample.shape, self._texts.describe()
            self._batches = [batch for each in self._texts.batches for batch in each]

    def calls(self) -> list[Callable[[], Any]]:
        """What is timed, part by part."""
        return [lambda: self.predictor(self._batches[0])] if self._texts is None else self._texts.parts(self.predictor)

    def read(self, found: Latency) -> tuple[Latency, dict[str, float]]:
        """found: of `calls`. The same of one call, and the speeds, by MLflow name."""
        if self._texts is None:
            return found, known_speeds(found)
        speeds = text_speeds(TextLatency.of(found)) if found.is_known else {}
        return mean_of_calls(found, len(self._texts.tokens)), speeds

    def gflops(self) -> float:
        """10⁹ operations of a sequence, on average."""
        batches = self._batches if self._texts is not None else [replace_rows(self._batches[0], 1)]
        return count_gflops(self.predictor.model, batches, self.predictor.device)


def cost_ratios(ours: Cost, teacher: Cost) -> dict[str, float]:
    """Times smaller and faster than the teacher, by MLflow name; both were measured in one call of `measure_cost`.

    A speed that a busy machine kept from being known has no ratio.
    """
    values, other = ours.measurement.values, teacher.measurement.values
    found = {
        "vs_teacher/size_ratio": other["size/disk_mb"] / values["size/disk_mb"],
        "vs_teacher/params_ratio": other["size/params_m"] / values["size/params_m"],
    }
    timed = (
        ("vs_teacher/speedup", teacher.latency, ours.latency),
        ("vs_teacher/throughput_ratio", teacher.pass_, ours.pass_),
    )
    for key, theirs, mine in timed:
        ratio = None if theirs is None or mine is None else compare_latencies(theirs, mine)
        if ratio is not None:
            found |= {key: ratio.value, f"{key}_low": ratio.low, f"{key}_high": ratio.high}
    return found


def measure_cost(
    predictors: Sequence[Predictor], samples: Sequence[Examples], cost: CostPlan, watch: Watch = unwatched
) -> list[Cost]:
    """Size, operations, latency, throughput and memory of each model. Speeds that a busy machine kept from being known
    are left out.

    samples: per model, encoded rows with the lengths of real input; throughput is that of `Predictor.batches` of them.
    """
    device = predictors[0].device
    # One length for all: others would not compare.
    length = min([cost.length or LatencySpec().tokens, *(p.max_length for p in predictors)])
    shaped = [_Shaped(p, cost, length) for p in predictors]
    if not cost.timed:
        return [Cost(Measurement(_sizes(one), _computed_by(one.predictor))) for one in shaped]
    with watch("timing latency", None, "rounds") as progress:
        latencies = measure_interleaved(
            [one.calls() for one in shaped],
            device=device,
            warmup=cost.warmup,
            repeats=cost.repeats,
            seconds=cost.seconds,
            told=progress.update,
        )
    mixes = [[b.to(device) for b in p.batches(s)] for p, s in zip(predictors, samples, strict=True)]
    passes = [lambda p=p, m=m: [p(b) for b in m] for p, m in zip(predictors, mixes, strict=True)]
    parts = [[lambda p=p, b=b: p(b) for b in m] for p, m in zip(predictors, mixes, strict=True)]
    with watch("timing throughput", None, "rounds") as progress:
        how: dict[str, Any] = {"device": device, "seconds": cost.seconds, "told": progress.update}
        throughputs = measure_interleaved(parts, warmup=1, repeats=5, **how)
    counters, wait = find_counters(device), find_synchronize(device)
    results = []
    for i in range(len(predictors)):
        latency, speeds = shaped[i].read(latencies[i])
        values = {
            **_sizes(shaped[i]),
            **speeds,
            **known_throughput(throughputs[i], _count_rows(samples[i])),
            **_measure_memory(predictors[i], mixes[i]),
        }
        context = _context(shaped[i], latencies[i], samples[i])
        # The energy of other programs would count as the model's.
        if counters.found and throughputs[i].is_known and throughputs[i].clock == "wall time":
            joules = measure_energy(lambda i=i: (passes[i](), wait and wait()), counters.found)
            if joules is not None:
                values[ENERGY] = 1000 * joules / _count_rows(samples[i])
                context["energy_of"] = counters.names
        results.append(Cost(Measurement(values, context), latency, throughputs[i]))
    return results


def _measure_memory(predictor: Predictor, batches: Sequence[Batch]) -> dict[str, float]:
    """Peak memory above the weights, by MLflow name. On a GPU torch does not see what other runtimes take."""
    if predictor.device != "cpu" and predictor.runtime not in IN_TORCH:
        return {}
    fresh = predictor.reopen()
    return {"memory/peak_mb": peak_memory_mb(lambda: [fresh(b) for b in batches], predictor.device)}


def _sizes(shaped: _Shaped) -> dict[str, float]:
    """What needs no clock, by MLflow name."""
    predictor = shaped.predictor
    count = count_parameters(predictor.model, predictor.model.embedding_parameter_names())
    disk = sum(map(weights_bytes, predictor.files))
    return {
        "size/disk_mb": disk / MB,
        "size/params_m": count.total / MB,
        "size/params_no_embedding_m": count.without_embedding / MB,
        "speed/gflops": shaped.gflops(),
        "memory/weights_mb": (count.bytes if predictor.runtime in IN_TORCH else disk) / MB,
    }


def known_speeds(latency: Latency) -> dict[str, float]:
    """What is known of calls of one length, by MLflow name. Processor time says how long a call takes, not how late it
    may come."""
    found = {"speed/latency_p50_ms": latency.p50} if latency.is_known else {}
    if latency.clock == "wall time":
        found |= {"speed/latency_p95_ms": latency.p95, "speed/latency_p99_ms": latency.p99}
    return found


def text_speeds(found: TextLatency) -> dict[str, float]:
    """Over the texts of the data, by MLflow name."""
    return {
        "speed/latency_p50_ms": found.p50,
        "speed/latency_p95_ms": found.p95,
        "speed/latency_mean_ms": found.mean,
        "speed/tokenization_ms": found.tokenization,
    }


def known_throughput(pass_: Latency, rows: int) -> dict[str, float]:
    """Rows a second, by MLflow name, where the pass over them is known."""
    return {"speed/throughput_sps": rows / (pass_.p50 / 1000)} if pass_.is_known and pass_.p50 > 0 else {}


def _computed_by(predictor: Predictor) -> dict[str, str]:
    return {
        **describe(predictor.device),
        "runtime": predictor.computed_by,
        "precision": predictor.computed_in,
        "serving_precision": predictor.precision,
    }


def _context(shaped: _Shaped, latency: Latency, sample: Examples) -> dict[str, str]:
    p = shaped.predictor
    return {
        **_computed_by(p),
        "latency_shape": str(shaped.shape),
        **({"latency_tokens": shaped.tokens} if shaped.tokens else {}),
        "throughput_mix": f"{_tell_rows(sample)}, up to {p.max_tokens} at once",
        "repeats": str(latency.repeats),
        "clock": latency.clock,
        "contaminated": "no" if latency.is_known else "yes",
        **_state_of_gpu(p.device),
    }


def _state_of_gpu(device: str) -> dict[str, str]:
    """Right after it was timed: a low clock, or other processes, slow it down."""
    state = {} if device == "cpu" else read_state(device)
    return {f"gpu_{name}": f"{value:.0f}" for name, value in state.items()}


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


def sample_rows(rows: Rows, count: int) -> Rows:
    """So many, evenly spaced, or all of them: the lengths of real input, the same rows for every model."""
    return rows if len(rows) <= count else rows.take(_spread(len(rows), count))


def sample_examples(encoded: Sequence[Examples], count: int, *, single_texts: bool = False) -> list[Examples]:
    """What each model encoded of so many rows, as `sample_rows` would draw them, each with all its windows: the same
    rows of all models, fewer where they are long. single_texts: each text is a row of its own, as embedding models are
    served, whatever the data asks of pairs of texts."""
    if single_texts:
        encoded = [replace(one, numbers=np.arange(1, len(one) + 1)) for one in encoded]
    rows = min(_most_rows(examples, count) for examples in encoded)
    return [_sample(examples, rows) for examples in encoded]


def _most_rows(examples: Examples, count: int) -> int:
    """At most so many, which hold no more tokens of this model than `count` rows of `TOKENS`."""
    return min(count, max(LEAST, TOKENS * count * _count_rows(examples) // max(1, len(examples.ids))))


def _sample(examples: Examples, count: int) -> Examples:
    numbers, firsts = np.unique(examples.numbers, return_index=True)
    if len(numbers) <= count:
        return examples
    drawn = numbers[np.argsort(firsts)][_spread(len(numbers), count)]
    return examples.take(np.flatnonzero(np.isin(examples.numbers, drawn)))


def _spread(total: int, count: int) -> np.ndarray:
    return np.linspace(0, total - 1, count).astype(int)


def _tell_rows(examples: Examples) -> str:
    """How many, and how long they are, for people."""
    rows, sequences = _count_rows(examples), len(examples)
    mean = len(examples.ids) / rows
    if rows == sequences:
        return f"{rows:,} rows, mean {mean:.1f} tokens"
    return f"{rows:,} rows of {sequences:,} sequences, mean {mean:.1f} tokens a row"


def _count_rows(examples: Examples) -> int:
    """Rows of the data, of which windows are parts."""
    return len(np.unique(examples.numbers))
