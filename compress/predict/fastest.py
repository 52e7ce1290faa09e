"""`--runtime auto`: every runtime of this machine is checked against the model and timed, and the fastest answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from compress.console import Console
from compress.contracts import Batch, RunOptions
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import Examples
from compress.data.tables.random_rows import draw_mixed_rows
from compress.errors import UserError, format_count
from compress.onnx.check import BF16_TOLERANCE, ROWS, TOLERANCE, Check, compute_reference
from compress.onnx.runtimes import COMPILED, PROVIDERS, RUNTIMES, Runtime, versions
from compress.predict.cascade import CascadePredictor, open_predictor
from compress.predict.predictor import MAX_TOKENS, Predictor, build_fixed_batch
from compress.predict.real_texts import TextCalls, TextSample
from evaluation.cost.latency import Latency, measure_interleaved


@dataclass(frozen=True)
class RuntimeTrial:
    """One runtime. latency: of all batches, one after the other; None where it was not timed.  why_not: it was not."""

    runtime: Runtime
    latency: Latency | None = None
    check: Check | None = None
    why_not: str = ""


def get_requested_runtime(options: RunOptions) -> Runtime | None:
    """The runtime that the command line names; None where it leaves the choice to the folder or to `fastest`."""
    return None if options.runtime == "auto" else options.runtime


def open_in_runtime(folder: Path, runtime: Runtime | Literal["auto"] | None, console: Console, **how: Any) -> Predictor:
    """What answers with a model folder in a runtime; "auto": in the fastest one for many rows. how: as of `Predictor`.

    Raises UserError as `Predictor` and `fastest` do."""
    if runtime != "auto":
        return open_predictor(folder, runtime=runtime, **how)
    return fastest_for_many_rows(open_predictor(folder, **how), console)


def draw_short_rows(predictor: Predictor) -> Examples:
    """What runtimes are checked on: random tokens, with lengths like short reviews."""
    return draw_mixed_rows(predictor.config.vocabulary, min(128, predictor.max_length), ROWS)


def fastest(
    predictor: Predictor, timed: Callable[[Predictor], Sequence[Batch]], shape: str, console: Console
) -> Predictor:
    """The predictor in the runtime that answers `timed` soonest, of those that answer short rows as the model does.

    timed: a predictor in one of the runtimes → what it is given.  shape: what that is, for people. What was measured is
    told. A cascade stays as it is: each of its models has its own runtime. Raises UserError when no runtime passes.
    """
    if isinstance(predictor, CascadePredictor):
        console.note(f"--runtime auto does not apply to a cascade: {predictor.computed_by}")
        return predictor
    checked = list(evaluation_batches(draw_short_rows(predictor), MAX_TOKENS))
    tried = [_check(predictor, runtime, checked) for runtime in RUNTIMES]
    able = [t for t in tried if not t.why_not]
    if not able:
        raise UserError(
            "no runtime reproduces the model's outputs",
            where=str(predictor.folder),
            why="; ".join(f"{t.runtime}: {t.why_not}" for t in tried),
            do="export the model again, or choose a runtime with --runtime",
        )
    ready = [predictor.with_runtime(t.runtime) for t in able]
    given = [timed(one) for one in ready]
    passes = [lambda p=p, batches=batches: [p(b) for b in batches] for p, batches in zip(ready, given, strict=True)]
    with console.slow_progress("timing the runtimes", None, "rounds") as progress:
        latencies = measure_interleaved(
            passes, device=predictor.device, warmup=2, repeats=20, seconds=3.0, told=progress.update
        )
    found = {t.runtime: RuntimeTrial(t.runtime, latency, t.check) for t, latency in zip(able, latencies, strict=True)}
    best = min(found.values(), key=lambda t: _p50(t))
    _tell([found.get(t.runtime, t) for t in tried], best, shape, console)
    return ready[[t.runtime for t in able].index(best.runtime)]


def fastest_for_shape(predictor: Predictor, name: str, batch: int, length: int, console: Console) -> Predictor:
    """`fastest` for `batch` sequences of `length` random tokens, all runtimes checked on rows of short texts.

    name: of the model, for people. Raises UserError when no runtime passes.
    """
    console.note(f"timing each runtime with {name}")
    timed = [build_fixed_batch(predictor.config, batch, length)]
    return fastest(predictor, lambda _: timed, f"{batch} x {length} tokens", console)


def fastest_for_texts(predictor: Predictor, name: str, sample: TextSample, console: Console) -> Predictor:
    """`fastest` for the texts of a sample. name: of the model, for people. Raises UserError when no runtime passes."""
    console.note(f"timing each runtime with {name}")
    timed = [batch for each in TextCalls.of(sample, predictor).batches for batch in each]
    return fastest(predictor, lambda _: timed, f"{len(timed)} texts of {sample.shape.data}", console)


def fastest_for_many_rows(predictor: Predictor, console: Console) -> Predictor:
    """`fastest` for rows of mixed lengths, in batches as each runtime is given them. Raises UserError when no runtime
    passes."""
    rows = draw_short_rows(predictor)
    return fastest(predictor, lambda one: list(one.batches(rows)), f"{len(rows)} rows of mixed lengths", console)


def require_same_answers(predictor: Predictor, examples: Examples, what: str) -> None:
    """Raise UserError unless torch's integers answer rows of these as the quantized model does, and its sparse products
    as the dense ones do, by the rules that an exported file is held to. what: the rows are, for people. Nothing is
    asked of another runtime, nor of fewer rows than a file is checked on, of which one answer would be too large a
    share."""
    if isinstance(predictor, CascadePredictor):
        for model in predictor.list_models_of_first_tokenizer():
            require_same_answers(model, examples, what)
        return
    if predictor.runtime not in ("torch-int8", "torch-sparse") or len(examples) < ROWS:
        return
    tolerance = TOLERANCE if predictor.runtime == "torch-int8" else BF16_TOLERANCE
    batches = list(evaluation_batches(examples.take(np.arange(ROWS)), MAX_TOKENS))
    check = compute_reference(predictor.reference, "task", batches, what).check(_answer(predictor), tolerance)
    check.require(predictor.runtime, str(predictor.folder), why=None, do="use --runtime torch")


def _check(predictor: Predictor, runtime: Runtime, batches: Sequence[Batch]) -> RuntimeTrial:
    if runtime in PROVIDERS and predictor.device == "cpu":
        return RuntimeTrial(runtime, why_not=f"{runtime} only runs on a CUDA GPU")
    if versions()[runtime] is None:
        return RuntimeTrial(runtime, why_not="not installed")
    if runtime in COMPILED and predictor.device == "cpu":
        return RuntimeTrial(runtime, why_not="compiling takes half a minute; request it with --runtime")
    if runtime == "onnxruntime-tensorrt":
        return RuntimeTrial(runtime, why_not="building its engine takes minutes; request it with --runtime")
    tolerance = BF16_TOLERANCE if predictor.precision == "bf16" else TOLERANCE
    try:
        other = predictor.with_runtime(runtime)
        other.run  # noqa: B018  # opens the file: what is wrong with it is said here
    except UserError as error:
        return RuntimeTrial(runtime, why_not=error.what)
    check = compute_reference(predictor.reference, "task", batches, "random tokens").check(_answer(other), tolerance)
    return RuntimeTrial(runtime, check=check, why_not=check.complaint or "")


def _answer(predictor: Predictor):
    return lambda batch: predictor(batch).cpu().numpy()


def _p50(tried: RuntimeTrial) -> float:
    assert tried.latency is not None
    return tried.latency.p50


def _tell(tried: Sequence[RuntimeTrial], best: RuntimeTrial, shape: str, console: Console) -> None:
    for t in tried:
        if t.latency is None:
            console.note(f"{t.runtime}: skipped: {t.why_not}")
        else:
            busy = " (busy machine)" if t.latency.contaminated else ""
            console.note(f"{t.runtime}: {t.latency.p50:.2f} ms for {shape}{busy}")
    threads = torch.get_num_threads()
    timed = sum(t.latency is not None for t in tried)
    console.note(f"runtime {best.runtime}: the fastest of {timed} on this machine, {format_count(threads, 'thread')}")
