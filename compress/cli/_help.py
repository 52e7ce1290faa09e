"""Commands whose `--help` groups the options, and options that know their group."""

from __future__ import annotations

from collections.abc import Mapping
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
            "--recipe", "--model", "--teacher", "--corpus", "--data", "--text-column", "--text-pair-column", "--task",
            "--label-column", "--limit", "--max-length", "--split", "--against", "--probe", "--tokenizer", "--file",
            "--general-teacher", "--pair", "--question", "--context", "--student", "--mixed-conditions",
        ),
        "input",
    ),
    **dict.fromkeys(("--seed", "--precision", "--resume", "--train", "--steps", "--check", "--trials"), "training"),
    **dict.fromkeys(
        (
            "--output", "--experiment", "--tracking-uri", "--json", "--dry-run", "--onnx", "--quiet", "--markdown",
            "--csv", "--html", "--log", "--columns", "--save-embedder", "--explain",
        ),
        "output",
    ),
    **dict.fromkeys(
        (
            "--set", "--bad-tags", "--bad-rows", "--no-answer-threshold", "--long-text", "--stride", "--pooling",
            "--metric", "--device", "--threads", "--debug", "--help", "--study", "--uncertified",
        ),
        "other",
    ),
}  # fmt: skip
"""Flag → its group, of those that several commands have or that set no recipe key; the others are `method`."""


class Option(click.Option):
    """An option in a group of `SECTIONS`."""

    def __init__(self, *args: Any, section: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


class Command(click.Command):
    """A command whose options are printed by group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in SECTIONS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                groups[_group(parameter)].append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(SECTIONS[name]):
                    formatter.write_dl(records)


def _group(parameter: click.Parameter) -> str:
    if isinstance(parameter, Option):
        return parameter.section
    return next((_GROUP_OF[flag] for flag in parameter.opts if flag in _GROUP_OF), "method")
