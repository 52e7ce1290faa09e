"""Commands whose `--help` groups the options, and options that know their group."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import click

SECTIONS: Mapping[str, str] = {
    "input": "Input",
    "method": "Method",
    "training": "Training",
    "output": "Output",
    "other": "Other options",
}
"""Group → its heading, in the order in which they are printed."""

_GROUP_OF: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "--recipe", "--model", "--teacher", "--teacher-column", "--teacher-values", "--teacher-noise", "--corpus",
            "--data", "--text-column", "--text-pair-column", "--task",
            "--label-column", "--limit", "--labelled-rows", "--unlabelled", "--pool", "--pool-rows",
            "--pool-by", "--allow-overlap", "--max-length",
            "--split", "--against", "--probe", "--tokenizer", "--file", "--general-teacher", "--pair", "--question",
            "--context", "--student", "--mixed-conditions",
        ),
        "input",
    ),
    **dict.fromkeys(
        (
            "--seed", "--sweep", "--workers", "--on", "--deterministic", "--resume", "--train",
            "--steps", "--check", "--trials",
        ),
        "training",
    ),
    **dict.fromkeys(
        (
            "--output", "--experiment", "--tracking-uri", "--json", "--dry-run", "--print-recipe", "--onnx", "--quiet",
            "--markdown", "--csv", "--html", "--log", "--columns", "--save-embedder", "--explain", "--push",
            "--push-private", "--private", "--message", "--join", "--shard-rows",
        ),
        "output",
    ),
    **dict.fromkeys(
        (
            "--set", "--bad-tags", "--bad-rows", "--no-answer-threshold", "--long-text", "--stride", "--pooling",
            "--metric", "--device", "--threads", "--precision", "--debug", "--help", "--help-all", "--study",
            "--uncertified",
        ),
        "other",
    ),
}  # fmt: skip
"""Flag → its group, of those that several commands have or that set no recipe key; the others are `method`."""


_RECOVERY = ("--no-recover", "--epochs", "--learning-rate", "--seeds", "--output", "--dry-run")

MAIN: Mapping[str, tuple[str, ...]] = {
    "distill": (
        "--recipe", "--teacher", "--data", "--layers", "--hidden-size", "--epochs", "--steps", "--learning-rate",
        "--batch-size", "--temperature", "--output", "--dry-run",
    ),
    "finetune": (
        "--model", "--data", "--tune", "--max-length", "--epochs", "--learning-rate", "--batch-size", "--seed",
        "--output", "--resume", "--dry-run",
    ),
    "pretrain": (
        "--recipe", "--corpus", "--tokenizer", "--max-length", "--steps", "--learning-rate", "--batch-size", "--output",
        "--resume", "--dry-run",
    ),
    "tokenizer": ("--recipe", "--corpus", "--set", "--output", "--dry-run"),
    "prune-layers": ("--data", "--keep", "--max-drop", "--target-latency", "--criterion", *_RECOVERY),
    "prune-width": (
        "--data", "--keep", "--num-heads", "--intermediate-size", "--target-latency", "--importance", *_RECOVERY,
    ),
    "prune-vocab": (
        "--data", "--corpus", "--coverage", "--min-count", "--size", "--characters", "--pretrained", "--output",
        "--dry-run",
    ),
    "quantize": (
        "--data", "--mode", "--scheme", "--max-drop", "--epochs", "--learning-rate", "--onnx", "--output", "--dry-run",
    ),
    "share": ("--data", "--groups", "--pattern", "--init", "--embedding-size", "--residual-rank", *_RECOVERY),
    "factorize": ("--data", "--keep", "--max-mb", "--method", "--allocation", *_RECOVERY),
    "sparsify": ("--data", "--sparsity", "--method", *_RECOVERY),
    "drop-tokens": ("--data", "--max-drop", "--confidence", "--keep-tokens", *_RECOVERY),
    "make-static": ("--data", "--unlabelled", "--dimensions", "--sif", "--teacher-cache", *_RECOVERY),
    "reduce-dimensions": ("--data", "--dimensions", "--rows", *_RECOVERY),
    "run": (
        "--model", "--teacher", "--data", "--until", "--from", "--epochs", "--learning-rate", "--batch-size", "--set",
        "--output", "--resume", "--dry-run",
    ),
    "fit": (
        "--data", "--max-mb", "--max-ms", "--max-drop", "--objective", "--train", "--time", "--plan-only", "--family",
        "--length", "--threads", "--output",
    ),
    "evaluate": (
        "--data", "--against", "--split", "--slices", "--group-column", "--robustness", "--length", "--no-speed",
        "--runtime", "--threads", "--json",
    ),
    "benchmark": ("--data", "--length", "--batch", "--repeats", "--runtime", "--threads", "--json"),
    "compare": (
        "--data", "--experiment", "--against", "--sort", "--filter", "--columns", "--slices", "--csv", "--html",
    ),
    "analyze": (
        "--data", "--against", "--probe", "--quantization", "--rows", "--save-embedder", "--output",
    ),
    "calibrate": ("--data", "--split", "--output"),
    "cascade": ("--data", "--max-drop", "--exit-layers", "--output", "--runtime", "--threads", "--json"),
    "export": ("--to", "--output", "--data", "--head", "--opset", "--portable"),
    "predict": (
        "--file", "--pair", "--question", "--context", "--embeddings", "--runtime", "--threads", "--json", "--bad-rows",
        "--output", "--workers", "--resume",
    ),
    "promote": (
        "--as", "--name", "--against", "--data", "--max-drop", "--max-mb", "--max-ms", "--replace", "--dry-run",
    ),
    "verify": ("--data", "--threads", "--json"),
}  # fmt: skip
"""Command → the options that `--help` shows; --help-all shows the others too. Commands that are not here show all."""

ALL = "compress.help_all"
"""The key of a context by which --help-all asks for every option."""


class Option(click.Option):
    """An option in a group of `SECTIONS`. usual: what the recipe says where it is not given, for the help."""

    def __init__(self, *args: Any, section: str, usual: Callable[[], str] = lambda: "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section, self.usual = section, usual

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Its names and its help, with the value of the recipe as the default."""
        record, usual = super().get_help_record(ctx), self.usual()
        return (record[0], f"{record[1]}  [default: {usual}]") if record and usual else record


class Command(click.Command):
    """A command whose options are printed by group: with --help those of `MAIN`, with --help-all all of them.

    After it has finished runs, it renews MLflow's first page, and says once what of them could not be uploaded.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Those of the command, with --help-all where --help leaves any out."""
        found = super().get_params(ctx)
        if any(True for _ in self._left_out(ctx)):
            settings: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _help_all}
            text = f"Show all {len(list(self._shown(self.params)))} options, of which these matter most, and exit."
            found = [*found, click.Option(["--help-all"], help=text, **settings)]
        return found

    def invoke(self, ctx: click.Context) -> Any:
        if any(one.name == "tracking_uri" for one in self.params):
            from compress.tracking.outages import reported_once

            with reported_once():
                return self._invoke(ctx)
        return self._invoke(ctx)

    def _invoke(self, ctx: click.Context) -> Any:
        copies = sys.modules.get("compress.data.reading.copies")  # not imported: this process has read no data
        if copies is not None:
            copies.ask_stores_again()
        result = super().invoke(ctx)
        finished = sys.modules.get("compress.tracking.finished")  # not imported: no run was made
        if finished is not None and finished.has_any():
            from compress.compare.firstpage import renew_finished

            renew_finished()
        return result

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        left_out = () if ctx.meta.get(ALL) else {id(one) for one in self._left_out(ctx)}
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in SECTIONS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None and id(parameter) not in left_out:
                groups[_group(parameter)].append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(SECTIONS[name]):
                    formatter.write_dl(records)
        table = getattr(self.callback, "table", None)
        if table is not None and table.recipe:
            formatter.write_paragraph()
            formatter.write(f"Defaults are those of the recipe {table.recipe}; other recipes have their own.\n")

    def _shown(self, parameters: Iterable[click.Parameter]) -> Iterator[click.Option]:
        yield from (one for one in parameters if isinstance(one, click.Option) and not one.hidden)

    def _left_out(self, ctx: click.Context) -> Iterator[click.Option]:
        """The options that --help does not show."""
        main = MAIN.get((ctx.info_name or "").rpartition(" ")[2])
        if main is not None:
            yield from (one for one in self._shown(self.params) if not {*one.opts, *one.secondary_opts} & {*main})


def check_values(command: click.Command, values: Mapping[str, Any]) -> None:
    """What the command line alone says is wrong: `check` of the types, then `before` of the command's table.

    Neither imports anything heavy. values: by name. Raises UserError.
    """
    for parameter in command.params:
        check, value = getattr(parameter.type, "check", None), values.get(parameter.name or "")
        if check is not None and value is not None:
            for one in value if isinstance(value, tuple) else (value,):
                check(one, parameter.opts[0])
    before = getattr(command.callback, "before", None)
    if before is not None:
        before(values)


def _help_all(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        context.meta[ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


def _group(parameter: click.Parameter) -> str:
    if isinstance(parameter, Option):
        return parameter.section
    return next((_GROUP_OF[flag] for flag in parameter.opts if flag in _GROUP_OF), "method")
