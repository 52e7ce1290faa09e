"""The flags that commands share, declared once: groups of them, and makers of single ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from compress import registry
from compress.cli._help import Option
from compress.cli._types import (
    ClusterAddress,
    DataName,
    HubName,
    IntRange,
    LabelNames,
    ModelName,
    RecipeName,
    TaskName,
    TeacherName,
    ThreadCount,
    WorkerCount,
)
from compress.cli.main import debug_option
from compress.errors import UserError

Function = TypeVar("Function", bound=Callable[..., Any])


def list_tasks() -> list[str]:
    """The kinds of tasks, as --task names them."""
    return [kind.replace("_", "-") for kind in registry.parts("compress.data.tasks")]


_OVERRIDES = (
    click.option(
        "--set",
        "set_",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a value of the recipe, e.g. stages.0.training.epochs=1; repeatable. Stages count from 0, as in "
        "--dry-run and progress; their names work too: stages.1-distill, or stages.distill where it is the only one.",
    ),
    click.option("--seed", type=int, help="Random seed of data order, masking and new weights."),
)

_DEVICE = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Device to compute on; auto: the GPU if there is one.",
)

_PRECISION = click.option(
    "--precision",
    type=click.Choice(["auto", "fp32", "bf16"]),
    help="Compute precision (default: the recipe's, else auto: of training, bf16 where the device has it; of finished "
    "models, bf16 on a GPU that has it, else fp32).",
)

_DETERMINISTIC = click.option(
    "--deterministic",
    is_flag=True,
    help="GPU: repeat results bit for bit on the same GPU model and versions. Slower: deterministic kernels, no TF32.",
)


def threads_option(text: str = "Number of CPU threads (default: torch's).", *, measured: bool = False) -> Any:
    """--threads; measured: also `auto`.  text: its help."""
    return click.option(
        "--threads", type=ThreadCount(measured=measured), metavar="N|auto" if measured else "N", help=text
    )


def _require_output(context: click.Context, option: click.Parameter, folder: Path | None) -> Path:
    if folder is None and not context.resilient_parsing:
        raise UserError("an output folder is required", where="--output", do="add --output FOLDER")
    return cast(Path, folder)


def required_output() -> Any:
    """--output of a command that has no folder of its own to write to: it is asked for before anything is read."""
    how: dict[str, Any] = {"type": click.Path(path_type=Path), "metavar": "FOLDER", "callback": _require_output}
    return click.option("--output", help="Output folder (required).", **how)


def worker_options(workers: str, on: str, section: str = "training") -> tuple[Any, ...]:
    """--workers and --on: where several jobs are done. workers, on: their help.  section: of `_help.SECTIONS`."""
    how: dict[str, Any] = {"cls": Option, "section": section}
    return (
        click.option("--workers", type=WorkerCount(), metavar="N|auto", help=workers, **how),
        click.option("--on", type=ClusterAddress(), metavar="ray|ray://HOST:PORT", help=on, **how),
    )


RUNTIMES = ("torch", "torch-int8", "torch-sparse", "torch-graph", "torch-compile", "torchao-int8", "torchao-fp8")
RUNTIMES += ("onnxruntime", "openvino", "onnxruntime-cuda", "onnxruntime-tensorrt")


def _runtime(choices: Sequence[str], more: str) -> Any:
    """torch, or what reads the model.onnx of a folder."""
    text = (
        "Runtime that computes the predictions. torch: floats, which simulate a quantized model; torch-int8: integers "
        "of a quantized model, on the CPU; torch-sparse: skips the zeros of a 2:4 sparse model, in bf16, on CUDA "
        "capability 8.0 or more; torch-graph: torch with CUDA graphs for small batches; torch-compile: "
        "compiled; torchao-int8, torchao-fp8: compiled, with 8-bit products; onnxruntime, openvino: the model.onnx of "
        "`compress export`; onnxruntime-cuda, onnxruntime-tensorrt (experimental): the same on a GPU"
    )
    usual = "Default: torch; for a quantized model, its ONNX file."
    return click.option("--runtime", type=click.Choice(choices), help=f"{text}{more}. {usual}")


_PRINT_RECIPE = click.option(
    "--print-recipe",
    is_flag=True,
    help="Print the recipe with all flags applied as YAML, to save and edit; run nothing. With --dry-run: below "
    "the plan.",
)

GROUPS: Mapping[str, tuple[Any, ...]] = {
    "recipe": (
        click.option("--recipe", type=RecipeName(), help="A recipe's name, or the path of your own recipe file."),
        *_OVERRIDES,
        _PRINT_RECIPE,
    ),
    "print_recipe": (_PRINT_RECIPE,),
    "overrides": _OVERRIDES,
    "corpus": (
        click.option(
            "--corpus",
            type=DataName(),
            metavar="TEXT",
            help="Plain text: a file or folder (also s3://BUCKET/KEY), a built-in corpus, or hf:name.",
        ),
    ),
    "data": (
        click.option(
            "--data",
            type=DataName(),
            metavar="DATA",
            help="Dataset: a built-in one, a file or folder (jsonl, csv, parquet, arrow; also s3://BUCKET/KEY), or "
            "hf:name.",
        ),
        click.option("--text-column", metavar="NAME", help="Column of the text (default: inferred)."),
        click.option("--text-pair-column", metavar="NAME", help="Column of the second text of a pair."),
        click.option("--label-column", metavar="NAME", help="Column of the label (default: inferred)."),
        click.option(
            "--labels",
            type=LabelNames(),
            metavar="NAME,NAME",
            help="Label names in the order of their ids, such as negative,positive (default: inferred).",
        ),
        click.option(
            "--task",
            type=TaskName(list_tasks),
            metavar="KIND",
            help=f"Task of the data (default: inferred). Values: {', '.join(list_tasks())}.",
        ),
        click.option(
            "--bad-tags",
            type=click.Choice(["refuse", "repair"]),
            help="What to do with tags that their scheme does not allow, such as I- without B- (default: refuse).",
        ),
        click.option(
            "--bad-rows",
            type=click.Choice(["refuse", "drop"]),
            help="What to do with rows without text or label, or with labels that do not fit (default: refuse).",
        ),
        click.option(
            "--no-answer-threshold",
            type=float,
            help='Question answering: margin by which "no answer" must exceed the best span (default: the model\'s).',
        ),
        click.option(
            "--max-length",
            type=int,
            help="Maximum sequence length in tokens; longer texts are truncated. Default: that of the model "
            "that is compressed, of `finetune` what keeps 99 % of the training texts whole, else the recipe's.",
        ),
        click.option(
            "--long-text",
            type=click.Choice(["cut", "chunk"]),
            help="Classification: truncate longer texts (cut), or read them in chunks and pool the logits (chunk).",
        ),
        click.option(
            "--stride",
            type=int,
            help="Tokens that neighbouring chunks or windows overlap by (default: a third of their length).",
        ),
        click.option(
            "--pooling", type=click.Choice(["mean", "max"]), help="How chunk logits are pooled (default: mean)."
        ),
        click.option("--limit", type=int, help="Maximum number of rows of each split."),
        click.option(
            "--labelled-rows",
            type=int,
            help="Number of training rows whose labels are used; the others become unlabelled rows.",
        ),
        click.option(
            "--metric",
            metavar="NAME",
            help="Main metric, such as f1_macro (default: the model's, else the task's usual one).",
        ),
    ),
    "unlabelled": (
        click.option(
            "--unlabelled",
            type=DataName(),
            help="Text without labels, which the teacher labels: a file (lines of text, jsonl, csv, parquet), a "
            "folder, s3://BUCKET/KEY or hf:name.",
        ),
        click.option(
            "--unlabelled-rows", type=int, metavar="N", help="Maximum number of unlabelled rows, drawn at random."
        ),
        click.option(
            "--pool",
            type=DataName(),
            help="Large plain text (as --corpus) from which the passages nearest to the training rows are taken as "
            "unlabelled rows.",
        ),
        click.option("--pool-rows", type=int, help="Number of rows from --pool (default: ten per training row)."),
        click.option(
            "--pool-by",
            type=click.Choice(["words", "vectors"]),
            help="Compare passages of --pool by shared words or by the teacher's vectors (slower; default: words).",
        ),
        click.option(
            "--allow-overlap",
            is_flag=True,
            default=None,
            help="Also train on unlabelled rows whose text is in the validation or test split.",
        ),
    ),
    "model": (click.option("--model", type=ModelName(), help="The model folder to start from."),),
    "teacher": (
        click.option(
            "--teacher",
            type=TeacherName(),
            multiple=True,
            help="Teacher: a model folder, or a recipe that makes it; repeat for several teachers.",
        ),
    ),
    "teacher_columns": (
        click.option(
            "--teacher-column",
            metavar="NAME",
            multiple=True,
            help="Column in which a teacher labelled the rows, instead of a teacher model: a value for each class, or "
            "the vector of a text; repeat for one column per class, dimension or annotator.",
        ),
        click.option(
            "--teacher-values",
            type=click.Choice(["probabilities", "logits", "scores", "labels"]),
            help="What the teacher columns hold (default: inferred).",
        ),
        click.option(
            "--teacher-noise",
            type=float,
            metavar="SHARE",
            help="Teacher columns with labels: share of them that is wrong, such as 0.1.",
        ),
    ),
    "compute": (_DEVICE, _PRECISION, threads_option()),
    "training_compute": (
        _DEVICE,
        _PRECISION,
        threads_option(
            "Number of CPU threads (default: torch's); auto: training measures a few steps with one thread and with "
            "all, and keeps the faster.",
            measured=True,
        ),
    ),
    "device": (_DEVICE, threads_option()),
    "deterministic": (_DETERMINISTIC,),
    "runtime": (_runtime(RUNTIMES, ""),),
    "any_runtime": (_runtime([*RUNTIMES, "auto"], "; auto: the fastest runtime on this machine whose outputs match"),),
    "onnx": (
        click.option(
            "--onnx/--no-onnx",
            default=None,
            help="Quantized models: write model.onnx and measure it (default: if the extra onnx is installed).",
        ),
    ),
    "output": (
        click.option("--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Output folder."),
        click.option("--resume", is_flag=True, help="Resume the run in the output folder."),
        click.option("--dry-run", is_flag=True, help="Print the data's sizes and the plan of each stage; run nothing."),
    ),
    "several": (
        click.option(
            "--sweep",
            multiple=True,
            metavar="KEY=V1,V2",
            help="Make a run for each of these values of the recipe, e.g. stages.0.training.learning_rate=1e-4,3e-4; "
            "repeat for all combinations; with --seeds, each of them with N seeds.",
        ),
        *worker_options(
            "Make several runs (--seeds, --sweep, comparisons), or the teacher cache of one run, in N processes at "
            "once, which share the CPUs; auto: one for each CPU (default: one after the other, in this process).",
            "Make several runs, or the teacher cache of one run, on a Ray cluster (extra ray); ray: on this machine, "
            "or on the cluster of RAY_ADDRESS. With --workers: at most N at once.",
        ),
    ),
    "trainings": worker_options(
        "--train: train N candidates or trials at once, in processes that share the CPUs; auto: one for each CPU "
        "(default: one after the other, in this process).",
        "--train: train candidates or trials on a Ray cluster (extra ray); ray: on this machine, or on the cluster of "
        "RAY_ADDRESS. With --workers: at most N at once.",
    ),
    "push": (
        click.option(
            "--push",
            type=HubName(),
            metavar="hf:ORG/NAME",
            help="Also upload the model folder to this repository of the Hugging Face Hub.",
        ),
        click.option("--push-private", is_flag=True, help="--push: create the repository as a private one."),
    ),
    "store": (
        click.option(
            "--tracking-uri", metavar="URI", help="MLflow store (default: MLFLOW_TRACKING_URI, else mlruns/mlflow.db)."
        ),
    ),
    "experiment": (click.option("--experiment", metavar="NAME", help="MLflow experiment to log into."),),
    "display": (
        click.option("--json", is_flag=True, help="Print the result as one JSON document."),
        click.option("--quiet", "-q", is_flag=True, help="Print no notes and no progress."),
        debug_option,
    ),
}


def split_option(text: str, splits: Sequence[str] = ("test", "validation", "train")) -> Callable[[Function], Function]:
    """--split, of commands that read one split of --data; the first of `splits` by default. text: its help."""
    return click.option("--split", type=click.Choice(splits), default=splits[0], show_default=True, help=text)


length_option = click.option(
    "--length",
    type=IntRange(3, 1_000_000),
    help="Measure latency on sequences of this many tokens, without tokenization (default: on texts of the data).",
)
"""Of commands that measure latency on labelled data."""

bootstrap_option = click.option(
    "--bootstrap",
    type=IntRange(100, 100_000),
    default=1000,
    show_default=True,
    help="Number of bootstrap resamples.",
)
"""Of commands that report 95 % intervals."""


def slice_options(function: Function) -> Function:
    """--slices and --slice, of commands that report quality by groups of rows."""
    named = click.option(
        "--slice",
        "sliced",
        multiple=True,
        metavar="COLUMN",
        help="Report only these groups: length, label, or a column of the data; repeatable.",
    )
    usual = "Also report quality by groups of rows: by length, label and source (if there is such a column)."
    return click.option("--slices", is_flag=True, help=usual)(named(function))


def group_option(function: Function) -> Function:
    """--group-column, of commands that compare the groups of one column with each other."""
    return click.option(
        "--group-column",
        metavar="COLUMN",
        help="Report quality for each value of this column, such as a language or a gender, and the gaps between them.",
    )(function)
