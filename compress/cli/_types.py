"""Kinds of values that flags take: what the shell completes, and what is wrong with one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from compress.data.reading.remote import Place


class IntRange(click.IntRange):
    """A whole number within bounds. click's class says "not a valid integer range" of what is no number."""

    name = click.INT.name


class FloatRange(click.FloatRange):
    """A number within bounds; its name as `IntRange`'s."""

    name = click.FLOAT.name


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
    """Data: an embedded set, a file, a folder, s3://bucket/key, or hf:name."""

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

        if not isinstance(value, Path):
            value.require_there()
        elif str(value) != "-" and not value.exists():
            raise make_missing_error(value)


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
            found = float(text[:-1] if scale != 1 else text) * scale
        except ValueError:
            self.fail(f"'{value}' is not an amount, such as 12M, 1.5G or 50%", param, ctx)
        if scale == 0.01 and found >= 1:  # from 1 on it would be a count
            self.fail(f"'{value}' is not a share below 100%", param, ctx)
        return found


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
