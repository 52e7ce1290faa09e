"""Flags that commands share, declared once, gathered into one `RunOptions`.

    @click.command(cls=Command)
    @shared("recipe", "data", "teacher", "compute", "output", "store", "experiment")
    def command(options: RunOptions) -> None: ...

A flag that is a value of the recipe (--seed, --data, --teacher …) becomes an override that blames that flag.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from compress import registry
from compress.cli._help import Command as Command
from compress.cli._help import Option as Option
from compress.cli._help import check_values
from compress.cli.main import debug_option

if TYPE_CHECKING:
    from compress.contracts import Override, RunOptions
    from compress.data.reading.remote import Place

Function = TypeVar("Function", bound=Callable[..., Any])

DATA_ANSWERS = (
    "task", "text_column", "text_pair_column", "label_column",
    "train_split", "validation_split", "test_split", "unlabelled_split", "unlabelled", "labels",
    "labelled_rows", "unlabelled_rows", "pool", "pool_rows", "pool_by", "teacher_columns", "teacher_values",
    "teacher_noise",
)  # fmt: skip
"""Keys of `data:` that describe one source and say nothing about another."""


class Names(click.ParamType):
    """A name out of a list, which the shell completes. several: a list of them with commas between."""

    name = "name"

    def __init__(self, known: Callable[[], Sequence[str]], *, several: bool = False) -> None:
        self.known, self.several = known, several

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",") if self.several else ("", "", incomplete)
        return [CompletionItem(f"{before}{comma}{name}") for name in self.known() if name.startswith(last)]


class TaskName(Names):
    """The kind of a task."""

    def check(self, value: str, flag: str) -> None:
        """Raises UserError for a name that no task has."""
        from compress.errors import UserError, did_you_mean

        if value not in self.known():
            raise UserError(f"unknown task '{value}'", where=flag, do=did_you_mean(value, self.known()))


class DataName(click.ParamType):
    """Data: an embedded set, a file, a folder, or hf:name."""

    name = "data"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from compress.data.reading.names import list_embedded_names

        found = [CompletionItem(name) for name in list_embedded_names() if incomplete and name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]

    def check(self, value: str, flag: str) -> None:
        """Raises UserError for a path where nothing is."""
        from compress.data.reading.names import require_there

        require_there(value)


class InputPlace(click.Path):
    """A file or folder to read, here or in an object store (s3://bucket/key); - is standard input."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:  # type: ignore[override]
        """Raises UserError for an address that contains keys."""
        from compress.data.reading.remote import parse_place

        return parse_place(os.fspath(value))

    def check(self, value: Place, flag: str) -> None:
        """Raises UserError where there is no such file."""
        from compress.data.reading.names import make_missing_error
        from compress.errors import UserError

        if str(value) == "-" or value.exists():
            return
        if isinstance(value, Path):
            raise make_missing_error(value)
        raise UserError("no such file or folder in the store", where=flag, why=str(value))


class RecipeName(click.ParamType):
    """A shipped recipe's name, or the path of a recipe file."""

    name = "recipe"

    def check(self, value: str, flag: str) -> None:
        """Raises UserError where there is no such recipe."""
        from compress.recipe.library import find_recipe

        find_recipe(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from compress.recipe.library import is_path, names

        if is_path(incomplete) or incomplete.startswith((".", "~")):
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(name) for name in names() if name.startswith(incomplete)]


class ModelName(click.ParamType):
    """A model folder, or a name that means one (hf:…, runs:/…, models:/…)."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="dir")]

    def check(self, value: str, flag: str) -> None:
        """Raises UserError for a path where nothing is."""
        from compress.modelfolder.resolve import require_there

        require_there(value)


class RunOrModel(ModelName):
    """A run of the store or a model: only the store says whether it is there."""

    def check(self, value: str, flag: str) -> None:
        """Nothing is wrong with it yet."""


class HubName(click.ParamType):
    """A repository of the Hugging Face Hub to write to: `hf:org/name`."""

    name = "hf:org/name"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from compress.modelfolder.push import parse_repository

        return parse_repository(str(value))


class Duration(click.ParamType):
    """Seconds, from a time such as 90s, 10m or 2h."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip().lower()
        scale = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:], 1.0)
        try:
            seconds = float(text.rstrip("smh")) * scale
        except ValueError:
            self.fail(f"'{value}' is not a time, such as 90s, 10m or 2h", param, ctx)
        if not 0 < seconds < float("inf"):
            self.fail(f"'{value}' is not a time limit; give one above 0, such as 10m", param, ctx)
        return seconds


class Milliseconds(click.ParamType):
    """A time such as 5ms or 5."""

    name = "ms"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip().lower().removesuffix("ms").strip()
        try:
            return float(text)
        except ValueError:
            self.fail(f"'{value}' is not a time in milliseconds, such as 5ms", param, ctx)


class Amount(click.ParamType):
    """A number such as 12M, 1.5G or 12000000, or a share of the model's such as 50%."""

    name = "amount"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        scale = {"%": 0.01, "k": 1e3, "m": 1e6, "g": 1e9}.get(text[-1:].lower(), 1.0)
        try:
            return float(text[:-1] if scale != 1 else text) * scale
        except ValueError:
            self.fail(f"'{value}' is not an amount, such as 12M, 1.5G or 50%", param, ctx)


class LabelNames(click.ParamType):
    """Names with commas between."""

    name = "labels"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        names = [name.strip() for name in str(value).split(",")]
        if not all(names):
            self.fail(f"'{value}' has an empty name; give names such as negative,positive", param, ctx)
        return names


MILLISECONDS, AMOUNT = Milliseconds(), Amount()


class TeacherName(ModelName):
    """A model, or the name of a recipe that makes one."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from compress.recipe.library import names

        recipes = [CompletionItem(name) for name in names() if incomplete and name.startswith(incomplete)]
        return recipes or super().shell_complete(ctx, param, incomplete)

    def check(self, value: str, flag: str) -> None:
        """Raises UserError for a name that is neither a recipe nor a path where something is."""
        from compress.modelfolder.resolve import require_teacher

        require_teacher(value)


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


class ThreadCount(click.IntRange):
    """A number of CPU threads. measured: whether `auto` is one, as of commands that train."""

    def __init__(self, *, measured: bool = False) -> None:
        super().__init__(1, 4096)
        self.measured, self.name = measured, "number, or auto" if measured else "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises click.BadParameter."""
        if value != "auto":
            return super().convert(value, param, ctx)
        if self.measured:
            return "auto"
        self.fail("auto compares training steps, so only the commands of recipes take it; give a number", param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem("auto")] if self.measured and "auto".startswith(incomplete) else []


def threads_option(text: str = "Number of CPU threads (default: torch's).", *, measured: bool = False) -> Any:
    """--threads; measured: also `auto`.  text: its help."""
    return click.option(
        "--threads", type=ThreadCount(measured=measured), metavar="N|auto" if measured else "N", help=text
    )


class WorkerCount(click.IntRange):
    """A number of worker processes, or `auto`: one for each CPU."""

    name = "number, or auto"

    def __init__(self) -> None:
        super().__init__(1, 1024)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises click.BadParameter."""
        return value if value == "auto" else super().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem("auto")] if "auto".startswith(incomplete) else []


class ClusterAddress(click.ParamType):
    """Where runs are made: `ray`, or the address of a Ray cluster."""

    name = "cluster"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        scheme, mark, place = text.partition("://")
        if text != "ray" and (scheme != "ray" or not mark or ":" not in place):
            from compress.tracking.names import redact_address

            self.fail(f"'{redact_address(text)}' is no cluster; give ray, or ray://HOST:PORT", param, ctx)
        return text

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in ("ray", "ray://") if name.startswith(incomplete)]


def worker_options(workers: str, on: str, section: str = "training") -> tuple[Any, ...]:
    """--workers and --on: where several jobs are done. workers, on: their help.  section: of `_help.SECTIONS`."""
    how: dict[str, Any] = {"cls": Option, "section": section}
    return (
        click.option("--workers", type=WorkerCount(), metavar="N|auto", help=workers, **how),
        click.option("--on", type=ClusterAddress(), metavar="ray|ray://HOST:PORT", help=on, **how),
    )


RUNTIMES = ("torch", "torch-int8", "torch-sparse", "torch-graph", "torch-compile", "torchao-int8", "torchao-fp8")
RUNTIMES += ("onnxruntime", "openvino")


def _runtime(choices: Sequence[str], more: str) -> Any:
    """torch, or what reads the model.onnx of a folder."""
    text = (
        "Runtime that computes the predictions. torch: floats, which simulate a quantized model; torch-int8: integers "
        "of a quantized model, on the CPU; torch-sparse: skips the zeros of a 2:4 sparse model, in bf16, on CUDA "
        "capability 8.0 or more; torch-graph: torch with CUDA graphs for small batches (experimental); torch-compile: "
        "compiled; torchao-int8, torchao-fp8: compiled, with 8-bit products; onnxruntime, openvino: the model.onnx of "
        "`compress export`"
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
            help="Plain text: a file or folder, a built-in corpus, or hf:name.",
        ),
    ),
    "data": (
        click.option(
            "--data",
            type=DataName(),
            metavar="DATA",
            help="Dataset: a built-in one, a file or folder (jsonl, csv, parquet, arrow), or hf:name.",
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
        click.option("--max-length", type=int, help="Maximum sequence length in tokens; longer texts are truncated."),
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
            "folder or hf:name.",
        ),
        click.option(
            "--unlabelled-rows", type=int, metavar="N", help="Maximum number of unlabelled rows, drawn at random."
        ),
        click.option(
            "--pool",
            type=DataName(),
            help="Large plain text from which the passages nearest to the training rows are taken as unlabelled rows.",
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
            help="Column in which a teacher labelled the rows, instead of a teacher model: a value for each class; "
            "repeat for one column per class or per annotator.",
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
    type=click.IntRange(3, 1_000_000),
    help="Measure latency on sequences of this many tokens, without tokenization (default: on texts of the data).",
)
"""Of commands that measure latency on labelled data."""
bootstrap_option = click.option(
    "--bootstrap",
    type=click.IntRange(100, 100_000),
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


def shared(*groups: str) -> Callable[[Function], Function]:
    """Give a command the flags of `groups` (and always --json, --quiet, --debug); it receives `options: RunOptions`."""
    flags = [flag for name in (*groups, "display") for flag in GROUPS[name]]
    names = _names(flags)

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def run(*args: Any, **values: Any) -> Any:
            from compress.training.ranks import require_one_process

            if "output" not in groups:
                require_one_process("this command", "torchrun", "run it without torchrun")
            context = click.get_current_context(silent=True)
            if context is not None:
                check_values(context.command, values)
                _check_set(context.command, values)
            own = {name: values.pop(name) for name in list(values) if name not in names}
            return function(*args, options=run_options(values), **own)

        for flag in reversed(flags):
            run = flag(run)
        return run  # type: ignore[return-value]

    return decorate


def run_options(values: Mapping[str, Any]) -> RunOptions:
    """What the flags say, checked as far as no recipe is needed. Raises UserError without the requested device."""
    from compress.contracts import RunOptions

    context = click.get_current_context(silent=True)
    debug = context is not None and bool(getattr(context.find_root().obj, "debug", False))
    plain = {name: values[name] for name in _PLAIN if values.get(name) is not None}
    threads = plain.get("threads")
    if threads == "auto":
        from compress.training.ranks import ONE_COUNT, require_one_process

        require_one_process("auto", "--threads auto", ONE_COUNT)
    for flag in ("workers", "on"):
        if flag in plain:
            from compress.training.ranks import require_one_process

            do = "remove one of the two: torchrun trains one model on several devices, --workers several models at once"
            require_one_process(f"--{flag}", "torchrun", do)
    if "device" in plain:
        plain["device"] = resolve_device(plain["device"], threads if isinstance(threads, int) else None)
    if "deterministic" in values:
        from compress.training.deterministic import set_deterministic

        set_deterministic(bool(values["deterministic"]))
    if "output" in plain:
        from compress.errors import require_short_path

        require_short_path(Path(plain["output"]), "--output")
    if plain.get("push_private") and "push" not in plain:
        from compress.errors import UserError

        raise UserError("has no effect without --push", where="--push-private", do="add --push hf:org/name")
    return RunOptions(overrides=tuple(_overrides(values)), debug=debug, **plain)


def resolve_device(name: str, threads: int | None = None) -> str:
    """`cpu` or `cuda`; sets torch's threads. Raises UserError (exit 6) when CUDA is requested and not available.

    `auto` is the CPU where there is no GPU; where there is one that cannot be used, the reason is logged.
    """
    import torch

    from compress.training.gpu import find_obstacle

    if threads is not None:
        torch.set_num_threads(threads)
    obstacle = None if name == "cpu" else find_obstacle()
    if obstacle is None:
        return "cpu" if name == "cpu" else "cuda"
    if name == "cuda":
        raise obstacle
    if obstacle.is_fixable:
        logging.getLogger("compress").warning("computing on the CPU: %s; %s", obstacle.why, obstacle.do)
    return "cpu"


def _check_set(command: click.Command, values: Mapping[str, Any]) -> None:
    """Raises UserError for a mistake in --set that can be found before anything heavy is imported."""
    table = getattr(command.callback, "table", None)
    recipe = values.get("recipe") or getattr(table, "recipe", None) or values.get("name")
    if values.get("set_") and recipe:
        from compress.recipe.early import check_overrides

        check_overrides(recipe, values["set_"])


_PLAIN = (
    "recipe",
    "device",
    "precision",
    "runtime",
    "onnx",
    "threads",
    "output",
    "resume",
    "dry_run",
    "print_recipe",
    "json",
    "quiet",
    "tracking_uri",
    "experiment",
    "push",
    "push_private",
    "workers",
    "on",
)
_RECIPE_VALUES = {
    "seed": "seed", "model": "model", "data": "data.source", "text_column": "data.text_column",
    "text_pair_column": "data.text_pair_column", "label_column": "data.label_column", "labels": "data.labels",
    "max_length": "data.max_length",
    "task": "data.task", "bad_tags": "data.bad_tags", "bad_rows": "data.bad_rows", "limit": "data.limit",
    "labelled_rows": "data.labelled_rows", "unlabelled": "data.unlabelled",
    "unlabelled_rows": "data.unlabelled_rows", "allow_overlap": "data.allow_overlap",
    "pool": "data.pool", "pool_rows": "data.pool_rows", "pool_by": "data.pool_by",
    "teacher_values": "data.teacher_values", "teacher_noise": "data.teacher_noise",
    "long_text": "data.long_text", "stride": "data.stride", "pooling": "data.pooling",
    "no_answer_threshold": "data.no_answer_threshold", "metric": "data.metric", "corpus": "corpus.source",
}  # fmt: skip


def _names(flags: list[Any]) -> set[str]:
    """Parameter names of some flags: a command may have an argument of its own that is called like another group's."""

    def carrier() -> None: ...

    for flag in flags:
        flag(carrier)
    return {parameter.name for parameter in carrier.__click_params__}  # type: ignore[attr-defined]


def _teachers(names: tuple[str, ...]) -> Iterator[Override]:
    """One takes the place of the recipe's one; several that of one or several."""
    from compress.contracts import Override

    origin = " ".join(f"--teacher {name}" for name in names)
    if len(names) == 1:
        yield Override("teacher", names[0], origin)
    elif names:
        yield Override("teacher", None, origin)
        yield Override("teachers", [{"model": name} for name in names], origin)


def _teacher_columns(values: Mapping[str, Any]) -> Iterator[Override]:
    """Columns that teach; the recipe's teacher model is then not needed. Raises UserError for a flag about none."""
    from compress.contracts import Override

    names = values.get("teacher_column") or ()
    lonely = next((n for n in ("teacher_values", "teacher_noise") if values.get(n) is not None and not names), None)
    if lonely is not None:
        from compress.errors import UserError

        flag = f"--{lonely.replace('_', '-')}"
        raise UserError("has no effect without --teacher-column", where=flag, do="add --teacher-column NAME")
    if names:
        origin = " ".join(f"--teacher-column {name}" for name in names)
        yield Override("data.teacher_columns", list(names), origin)
        if not values.get("teacher"):
            yield Override("teacher", None, origin)
            yield Override("teachers", None, origin)


def _overrides(values: Mapping[str, Any]) -> Iterator[Override]:
    """Flags first, then --set, which overrides them."""
    from compress.contracts import Override

    if values.get("data") is not None:
        for key in DATA_ANSWERS:  # what the recipe says of its own data does not hold for other data
            yield Override(f"data.{key}", None, f"--data {values['data']}")
    for name, path in _RECIPE_VALUES.items():
        if values.get(name) is not None:
            value = values[name]
            told = ",".join(value) if isinstance(value, list) else value
            yield Override(path, value, f"--{name.replace('_', '-')} {told}")
    yield from _teachers(values.get("teacher") or ())
    yield from _teacher_columns(values)
    if values.get("precision") is not None:
        origin = f"--precision {values['precision']}"
        yield Override("stages.*.training.precision", values["precision"], origin, required=False)
    if values.get("set_"):
        from compress.recipe import parse_override

        yield from (parse_override(text) for text in values["set_"])
    if values.get("sweep"):
        from compress.recipe import parse_sweep

        yield parse_sweep(values["sweep"])
