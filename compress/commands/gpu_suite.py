"""`compress benchmark --suite gpu`: one run that measures a GPU: its ceilings, inference, training steps.

Predictions stand beside the measurements: `evaluation.cost.roofline`, with the ceilings that were measured on the same
device. Random weights and tokens: time depends on their number alone.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from compress.console import Console
from compress.contracts import Batch, Needs, RunOptions, TrainingPlan
from compress.data.batches.examples import pack
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.layer_maps import ModelPair
from compress.encoder.infer.compiled import prepare_compiled
from compress.encoder.infer.graphs import WARM_UPS, GraphedModel, prepare_graphed
from compress.encoder.infer.prepare import prepare
from compress.encoder.kernels import add_norm
from compress.encoder.modules.model import Model
from compress.errors import ExitCode, UserError, is_out_of_memory, printable
from compress.objectives import attention_maps, cosine_hidden, embeddings, hard_labels, hidden_mse, masked_lm
from compress.objectives import soft_targets as soft
from compress.onnx.gpu_session import open_on_gpu, require_provider
from compress.onnx.runtimes import Runtime
from compress.storage import atomic
from compress.training import precision
from compress.training.gpu import find_obstacle
from compress.training.graphed import GraphedSteps
from compress.training.module import StageModule
from compress.training.optimizer import Optimizer
from evaluation.cost import gpu, roofline
from evaluation.cost.device import describe
from evaluation.cost.energy import find_counters, measure_energy

FORMAT = 1
SETS = 4
"""Batches of a case, taken in turn."""
LOSSES = ("task", "triple", "TinyBERT")
MASKED = 7
"""One token in so many is masked."""


@dataclass(frozen=True)
class Sizes:
    """What is measured. teacher, student: layers.  lookups: (rows, tokens of each; 0: mixed) of inference.  steps:
    the same of training.  matrix, copied: of the ceilings.  seconds: after which no further case begins."""

    teacher: int = 12
    student: int = 6
    hidden: int = 768
    heads: int = 12
    vocabulary: int = 30_522
    positions: int = 512
    lookups: tuple[tuple[int, int], ...] = ((1, 128), (32, 128), (32, 0))
    steps: tuple[tuple[int, int], ...] = ((32, 25), (64, 128), (256, 128))
    matrix: int = 8192
    copied: int = 1 << 29
    rounds: int = 20
    energy_seconds: float = 2.0
    seconds: float = 540.0

    def shape(self, layers: int) -> roofline.Shape:
        """Of a model with so many layers."""
        return roofline.Shape(layers, self.hidden, 4 * self.hidden, self.heads, self.vocabulary)


@dataclass
class Figure:
    """One case in one way. predicted_ms: by the roofline.  waits: of the host, in one call.  mfu: share of the
    device's measured products that the model's own products used.  why: it was not measured."""

    kind: str
    case: str
    way: str
    tokens: int = 0
    predicted_ms: float | None = None
    device_ms: float | None = None
    host_ms: float | None = None
    spread: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    waits: int | None = None
    peak_mb: float | None = None
    joules: float | None = None
    why: str = ""


@dataclass
class Report:
    """device, state: what it was measured on, and how that was before.  ceilings: measured."""

    device: Mapping[str, str]
    state: Mapping[str, float]
    ceilings: roofline.Ceilings
    figures: list[Figure] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """What is written."""
        kept = [{k: v for k, v in asdict(f).items() if v not in (None, "")} for f in self.figures]
        about = {"format": FORMAT, "device": dict(self.device), "state": dict(self.state)}
        return {**about, "ceilings": asdict(self.ceilings), "figures": kept}


def benchmark_gpu(options: RunOptions, output: Path, sizes: Sizes | None = None) -> Report:
    """Measure everything on the GPU; one table, and one JSON at `output`, which is written after each case.

    sizes: None for those of BERT-base. Raises UserError without a GPU.
    """
    if options.device != "cuda":
        obstacle = find_obstacle()
        raise UserError(
            "the suite measures a GPU",
            where="--suite gpu",
            why=None if obstacle is None else obstacle.why,
            do="run it with --device cuda on a machine with one",
            code=ExitCode.ENVIRONMENT,
        )
    console = Console(quiet=options.quiet, json=options.json)
    sizes = sizes or Sizes()
    begun = time.monotonic()
    console.note("measuring the ceilings: a matrix product, a copy, launches")
    device = {**describe("cuda"), "cuda": str(torch.version.cuda)}
    report = Report(device, gpu.read_state(), gpu.measure_ceilings(sizes.matrix, sizes.copied))
    for name, measure in _list_cases(sizes, report.ceilings):
        if time.monotonic() - begun > sizes.seconds:
            console.warn(f"no time left for {name} and what follows it")
            break
        console.note(name)
        report.figures += measure()
        atomic.write_json(output, report.as_json())
    console.table(f"{device['device']}, bf16", COLUMNS, [_cells(f) for f in report.figures])
    c = report.ceilings
    console.note(f"ceilings: {c.flops / 1e12:.0f} TFLOP/s, {c.bytes / 1e12:.2f} TB/s, {c.launch * 1e6:.1f} µs a launch")
    console.document(report.as_json())
    console.note(f"written to {output}")
    return report


COLUMNS = ("case", "way", "predicted ms", "measured ms", "host ms", "tokens/s", "MFU", "waits", "peak MB", "joules")


def _cells(f: Figure) -> list[str]:
    def cell(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    return [
        *(f.case, f.way, cell(f.predicted_ms, ".2f"), f.why or cell(f.device_ms, ".2f"), cell(f.host_ms, ".2f")),
        *(cell(f.tokens_per_second, ",.0f"), cell(f.mfu, ".0%"), cell(f.waits, "d")),
        *(cell(f.peak_mb, ",.0f"), cell(f.joules, ".3g")),
    ]


Case = tuple[str, Callable[[], list[Figure]]]


def _list_cases(sizes: Sizes, ceilings: roofline.Ceilings) -> Iterator[Case]:
    """Training first: of what is cut off when the time is over, inference can be measured by other commands too."""
    for loss in LOSSES:
        for rows, length in sizes.steps:
            name = f"{loss}, {rows} x {length}"
            yield f"training step: {name}", lambda o=(loss, rows, length, name): _measure_step(*o, sizes, ceilings)
    for rows, length in sizes.lookups:
        name = f"{rows} x {length or 'mixed'}"
        yield f"inference: {name}", lambda o=(rows, length, name): _measure_inference(*o, sizes, ceilings)


def build_batches(sizes: Sizes, rows: int, length: int, *, masked: bool = False) -> list[Batch]:
    """`SETS` batches on the host. length: 0 for lengths like those of short reviews, which all sets share."""
    lengths = np.full(rows, length)
    if not length:
        drawn = np.exp(np.random.default_rng(0).normal(3.12, 0.44, rows)).round()
        lengths = np.sort(np.clip(drawn, 8, min(128, sizes.positions))).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total, found = int(offsets[-1]), []
    for seed in range(SETS):
        random = np.random.default_rng(seed)
        ids, zeros = random.integers(5, sizes.vocabulary, total), np.zeros(total, dtype=np.uint8)
        at = np.arange(0, total, MASKED) if masked else None
        labels = None if masked else random.integers(0, 2, rows)
        found.append(
            pack(
                ids, offsets, segments=zeros, special=zeros > 0, row_ids=np.arange(rows), labels=labels,
                mlm_positions=at, mlm_labels=None if at is None else ids[at],
            )
        )  # fmt: skip
    return found


def build_model(sizes: Sizes, layers: int, head: HeadConfig) -> Model:
    """On the GPU; attention without dropout, so that it runs over real tokens only."""
    config = EncoderConfig.uniform(
        vocabulary=sizes.vocabulary, hidden=sizes.hidden, layers=layers, heads=sizes.heads,
        feed_forward=4 * sizes.hidden, max_positions=sizes.positions, dropout=0.1, attention_dropout=0.0,
        pooler=head.kind == "classification",
    )  # fmt: skip
    return Model(config, {head.name: head}).initialize(layers).to("cuda")


# --- training -----------------------------------------------------------------------------------------------------


RATE = 1e-5


@dataclass(frozen=True)
class _Training:
    """Teacher, student and losses, and the optimizer of the student; batches on the host."""

    stage: StageModule
    optimizer: Optimizer
    batches: Sequence[Batch]

    def compute(self, batch: Batch) -> torch.Tensor:
        """What the training loop does in a step of one micro-batch on the device; returns the loss."""
        self.optimizer.clear()
        with precision.autocast("bf16", torch.device("cuda")):
            terms = self.stage(batch)
        total = torch.stack([term.value * term.weight for term in terms.values()]).sum()
        total.backward()
        self.optimizer.step(total.detach())
        return total.detach()

    def launch(self, number: int) -> None:
        """One step."""
        self.optimizer.set_rate(RATE)
        self.compute(self.batches[number % SETS].to("cuda"))


def build_training(loss: str, sizes: Sizes, batches: Sequence[Batch]) -> _Training:
    """On the GPU. loss: one of LOSSES."""
    head = HeadConfig("classification", labels=2) if loss == "task" else HeadConfig("masked_lm")
    teacher, student = build_model(sizes, sizes.teacher, head), build_model(sizes, sizes.student, head).train()
    every = sizes.teacher // sizes.student
    layers = tuple((n, every * n + every - 1) for n in range(sizes.student))
    parts: dict[str, list[tuple[float, Any]]] = {
        "task": [(1.0, soft.Objective(on="task")), (1.0, hard_labels.Objective())],
        "triple": [
            (5.0, soft.Objective(on="vocabulary")), (2.0, masked_lm.Objective()), (1.0, cosine_hidden.Objective()),
        ],
        "TinyBERT": [(1.0, attention_maps.Objective()), (1.0, hidden_mse.Objective()), (1.0, embeddings.Objective())],
    }  # fmt: skip
    for _, objective in parts[loss]:
        objective.bind(ModelPair(student.config, teacher.config, layers))
    named = {f"{n}": part for n, part in enumerate(parts[loss])}
    stage = StageModule(student, named, prepare(teacher, "bf16")).to("cuda").train()
    return _Training(stage, Optimizer(stage, TrainingPlan(steps=1, learning_rate=RATE)), batches)


def build_replayed(loss: str, sizes: Sizes, batches: Sequence[Batch]) -> gpu.Call:
    """The same steps as CUDA graphs, of batches of one shape. Raises RuntimeError where they cannot be captured."""
    made, device = build_training(loss, sizes, batches), torch.device("cuda")
    made.optimizer.keep_rate_on(device)
    graphs = GraphedSteps(
        lambda batch, totals: {"loss": made.compute(batch)},
        lambda few, totals: {"loss": made.compute(few[0].to(device))},
        device,
        lambda line: None,
    )

    def step(number: int) -> None:
        batch = batches[number % SETS].stage(device)
        made.optimizer.set_rate(RATE)
        graphs.make_step([batch], made.stage.counts(batch))

    for number in range(WARM_UPS + 1):
        step(number)
    if not graphs.replays:
        raise RuntimeError("the step could not be captured")
    return step


KERNELS = {
    True: {"task": (120, 78), "triple": (181, 78), "TinyBERT": (64, 119)},
    False: {"task": (117, 88), "triple": (180, 88), "TinyBERT": (61, 129)},
}
"""Whether residual and norm are one kernel → loss → launches of a step beside those of the teacher's layers, and for
each layer of the student; counted on the simulated device (tests/simcuda)."""


def count_kernels(loss: str, sizes: Sizes, *, fused: bool) -> int:
    """Launches of a training step on rows of one length. fused: whether residual and norm are one kernel."""
    rest, each = KERNELS[fused][loss]
    return rest + (roofline.LAYER_KERNELS - roofline.FUSED * fused) * sizes.teacher + each * sizes.student


def is_fused(sizes: Sizes, tokens: int) -> bool:
    """Whether residual and norm are one kernel where so many tokens are launched."""
    return tokens * sizes.hidden >= add_norm.SMALLEST


def predict_step(loss: str, sizes: Sizes, rows: int, length: int, ceilings: roofline.Ceilings) -> roofline.Prediction:
    """Of one training step of `rows` sequences."""
    tokens = rows * length
    fused = is_fused(sizes, tokens)
    work = roofline.count_training(
        sizes.shape(sizes.teacher), sizes.shape(sizes.student), tokens, length,
        masked=tokens // MASKED if loss == "triple" else 0, on_words=loss == "triple", maps=loss == "TinyBERT",
        kernels=count_kernels(loss, sizes, fused=fused), fused=fused,
    )  # fmt: skip
    return roofline.predict(work, ceilings)


def _measure_step(
    loss: str, rows: int, length: int, name: str, sizes: Sizes, ceilings: roofline.Ceilings
) -> list[Figure]:
    predicted = predict_step(loss, sizes, rows, length, ceilings)
    batches = build_batches(sizes, rows, length, masked=loss != "task")
    ways: Ways = {
        "compress": lambda: build_training(loss, sizes, batches).launch,
        "compress, CUDA graph": lambda: build_replayed(loss, sizes, batches),
    }
    with precision.allow_tf32("bf16", torch.device("cuda")):
        return _measure_ways(ways, "training", name, rows * length, predicted, sizes, ceilings)


# --- inference ----------------------------------------------------------------------------------------------------


def _measure_inference(rows: int, length: int, name: str, sizes: Sizes, ceilings: roofline.Ceilings) -> list[Figure]:
    batches = build_batches(sizes, rows, length)
    tokens = batches[0].tokens
    work = roofline.count_forward(sizes.shape(sizes.teacher), tokens, tokens / rows, fused=is_fused(sizes, tokens))
    predicted = roofline.predict(work, ceilings)
    model = build_model(sizes, sizes.teacher, HeadConfig("classification", labels=2)).eval()
    on_device = [batch.to("cuda") for batch in batches]
    ways: Ways = {
        "Hugging Face SDPA": lambda: _hugging_face(sizes, batches),
        "compress": lambda: _ours(prepare(model, "bf16"), on_device),
        "compress, compiled": lambda: _ours(prepare_compiled(model, "bf16"), on_device),
        "compress, CUDA graph": lambda: _ours(_capture(model, on_device), on_device),
        "onnxruntime CUDA": lambda: _in_file(model, batches, "onnxruntime-cuda"),
        "TensorRT": lambda: _in_file(model, batches, "onnxruntime-tensorrt"),
    }
    return _measure_ways(ways, "inference", name, tokens, predicted, sizes, ceilings)


def _ours(ready: Any, batches: Sequence[Batch]) -> gpu.Call:
    needs = Needs(logits=True)
    return lambda number: ready(batches[number % SETS], needs)


def _in_file(model: Model, batches: Sequence[Batch], runtime: Runtime) -> gpu.Call:
    """The model's ONNX file in onnxruntime on the GPU, of batches that are there. Raises UserError without one."""
    require_provider(runtime)
    from compress.onnx.encoder import encode

    content = encode(copy.deepcopy(model).cpu(), "task").SerializeToString()
    session = open_on_gpu(content, runtime)
    loaded = [session.load(batch) for batch in batches]
    return lambda number: session.answer(loaded[number % SETS])


def _capture(model: Model, batches: Sequence[Batch]) -> GraphedModel:
    """The runtime torch-graph, ready for these batches. Raises RuntimeError where a capture fails."""
    ready = prepare_graphed(model, "bf16")
    for batch in batches:
        if ready.capture(batch) is None:
            raise RuntimeError("too large for a graph")
    return ready


def _hugging_face(sizes: Sizes, batches: Sequence[Batch]) -> gpu.Call:
    """A classifier of transformers with SDPA in bf16, rows padded to the longest."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.hidden, num_hidden_layers=sizes.teacher,
        num_attention_heads=sizes.heads, intermediate_size=4 * sizes.hidden, max_position_embeddings=sizes.positions,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    model = cast(Any, transformers.BertForSequenceClassification(config)).eval().bfloat16().to("cuda")
    padded = []
    for batch in batches:
        ids = torch.nn.utils.rnn.pad_sequence(
            list(batch.input_ids.split(batch.cu_seqlens.diff().tolist())), batch_first=True
        )
        seen = torch.arange(ids.shape[1])[None] < batch.cu_seqlens.diff()[:, None]
        padded.append((ids.to("cuda"), seen.long().to("cuda")))

    def call(number: int) -> None:
        ids, mask = padded[number % SETS]
        with torch.inference_mode():
            model(ids, attention_mask=mask)

    return call


# --- both ---------------------------------------------------------------------------------------------------------


Ways = Mapping[str, Callable[[], gpu.Call]]
"""Way → what makes it ready."""


def _measure_ways(
    ways: Ways,
    kind: str,
    case: str,
    tokens: int,
    predicted: roofline.Prediction,
    sizes: Sizes,
    ceilings: roofline.Ceilings,
) -> list[Figure]:
    """A figure of each way, one after the other. The prediction is of ours."""
    found = []
    for way, build in ways.items():
        figure = Figure(kind, case, way, tokens, predicted.ms if way.startswith("compress") else None)
        _measure(figure, build, predicted, sizes, ceilings)
        found.append(figure)
    return found


def _measure(
    figure: Figure,
    build: Callable[[], gpu.Call],
    predicted: roofline.Prediction,
    sizes: Sizes,
    ceilings: roofline.Ceilings,
) -> None:
    """Fill in the figure of what `build` gives; of what cannot be built or run, the reason."""
    try:
        torch.cuda.reset_peak_memory_stats()
        call = build()
        found = gpu.time_in_turns({figure.way: call}, sizes.rounds)[figure.way]
        figure.device_ms, figure.host_ms, figure.spread = found.device, found.host, found.spread
        figure.tokens_per_second = 1e3 * figure.tokens / max(found.device, found.host)
        figure.mfu = predicted.flops / ceilings.flops / (max(found.device, found.host) / 1e3)
        figure.waits = gpu.count_waits(call)
        figure.peak_mb = torch.cuda.max_memory_allocated() / 1e6
        counters = find_counters("cuda").found
        figure.joules = measure_energy(
            lambda: (call(0), torch.cuda.synchronize()), counters, seconds=sizes.energy_seconds
        )
    except Exception as error:  # a runtime that fails leaves the others their figures
        what = error.what if isinstance(error, UserError) else str(error).partition("\n")[0]
        why = "out of memory" if is_out_of_memory(error) else printable(what, 60)
        figure.why = why or type(error).__name__
    finally:
        torch.cuda.empty_cache()
