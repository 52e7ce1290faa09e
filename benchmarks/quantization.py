"""A float model beside its quantized files: quality of the file itself, agreement, size, and latency, timed in turn.

    python benchmarks/quantization.py FOLDER --data DATA [--ways per-token static] [--no-speed]
    python benchmarks/quantization.py --shape 12x768 --lengths 128 --ways per-token static

Each way is made as `compress quantize` and `compress export` make it: ranges observed on `--rows` training texts, the
file checked against the fake-quantized model on 256 test rows and refused where it computes otherwise. Quality is what
the file answers to the whole test split in onnxruntime, with a 95 % bootstrap interval over rows; agreement and mean
difference of logits are against the float model's file. Latency is of one sequence, every file in onnxruntime and
OpenVINO, in turn with the float files and Hugging Face's own class in eager fp32. With --shape the weights are random
and only cost is measured.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from side_by_side import Call, in_turns

from compress.contracts import Batch, Needs
from compress.data.batches.evaluation_batches import evaluation_batches, restore_order
from compress.data.batches.examples import Examples
from compress.data.reading.sources import open_table
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.schemes import (
    FEW,
    GROUP4,
    MATRICES,
    ROW8,
    TABLES,
    TENSOR8,
    TOKEN8,
    QuantizationSpec,
    few_bits,
)
from compress.encoder.integers.convert import calibrate, plan_quantization, quantize_model
from compress.encoder.modules.model import Model
from compress.onnx.check import Check, compute_reference, file_answer
from compress.onnx.encoder import encode
from compress.onnx.openvino_session import OpenVinoSession
from compress.onnx.session import FileSession, OnnxSession
from compress.predict.predictor import MAX_TOKENS, Predictor, build_fixed_batch
from evaluation.cost.cpu import cpu_flags, cpu_name
from evaluation.quality.intervals import Interval, mean_interval

CHECKED = 256
FLOAT = "float"


def per_token(weight: Mapping[str, Any]) -> dict[str, Any]:
    """The scheme per-token with other quantizers of the matrices."""
    return {"rules": [{"pattern": p, "weight": weight, "input": TOKEN8} for p in MATRICES[:1]]}


def groups(matrix: Mapping[str, Any], table: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Inputs per token, with these quantizers of matrices and tables."""
    tables = [{"pattern": p, "weight": table or matrix} for p in TABLES]
    return {"scheme": "int4", "rules": [{"pattern": MATRICES[0], "weight": matrix, "input": TOKEN8}, *tables]}


WAYS: dict[str, dict[str, Any]] = {
    "per-token": {"scheme": "per-token"},
    "static": {"scheme": "static"},
    "static-percentile": {"scheme": "static-percentile"},
    "static-mse": {"scheme": "static-mse"},
    "static-kl": {"scheme": "static-kl"},
    "per-tensor-weights": {
        "scheme": None,
        "rules": [
            *({"pattern": p, "weight": TENSOR8, "input": TOKEN8} for p in MATRICES[:1]),
            *({"pattern": p, "weight": ROW8} for p in TABLES[:1]),
        ],
    },
    "per-token, full range": per_token(ROW8),
    "per-token, 7 bits": per_token({**ROW8, "bits": 7}),
    "int4": {"scheme": "int4"},
    "int4, fp32 scales": groups({**GROUP4, "scale_dtype": "fp32"}),
    **{name: {"scheme": name} for name in FEW},
    **{
        f"{name}, not balanced": groups(
            *({**few_bits(bits, by_row=by_row, table=t), "balanced": False} for t in (False, True))
        )
        for name, (bits, by_row) in FEW.items()
        if bits < 4
    },
    "q8bert": {"scheme": "q8bert"},
}
"""Name → as a recipe's quantize stage says it."""


@dataclass(frozen=True)
class File:
    """One way to deploy the model. check: against the fake-quantized model; None: random weights, not checked."""

    content: bytes
    check: Check | None

    @property
    def megabytes(self) -> float:
        return len(self.content) / 1e6


@dataclass(frozen=True)
class Scored:
    """One file on the test split. quality and agreement (with the float file) in percent.  difference: mean absolute
    difference of logits."""

    quality: float
    agreement: float
    difference: float


@dataclass(frozen=True)
class Answers:
    """What a file says to all test rows, and how good that is by the metric that decides."""

    logits: np.ndarray
    quality: Interval


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", type=Path, nargs="*", help="folders of a class that Hugging Face has, one a seed")
    p.add_argument("--data", help="labelled data, where the model is not of random weights")
    p.add_argument("--shape", help="LAYERSxHIDDEN of a BERT with random weights, in place of a folder")
    p.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    p.add_argument("--rows", type=int, default=512, help="training texts on which ranges are observed")
    p.add_argument("--max-length", type=int, default=128)
    p.add_argument("--lengths", type=int, nargs="+", default=[32, 128])
    p.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    p.add_argument("--rounds", type=int, default=40, help="turns of each way")
    p.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: for a busy machine, one thread")
    p.add_argument("--bootstrap", type=int, default=1000)
    p.add_argument("--no-speed", action="store_true")
    p.add_argument("--no-quality", action="store_true")
    args = p.parse_args()
    if bool(args.models) == bool(args.shape) or (args.models and args.data is None):
        raise SystemExit("give model folders and --data, or --shape")
    if len(args.models) > 1 and not args.no_speed:
        raise SystemExit("several models are scored, not timed: add --no-speed")
    if args.clock == "cpu" and args.threads != [1]:
        raise SystemExit("processor time tells the latency of one thread alone: --clock cpu --threads 1")
    torch.set_num_threads(args.threads[0])
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{cpu_name()}: {' '.join(cpu_flags())}; torch {torch.__version__}; load {load}", flush=True)
    scores: list[dict[str, Scored]] = []
    for folder in args.models or [None]:
        model, batches, examples, score = random_model(args.shape) if folder is None else folder_model(folder, args)
        files = {FLOAT: File(encode(model, "task").SerializeToString(), None)}
        files |= {way: made(model, way, batches, examples) for way in args.ways}
        if examples is not None and score is not None and not args.no_quality:
            scores.append(print_quality(files, examples, score))
        if not args.no_speed:
            print_speed(files, reference_of(args), model.config, args)
    if len(scores) > 1:
        print_summary(scores)


# --- the models ---------------------------------------------------------------------------------------------------

Score = Callable[[np.ndarray], Interval]


def folder_model(folder: Path, args: argparse.Namespace) -> tuple[Model, list[Batch], Examples, Score]:
    """(float model, batches to calibrate on, test rows, how good outputs for these are)."""
    predictor = Predictor(folder, runtime="torch")
    table = open_table(args.data, task=predictor.task.kind)
    train, test = table.split("train"), table.split("test")
    places = np.unique(np.linspace(0, len(train) - 1, min(args.rows, len(train))).round().astype(int))
    seen = predictor.encode_rows(train.take(places), max_length=args.max_length)
    examples = predictor.encode_rows(test, max_length=args.max_length)
    names = predictor.label_names
    metric = predictor.task.choose_metrics(names)[0]
    print(f"\n{folder.parent.name}/{folder.name} on {table.name}: {metric}, {len(test):,} test rows", flush=True)

    def score(logits: np.ndarray) -> Interval:
        return predictor.task.score(logits, names, examples, test).interval(metric, resamples=args.bootstrap)

    return predictor.reference, list(evaluation_batches(seen, MAX_TOKENS)), examples, score


def random_model(shape: str) -> tuple[Model, list[Batch], None, None]:
    """A BERT of that shape with two labels."""
    layers, hidden = map(int, shape.split("x"))
    config = EncoderConfig.uniform(
        vocabulary=30_522, hidden=hidden, layers=layers, heads=hidden // 64, feed_forward=4 * hidden
    )
    model = Model(config, {"task": HeadConfig("classification", labels=2)}).initialize(0).eval()
    print(f"random weights, {shape}", flush=True)
    return model, [build_fixed_batch(config, 8, 64)], None, None


def made(model: Model, way: str, batches: Sequence[Batch], examples: Examples | None) -> File:
    """The checked file of one way. Ends the benchmark where it computes otherwise than the fake-quantized model."""
    whole = quantize_model(model, plan_quantization(QuantizationSpec.model_validate(WAYS[way]), model)).eval()
    calibrate(whole, batches)
    content = encode(whole, "task").SerializeToString()
    if examples is None:
        return File(content, None)
    rows = list(evaluation_batches(examples.take(np.arange(min(CHECKED, len(examples)))), MAX_TOKENS))
    check = compute_reference(whole, "task", rows, "test rows").check(file_answer(OnnxSession(content)))
    if check.complaint is not None:
        raise SystemExit(f"{way}: the file is {check.complaint}")
    return File(content, check)


# --- quality ------------------------------------------------------------------------------------------------------


def print_quality(files: dict[str, File], examples: Examples, score: Score) -> dict[str, Scored]:
    """What each file answers to the test split, by way."""
    scored: dict[str, Scored] = {}
    print(
        "\n| | quality | agreement with float | mean abs. difference of logits | file against simulation, mean | MB |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    whole = answers(files[FLOAT], examples, score)
    for way, file in files.items():
        found = whole if way == FLOAT else answers(file, examples, score)
        same = 100 * (found.logits.argmax(-1) == whole.logits.argmax(-1)).mean()
        apart = np.abs(found.logits - whole.logits).mean()
        simulated = "" if file.check is None else f"{file.check.mean:.1e}"
        q = found.quality
        told = f"{100 * q.value:.2f} [{100 * q.low:.2f}, {100 * q.high:.2f}]"
        print(f"| {way} | {told} | {same:.2f} % | {apart:.4f} | {simulated} | {file.megabytes:.1f} |", flush=True)
        scored[way] = Scored(100 * q.value, same, float(apart))
    return scored


def print_summary(scores: Sequence[dict[str, Scored]]) -> None:
    """Means over the models, and the change against each model in float with Student's 95 % interval."""
    print(f"\n| mean of {len(scores)} models | quality | change against float, points | agreement | difference |")
    print("|---|--:|--:|--:|--:|")
    for way in scores[0]:
        quality = np.mean([s[way].quality for s in scores])
        change = mean_interval([s[way].quality - s[FLOAT].quality for s in scores])
        told = "" if way == FLOAT else f"{change.value:+.2f} [{change.low:+.2f}, {change.high:+.2f}]"
        same, apart = (np.mean([getattr(s[way], name) for s in scores]) for name in ("agreement", "difference"))
        print(f"| {way} | {quality:.2f} | {told} | {same:.2f} % | {apart:.4f} |", flush=True)


def answers(file: File, examples: Examples, score: Score) -> Answers:
    """Of the file in onnxruntime."""
    session, asked = OnnxSession(file.content), Needs(logits=True)

    def parts() -> Any:
        for batch in evaluation_batches(examples, MAX_TOKENS):
            logits = session(batch, asked).logits
            assert logits is not None
            yield batch.row_ids.numpy(), logits.numpy()

    logits = restore_order(examples, parts())
    return Answers(logits, score(logits))


# --- latency ------------------------------------------------------------------------------------------------------


def reference_of(args: argparse.Namespace) -> torch.nn.Module:
    """The model as Hugging Face's own class, eager."""
    eager = {"attn_implementation": "eager"}
    if args.shape:
        layers, hidden = map(int, args.shape.split("x"))
        config = transformers.BertConfig(
            hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 64, intermediate_size=4 * hidden
        )
        config._attn_implementation = "eager"
        return transformers.BertForSequenceClassification(config).eval()
    (folder,) = args.models
    (kind,) = transformers.AutoConfig.from_pretrained(folder).architectures or ("BertForSequenceClassification",)
    return getattr(transformers, kind).from_pretrained(folder, **eager).eval()


def print_speed(
    files: dict[str, File], theirs: torch.nn.Module, config: EncoderConfig, args: argparse.Namespace
) -> None:
    """Median milliseconds of one sequence, and how many times faster than two float ways in the same rounds."""
    print(f"\n| {args.clock} time | runtime | length | threads | ms | times Hugging Face | times float onnxruntime |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for threads in args.threads:
        torch.set_num_threads(threads)
        sessions: dict[str, FileSession] = {
            f"{way} | {name}": kind(file.content, threads=threads)
            for way, file in files.items()
            for name, kind in (("onnxruntime", OnnxSession), ("OpenVINO", OpenVinoSession))
        }
        for length in args.lengths:
            batch = build_fixed_batch(config, 1, length)
            ids = batch.input_ids[None]

            def reference(_: int, ids: torch.Tensor = ids) -> None:
                with torch.inference_mode():
                    theirs(input_ids=ids, attention_mask=torch.ones_like(ids))

            ways: dict[str, Call] = {"Hugging Face eager fp32 | torch": reference}
            ways |= {name: lambda _, s=session, b=batch: s.run(b) for name, session in sessions.items()}
            figures = in_turns(ways, args.rounds, args.clock, warmup=3)
            plain = next(f.ratio for f in figures if f.way == f"{FLOAT} | onnxruntime")
            for f in figures:
                told = f"{f.milliseconds:.2f} | {f.ratio:.2f} | {f.ratio / plain:.2f}"
                print(f"| {f.way} | {length} | {threads} | {told} |", flush=True)


if __name__ == "__main__":
    main()
