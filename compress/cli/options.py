"""Flags that commands share, declared once, gathered into one `RunOptions`.

    @click.command(cls=Command)
    @shared("recipe", "data", "teacher", "compute", "output", "store", "experiment")
    def command(options: RunOptions) -> None: ...

A flag that is a value of the recipe (--seed, --data, --teacher …) becomes an override that blames that flag.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from compress.cli._help import Command as Command
from compress.cli._help import Option as Option
from compress.cli.main import debug_option

if TYPE_CHECKING:
    from compress.contracts import Override, RunOptions

Function = TypeVar("Function", bound=Callable[..., Any])

DATA_ANSWERS = (
    "task", "text_column", "text_pair_column", "label_column",
    "train_split", "validation_split", "test_split", "unlabelled_split", "labels",
)  # fmt: skip
"""Keys of `data:` that describe one source and say nothing about another."""


class RecipeName(click.ParamType):
    """A shipped recipe's name, or the path of a recipe file."""

    name = "recipe"

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


MILLISECONDS, AMOUNT = Milliseconds(), Amount()


class TeacherName(ModelName):
    """A model, or the name of a recipe that makes one."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from compress.recipe.library import names

        recipes = [CompletionItem(name) for name in names() if incomplete and name.startswith(incomplete)]
        return recipes or super().shell_complete(ctx, param, incomplete)


_OVERRIDES = (
    click.option(
        "--set",
        "set_",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change a value of the recipe, e.g. stages.0.training.epochs=1.",
    ),
    click.option("--seed", type=int, help="Seed of data order, masking and new weights."),
)


RUNTIMES = ("torch", "torch-int8", "torch-sparse", "torch-compile", "torchao-int8", "torchao-fp8")
RUNTIMES += ("onnxruntime", "openvino")


def _runtime(choices: Sequence[str], more: str) -> Any:
    """torch, or what reads the model.onnx of a folder."""
    text = (
        "What computes the answers. torch: floats, which simulate a quantized model; torch-int8: a quantized model's "
        "integers, on the CPU; torch-sparse: a 2:4 sparse model without its zeros, in bf16, on CUDA capability 8.0 or "
        "more; torch-compile: compiled first; torchao-int8, torchao-fp8: compiled, with products in "
        "eight bits; onnxruntime, openvino: the model.onnx of `compress export`"
    )
    usual = "Not given: torch, of a quantized model its file."
    return click.option("--runtime", type=click.Choice(choices), help=f"{text}{more}. {usual}")


GROUPS: Mapping[str, tuple[Any, ...]] = {
    "recipe": (
        click.option("--recipe", type=RecipeName(), help="A recipe's name, or the path of your own."),
        *_OVERRIDES,
    ),
    "overrides": _OVERRIDES,
    "corpus": (
        click.option("--corpus", metavar="TEXT", help="Plain text: a file or folder, an embedded corpus, or hf:name."),
    ),
    "data": (
        click.option(
            "--data", metavar="DATA", help="An embedded set, a file or folder (jsonl, csv, parquet, arrow), or hf:name."
        ),
        click.option("--text-column", metavar="NAME", help="Column of the text; inferred when not given."),
        click.option("--text-pair-column", metavar="NAME", help="Column of the second text of a pair."),
        click.option("--label-column", metavar="NAME", help="Column of the label; inferred when not given."),
        click.option("--task", metavar="KIND", help="What the data is for, e.g. regression; inferred when not given."),
        click.option(
            "--bad-tags",
            type=click.Choice(["refuse", "repair"]),
            help="Tags their scheme does not allow, such as I- with no B- before it; refused when not given.",
        ),
        click.option(
            "--bad-rows",
            type=click.Choice(["refuse", "drop"]),
            help="Rows without text or label, or whose labels do not fit them; refused when not given.",
        ),
        click.option(
            "--no-answer-threshold",
            type=float,
            help='Of questions: by how much "no answer" must beat the best answer; the model\'s own when not given.',
        ),
        click.option("--max-length", type=int, help="Most pieces of one text; longer texts are cut."),
        click.option(
            "--long-text",
            type=click.Choice(["cut", "chunk"]),
            help="Of classification; chunk: a longer text is read in chunks whose logits are pooled.",
        ),
        click.option(
            "--stride", type=int, help="Pieces that neighbouring chunks or windows share; a third of the length."
        ),
        click.option("--pooling", type=click.Choice(["mean", "max"]), help="Of the logits of chunks; mean."),
        click.option("--limit", type=int, help="Most rows taken of each split."),
        click.option(
            "--metric",
            metavar="NAME",
            help="The metric that decides, such as f1_macro; not given: the model's, else the task's usual one.",
        ),
    ),
    "model": (click.option("--model", type=ModelName(), help="The model folder to start from."),),
    "teacher": (
        click.option(
            "--teacher",
            type=TeacherName(),
            multiple=True,
            help="A model folder, or a recipe that makes the teacher; twice or more: they teach together.",
        ),
    ),
    "compute": (
        click.option(
            "--device",
            type=click.Choice(["auto", "cpu", "cuda"]),
            default="auto",
            show_default=True,
            help="Where to compute; auto: the GPU if there is one.",
        ),
        click.option(
            "--precision",
            type=click.Choice(["auto", "fp32", "bf16"]),
            help="Of the matrix products; not given: as the recipe says.",
        ),
        click.option("--threads", type=click.IntRange(1, 4096), help="CPU threads; not given: torch decides."),
    ),
    "runtime": (_runtime(RUNTIMES, ""),),
    "any_runtime": (_runtime([*RUNTIMES, "auto"], "; auto: the fastest here that answers alike"),),
    "onnx": (
        click.option(
            "--onnx/--no-onnx",
            default=None,
            help="Of a quantized result, write its model.onnx and measure that; not given: if the extra onnx is there.",
        ),
    ),
    "output": (
        click.option("--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Where the results go."),
        click.option("--resume", is_flag=True, help="Go on where the run in the output folder stopped."),
        click.option("--dry-run", is_flag=True, help="Show the resolved recipe, the sizes and the plan; run nothing."),
    ),
    "store": (
        click.option(
            "--tracking-uri", metavar="URI", help="MLflow store; not given: MLFLOW_TRACKING_URI, else mlruns/mlflow.db."
        ),
    ),
    "experiment": (click.option("--experiment", metavar="NAME", help="MLflow experiment to log into."),),
    "display": (
        click.option("--json", is_flag=True, help="The result as one JSON document."),
        click.option("--quiet", "-q", is_flag=True, help="No notes and no progress."),
        debug_option,
    ),
}


def split_option(text: str, splits: Sequence[str] = ("test", "validation", "train")) -> Callable[[Function], Function]:
    """--split, of commands that read one split of --data; the first of `splits` unless told. text: its help."""
    return click.option("--split", type=click.Choice(splits), default=splits[0], show_default=True, help=text)


bootstrap_option = click.option(
    "--bootstrap", type=click.IntRange(100, 100_000), default=1000, show_default=True, help="Resamples."
)
"""Of commands that tell 95 % intervals."""


def slice_options(function: Function) -> Function:
    """--slices and --slice, of commands that tell quality by groups of rows."""
    named = click.option(
        "--slice",
        "sliced",
        multiple=True,
        metavar="COLUMN",
        help="Only these groups: length, label, or a column of the data; repeatable.",
    )
    usual = "Also quality by groups of rows: by length, label and source, if a column says one."
    return click.option("--slices", is_flag=True, help=usual)(named(function))


def shared(*groups: str) -> Callable[[Function], Function]:
    """Give a command the flags of `groups` (and always --json, --quiet, --debug); it receives `options: RunOptions`."""
    flags = [flag for name in (*groups, "display") for flag in GROUPS[name]]
    names = _names(flags)

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def run(*args: Any, **values: Any) -> Any:
            from compress.errors import UserError
            from compress.training.ranks import ranks

            if "output" not in groups and ranks().world > 1:
                do = "run it without torchrun, which is for the commands that train"
                raise UserError("this command is for one process", where="torchrun", do=do)
            own = {name: values.pop(name) for name in list(values) if name not in names}
            return function(*args, options=run_options(values), **own)

        for flag in reversed(flags):
            run = flag(run)
        return run  # type: ignore[return-value]

    return decorate


def run_options(values: Mapping[str, Any]) -> RunOptions:
    """What the flags said, checked as far as no recipe is needed. Raises UserError without the asked-for device."""
    from compress.contracts import RunOptions

    context = click.get_current_context(silent=True)
    debug = context is not None and bool(getattr(context.find_root().obj, "debug", False))
    plain = {name: values[name] for name in _PLAIN if values.get(name) is not None}
    if "device" in plain:
        plain["device"] = resolve_device(plain["device"], values.get("threads"))
    return RunOptions(overrides=tuple(_overrides(values)), debug=debug, **plain)


def resolve_device(asked: str, threads: int | None = None) -> str:
    """`cpu` or `cuda`; sets torch's threads. Raises UserError (exit 6) when CUDA was asked for and is not there."""
    import torch

    from compress.errors import ExitCode, UserError

    if threads is not None:
        torch.set_num_threads(threads)
    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no GPU"
        raise UserError(
            "no CUDA here", where="--device cuda", why=why, do="use --device cpu", code=ExitCode.ENVIRONMENT
        )
    return "cuda" if asked != "cpu" and there else "cpu"


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
    "json",
    "quiet",
    "tracking_uri",
    "experiment",
)
_RECIPE_VALUES = {
    "seed": "seed", "model": "model", "data": "data.source", "text_column": "data.text_column",
    "text_pair_column": "data.text_pair_column", "label_column": "data.label_column", "max_length": "data.max_length",
    "task": "data.task", "bad_tags": "data.bad_tags", "bad_rows": "data.bad_rows", "limit": "data.limit",
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


def _overrides(values: Mapping[str, Any]) -> Iterator[Override]:
    """Flags first, then --set: the more exact one has the last word."""
    from compress.contracts import Override

    if values.get("data") is not None:
        for key in DATA_ANSWERS:  # what the recipe knew about its own data does not hold for other data
            yield Override(f"data.{key}", None, f"--data {values['data']}")
    for name, path in _RECIPE_VALUES.items():
        if values.get(name) is not None:
            yield Override(path, values[name], f"--{name.replace('_', '-')} {values[name]}")
    yield from _teachers(values.get("teacher") or ())
    if values.get("precision") is not None:
        origin = f"--precision {values['precision']}"
        yield Override("stages.*.training.precision", values["precision"], origin, required=False)
    if values.get("set_"):
        from compress.recipe import parse_override

        yield from (parse_override(text) for text in values["set_"])
