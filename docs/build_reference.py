"""Write docs/reference/ from the commands, the recipe schema, the registry and the docstrings.

    python docs/build_reference.py

The pages depend on the code alone: nothing of click's or pydantic's own wording, of the terminal or of the machine is
in them. tests/test_reference.py fails when a page is stale.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import types
import typing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from compress import registry
from compress.cli import main as frame
from compress.recipe import list_recipes
from compress.recipe.schema import Recipe
from compress.registry import RowOf
from compress.storage import atomic

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
MADE = "<!-- Made by `python docs/build_reference.py`; change the code it is made from, and run that. -->\n\n"
SHARED_BY = 5
"""An option that so many commands have, word for word, is told once."""

PARTS = {
    "compress.objectives": "What a student or a pretrained encoder minimises: rows of `objectives:`.",
    "compress.stages.prune_layers.criteria": "How the layers that stay are chosen: `criterion:` of prune_layers.",
    "compress.stages.prune_width.importance": "How much each head and neuron matters: `importance:` of prune_width.",
    "compress.stages.share.patterns": "Which layers share parameters: `pattern:` of share.",
    "compress.stages.share.starts": "How shared weights are initialized: `init:` of share.",
    "compress.stages.factorize.methods": "How a matrix becomes two low-rank factors: `method:` of factorize.",
    "compress.stages.sparsify.methods": "Which two of every four weights go: `method:` of sparsify.",
    "compress.stages.finetune.tunings": "Which parameters are trained: `tune:` of finetune.",
    "compress.quantizers": "How numbers become integers: `rules:` of quantize.",
    "compress.data.tasks": "What a row asks: `data.task`.",
    "compress.modelfolder.families": "Which model folders are read and written, by their `model_type`.",
}
"""Folders of parts, in the order in which they are listed."""
TITLES = {
    "compress.stages.prune_layers.criteria": "Layer criteria",
    "compress.stages.prune_width.importance": "Importances",
    "compress.stages.share.patterns": "Sharing patterns",
    "compress.stages.share.starts": "Initialization of shared weights",
    "compress.stages.factorize.methods": "Factorization methods",
    "compress.stages.sparsify.methods": "Sparsification methods",
    "compress.stages.finetune.tunings": "Tunings",
    "compress.modelfolder.families": "Model families",
}


def pages() -> dict[str, str]:
    """File name → text, of every page."""
    made = {"commands.md": commands(), "recipes.md": recipes(), "parts.md": parts(), "modules.md": modules()}
    return {name: MADE + text.rstrip() + "\n" for name, text in made.items()}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown; empty without rows."""
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join("|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|\n" for line in lines)


def first_paragraph(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())


# --- commands -----------------------------------------------------------------------------------------------------


def commands() -> str:
    """Every command: what it does, its arguments and options."""
    found = list(walk(frame.cli, ("compress",)))
    told = [option for _, command in found for option in options(command)]
    shared = {row for row, count in Counter(told).items() if count >= SHARED_BY}
    text = "# Commands\n\n`compress COMMAND --help-all` prints the same. Shared options are at the end.\n"
    for path, command in found:
        own = [row for row in options(command) if row not in shared]
        also = [max(row[0].split(", "), key=len) for row in options(command) if row in shared]
        text += f"\n## {' '.join(path)}\n\n{usage(path, command)}{prose(command.help)}"
        text += gap(table(["option", "value", "default", "meaning"], own))
        text += f"\n[Shared](#shared-options): {', '.join(also)}.\n" if also else ""
    rows = sorted(shared, key=lambda row: (row[0].lstrip("`-"), row))
    return f"{text}\n## Shared options\n\n{table(['option', 'value', 'default', 'meaning'], rows)}"


def gap(text: str) -> str:
    return f"\n{text}" if text else ""


def walk(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from walk(command, (*path, name))


def usage(path: tuple[str, ...], command: click.Command) -> str:
    """As it is typed, arguments by their names."""
    words = [*path]
    if isinstance(command, click.Group):
        words.append("COMMAND")
    elif options(command):
        words.append("[OPTIONS]")
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            name = (parameter.metavar or parameter.name or "").strip("[].").upper()
            name += "..." if parameter.nargs == -1 else ""
            words.append(name if parameter.required else f"[{name}]")
    return f"```text\n{' '.join(words)}\n```\n"


def prose(text: str | None) -> str:
    """The help of a command as Markdown; what stands after a \\b keeps its lines."""
    made = ""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text or "")):
        if paragraph.strip().startswith("\b"):
            lines = inspect.cleandoc(paragraph.replace("\b", "", 1).strip("\n")).splitlines()
            ours = all(line.startswith(("compress ", "torchrun ")) for line in lines)
            made += f"\n```{'sh' if ours else 'text'}\n" + "\n".join(lines) + "\n```\n"
        elif paragraph.strip():
            made += "\n" + " ".join(paragraph.split()) + "\n"
    return made


Row = tuple[str, str, str, str]


def options(command: click.Command) -> list[Row]:
    """(names, value, default, meaning) of every option, --help excepted."""
    found = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    return [(option_names(p), value(p), default(p), " ".join((p.help or "").split())) for p in found]


def option_names(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    return names + "".join(f", `{name}`" for name in option.secondary_opts)


def value(option: click.Option) -> str:
    """What an option takes, in our own words."""
    if option.is_flag:
        return ""
    kind = option.type
    if isinstance(kind, click.Choice):
        said = ", ".join(str(choice) for choice in kind.choices)
    elif isinstance(kind, click.IntRange | click.FloatRange):
        said = (option.metavar or "N") + limits(kind)
    elif option.metavar:
        said = option.metavar
    else:
        said = {"integer": "N", "float": "NUMBER", "text": "TEXT"}.get(kind.name, kind.name.upper())
    return said + (", repeatable" if option.multiple else "")


def limits(kind: Any) -> str:
    low = "" if kind.min is None else f" from {kind.min}"
    high = "" if kind.max is None else f" to {kind.max}"
    return low + high


def default(option: click.Option) -> str:
    given = option.default
    return f"{given}" if isinstance(given, str | int | float) and not isinstance(given, bool) else ""


# --- recipes ------------------------------------------------------------------------------------------------------


class Blocks:
    """The blocks of a recipe, in the order in which they are met, each under a heading of its own."""

    def __init__(self) -> None:
        self.headings: dict[type[BaseModel], str] = {}

    def heading(self, model: type[BaseModel], key: str) -> str:
        """Of a block that stands under `key`: the key, with the class where another block took that."""
        if model not in self.headings:
            name = key if key not in self.headings.values() else f"{key} {model.__name__}"
            self.headings[model] = name
        return self.headings[model]

    def rows(self, model: type[BaseModel]) -> list[list[str]]:
        return [
            [f"`{name}`", self.shown(field.annotation, field.metadata, name), given(field), described(field)]
            for name, field in model.model_fields.items()
            if name != "kind" or not is_literal(field.annotation)
        ]

    def shown(self, annotation: Any, metadata: Sequence[Any], key: str) -> str:
        """A type in words, with its bounds."""
        row = next((m for m in metadata if isinstance(m, RowOf)), None)
        if row is not None:
            return row_link(row)
        origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Annotated:
            return self.shown(inside[0], flat([*inside[1:], *metadata]), key)
        if origin in (typing.Union, types.UnionType):
            parts = [arg for arg in inside if arg is not types.NoneType]
            text = " or ".join(self.shown(arg, metadata, key) for arg in parts)
            return f"{text}, or null" if types.NoneType in inside else text
        if origin is Literal:
            return ", ".join(f"`{json.dumps(arg) if not isinstance(arg, str) else arg}`" for arg in inside)
        if origin is tuple:
            of = self.shown(inside[0], [], key)
            return f"a list of {of}" if inside[1:] == (...,) else f"a list of {len(inside)}: {of}"
        if origin is dict:
            return f"a mapping of {self.shown(inside[0], [], key)} to {self.shown(inside[1], [], key)}"
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            heading = self.heading(annotation, key)
            return f"[{heading}](#{anchor(heading)})"
        words = {int: "whole number", float: "number", str: "text", bool: "true or false"}
        return words.get(annotation, "anything") + bounds(metadata)


def flat(metadata: Sequence[Any]) -> list[Any]:
    return [one for m in metadata for one in (m.metadata if isinstance(m, FieldInfo) else [m])]


def bounds(metadata: Sequence[Any]) -> str:
    """ ", from 0, below 1": what annotated-types say."""
    words = {Ge: ("from", "ge"), Gt: ("above", "gt"), Le: ("to", "le"), Lt: ("below", "lt")}
    found = [(words[type(m)][0], getattr(m, words[type(m)][1])) for m in flat(metadata) if type(m) in words]
    return "".join(f" {word} {number(bound)}" for word, bound in found)


def number(bound: float) -> str:
    if isinstance(bound, int) and bound >= 2**31 and bound & (bound - 1) == 0:
        return f"2^{bound.bit_length() - 1}"
    return f"{bound}"


def is_literal(annotation: Any) -> bool:
    return typing.get_origin(annotation) is Literal


def row_link(row: RowOf) -> str:
    if row.package is None:
        return "[stage](#stages)"
    return f"a [row of {title(row.package).lower()}](parts.md#{anchor(title(row.package))})"


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


def given(field: FieldInfo) -> str:
    """The default, as a recipe would write it."""
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    return plain(default)


def plain(default: Any) -> str:
    if default is PydanticUndefined:
        return ""
    if isinstance(default, BaseModel):
        changed = {name: getattr(default, name) for name in default.model_fields_set}
        return "its defaults" if not changed else f"`{flow(changed)}`"
    return f"`{flow(default)}`"


def flow(value: Any) -> str:
    """YAML on one line."""
    if isinstance(value, BaseModel):
        return flow({name: getattr(value, name) for name in value.model_fields_set})
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(flow(one) for one in value) + "]"
    if isinstance(value, str):
        return value if re.fullmatch(r"[\w./-]+", value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def described(field: FieldInfo) -> str:
    """What the schema says of a key, else of the block that stands there."""
    inside = [field.annotation, *typing.get_args(field.annotation)]
    block = next((one for one in inside if isinstance(one, type) and issubclass(one, BaseModel)), None)
    return " ".join((field.description or "").split()) or first_paragraph(block and inspect.getdoc(block))


def recipes() -> str:
    """Every key of a recipe, and the shipped recipes."""
    text = (
        "# Recipes\n\nA recipe is a YAML file. [`extends: NAME`](../howto/own-model.md#your-own-recipe) starts from "
        "another one.\n`compress recipes schema` prints the same as JSON schema, for an editor.\n\n"
        "## Shipped recipes\n\n"
    )
    text += table(
        ["recipe", "method", "what it does"],
        [
            [f"`{e.name}`", e.method, f"{'Experimental: ' if e.experimental else ''}{e.description}"]
            for e in list_recipes()
        ],
    )
    blocks, done = Blocks(), 0
    text += "\n## Keys\n\n" + table(HEAD, blocks.rows(Recipe))
    stages = ""
    for kind in registry.stages():
        spec = registry.stage_spec(kind)
        stages += f"\n### {kind}\n\n{first_paragraph(inspect.getdoc(spec))}\n{gap(table(HEAD, blocks.rows(spec)))}"
    told = ""
    while done < len(blocks.headings):
        model, heading = list(blocks.headings.items())[done]
        done += 1
        told += f"\n### {heading}\n\n{first_paragraph(inspect.getdoc(model))}\n{gap(table(HEAD, blocks.rows(model)))}"
    return f"{text}\n## Stages\n\nRows of `stages:`, by their `kind`.\n{stages}\n## Blocks\n{told}"


HEAD = ["key", "value", "default", "meaning"]


# --- parts --------------------------------------------------------------------------------------------------------


def title(package: str) -> str:
    """The heading of a folder of parts; its folder's name where TITLES says nothing better."""
    return TITLES.get(package) or package.rpartition(".")[2].capitalize()


def parts() -> str:
    """Every part of every folder of parts, with its options and papers."""
    text = "# Parts\n\nA part is a file; its name is its kind. Options are keys of its row in a recipe.\n"
    blocks = Blocks()
    for package, what in PARTS.items():
        rows = [[f"`{kind}`", *part(package, kind, blocks)] for kind in registry.parts(package)]
        text += f"\n## {title(package)}\n\n{what}\n\n" + table(["kind", "what it is", "options", "paper"], rows)
    return text


def part(package: str, kind: str, blocks: Blocks) -> tuple[str, str, str]:
    """What it is, its options, its papers."""
    module = registry.module(package, kind)
    told = f"{module.__doc__}\n{inspect.getdoc(registry.load(package, kind))}"
    papers = list(dict.fromkeys(re.findall(r"\b\d{4}\.\d{4,5}\b", told)))
    keys = registry.schema(package, kind).model_fields if takes_options(package) else {}
    shown = [option(name, field, blocks) for name, field in keys.items() if name not in ("kind", "weight")]
    return first_paragraph(module.__doc__), "; ".join(shown), ", ".join(papers)


def option(name: str, field: FieldInfo, blocks: Blocks) -> str:
    says = blocks.shown(field.annotation, field.metadata, name)
    return f"`{name}` ({says}): {given(field)}"


def takes_options(package: str) -> bool:
    return package not in ("compress.data.tasks", "compress.modelfolder.families")


# --- modules ------------------------------------------------------------------------------------------------------


def modules() -> str:
    """Every module of both packages with the first paragraph of its docstring."""
    text = "# Modules\n\nEvery file with the first paragraph of its docstring. Parts are in [parts](parts.md).\n"
    skipped = {ROOT.joinpath(*package.split(".")) for package in PARTS}
    for top in ("compress", "evaluation"):
        for folder in [ROOT / top, *sorted(p for p in (ROOT / top).rglob("*") if p.is_dir())]:
            files = [p for p in sorted(folder.glob("*.py")) if folder not in skipped or p.stem.startswith("_")]
            rows = [[f"`{path.name}`", docstring(path)] for path in files if docstring(path)]
            if rows and folder not in skipped:
                text += f"\n## {folder.relative_to(ROOT).as_posix()}/\n\n" + table(["file", "what it is"], rows)
    return text


def docstring(path: Path) -> str:
    return first_paragraph(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        if not (FOLDER / name).is_file() or (FOLDER / name).read_text(encoding="utf-8") != text:
            atomic.write_text(FOLDER / name, text)
            print(f"wrote {(FOLDER / name).relative_to(ROOT)}")
