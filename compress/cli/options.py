"""Flags that commands share (`_groups`), gathered into one `RunOptions`.

    @click.command(cls=Command)
    @shared("recipe", "data", "teacher", "compute", "output", "store", "experiment")
    def command(options: RunOptions) -> None: ...

A flag that is a value of the recipe (--seed, --data, --teacher …) becomes an override that blames that flag.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compress.cli._groups import GROUPS, Function
from compress.cli._help import check_values

if TYPE_CHECKING:
    from compress.contracts import Override, RunOptions

DATA_ANSWERS = (
    "task", "text_column", "text_pair_column", "label_column",
    "train_split", "validation_split", "test_split", "unlabelled_split", "unlabelled", "labels",
    "labelled_rows", "unlabelled_rows", "pool", "pool_rows", "pool_by", "teacher_columns", "teacher_values",
    "teacher_noise",
)  # fmt: skip
"""Keys of `data:` that describe one source and say nothing about another."""


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
    recipe = values.get("recipe") or (table and table.recipe_for(values)) or values.get("name")
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
