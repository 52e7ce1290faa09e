"""What the commands that change a model share: click's options from a stage's table of flags, and from the flags that
were given the overrides of the recipe and the run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from compress.cli._help import Command, Option
from compress.cli._types import AMOUNT, MILLISECONDS, Duration, IntRange, ModelName, Names, TeacherName
from compress.cli.options import shared
from compress.errors import UserError

if TYPE_CHECKING:
    from compress.console import Console
    from compress.contracts import Override, RunOptions
    from compress.recipe import LoadedRecipe, Recipe
    from compress.run import RunReport
    from compress.stages.shared.flags import Edit, Flag, Given, Table

Function = TypeVar("Function", bound=Callable[..., Any])

COMPLETE = ("distilbert", "smoke", "smoke-teacher")
"""Recipes that bring a teacher and data of their own."""


def refuse_flags(given: Mapping[str, Any], what: str, do: str) -> None:
    """Raise UserError for the first of these flags that was given: `what` is wrong with it, and what to `do`."""
    for flag, value in given.items():
        if not (value is None or value is False or value == ()):  # 0 is given
            raise UserError(what, where=flag, do=do)


# --- options ----------------------------------------------------------------------------------------------------


def stage_flags(table: Table) -> Callable[[Function], Function]:
    """Give a command the flags of a table; it receives them as `given`, by name."""
    flags = table.all_flags

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def run(*args: Any, **values: Any) -> Any:
            given = {flag.key: values.pop(flag.key) for flag in flags}
            return function(*args, given=given, **values)

        vars(run).update(before=functools.partial(check_given, table), table=table)
        for flag in reversed(flags):
            run = _option(flag, table)(run)
        return run  # type: ignore[return-value]

    return decorate


def model_command(table: Table, *more: str) -> Callable[[Callable[..., None]], click.Command]:
    """A command that changes MODEL by the recipe of a table: its argument, its flags, and what all of these share.

    It receives `options`, `model` and `given`.  more: groups of flags beside (`_groups`).
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        whole = shared(
            "recipe", *more, "data", "unlabelled", "training_compute", "deterministic", "output", "several", "push",
            "store", "experiment",
        )(stage_flags(table)(function))  # fmt: skip
        return click.command(cls=Command)(click.argument("model", type=TeacherName(), required=False)(whole))

    return decorate


def recipe_default(table: Table, flag: Flag) -> str:
    """What the recipe of a command says where the flag is not given; empty where it says nothing that fits a line.

    Reads the file without checking it, which imports nothing heavy.
    """
    from compress.stages.shared.flags import TEMPERATURE, TRAINING_KEYS, running

    rows = _rows(table.recipe) if table.recipe else []
    if flag.key in TRAINING_KEYS and not flag.path:
        found = [row["training"].get(TRAINING_KEYS[flag.key]) for row in running(table, rows, {}).values()]
    elif flag is TEMPERATURE:
        objectives = [one for row in running(table, rows, {}).values() for one in row.get("objectives") or ()]
        found = [one.get("temperature") for one in objectives if one.get("kind") == "soft_targets"]
    elif flag.path and flag.kind != "switch":
        own = [row for row in rows if flag.within or row.get("kind") == table.kind]
        found = [_at(row, flag.path.split(".")) for row in (own if table.every or flag.within else own[:1])]
    else:
        return ""
    shown = list(dict.fromkeys(text for value in found if (text := flag.shown(value))))
    return f"{', '.join(shown)} by stage" if len(shown) > 1 else "".join(shown)


@functools.cache
def _rows(recipe: str) -> list[dict[str, Any]]:
    from compress.recipe import LoadedRecipe

    return LoadedRecipe.read(recipe).rows


def _at(value: Any, path: Sequence[str]) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _option(flag: Flag, table: Table) -> Callable[[Any], Any]:
    kinds: dict[str, Any] = {
        "text": click.STRING,
        "int": click.INT if flag.low is None else IntRange(flag.low, flag.high),
        "float": click.FLOAT,
        "ms": MILLISECONDS,
        "duration": Duration(),
        "amount": AMOUNT,
        "folder": click.Path(path_type=Path),
        "model": ModelName(),
    }
    settings: dict[str, Any] = {"cls": Option, "help": flag.text, "section": flag.group}
    if flag.kind == "switch":
        return click.option(flag.name, flag.key, is_flag=True, **settings)
    settings["usual"] = functools.partial(recipe_default, table, flag)
    settings |= {"multiple": True} if flag.multiple else {}
    kind = click.Choice(flag.choices) if flag.choices else kinds[flag.kind]
    kind = kind if flag.known is None else Names(flag.known, several=flag.several)
    names = (flag.name, flag.alias) if flag.alias else (flag.name,)
    return click.option(*names, flag.key, type=kind, metavar=flag.metavar, **settings)


def check_given(table: Table, values: Mapping[str, Any]) -> None:
    """Raise UserError for what the flags alone say is wrong, before anything heavy is imported.

    values: of the whole command line, by name; those of the table's flags are converted again when they are applied.
    """
    from compress.stages.shared.flags import is_given

    for flag in table.all_flags:
        value: Any = values.get(flag.key)
        for one in (value if flag.multiple else [value]) if is_given(value) else ():
            flag.check(one)
    if table.demo and not any(values.get(name) for name in ("demo", "resume", "dry_run", "print_recipe")):
        _check_inputs(table, values)


def _check_inputs(table: Table, values: Mapping[str, Any]) -> None:
    """`require_inputs` from the command line alone: what it does not name, --set may."""
    model = values.get("teacher") or values.get("model") or values.get("model_again") or values.get("teacher_column")
    data, corpus = values.get("data"), values.get("corpus")
    if (model and (data or corpus)) or values.get("set_"):  # flags may do away with the other
        return
    from compress.recipe import LoadedRecipe

    name = values.get("recipe") or table.recipe_for(values)
    loaded = LoadedRecipe.read(name)
    given = {
        "teacher": model, "data.source": data or (None if _reads_text_only(loaded.content) else corpus),
        "corpus.source": corpus,
    }  # fmt: skip
    changed = {key for key, value in given.items() if value}
    require_inputs(table, name, loaded, changed, model if isinstance(model, str) else None)


def _reads_text_only(content: Mapping[str, Any]) -> bool:
    """Whether the stages of a recipe read plain text and no rows."""
    return all(stage.get("level") == "general" for stage in content["stages"])


# --- flags → recipe ---------------------------------------------------------------------------------------------


def edits(table: Table, loaded: LoadedRecipe, given: Given) -> list[Edit]:
    """What the given flags change in the recipe. loaded: without --set. Raises UserError for flags that do not fit."""
    from compress.stages.shared.flags import Edit, Keys, is_given

    if table.every:  # not validated: --set may bring what is missing
        places = [place for place, kind in enumerate(loaded.kinds) if kind == table.kind]
    else:
        places = [first_stage(loaded.recipe, table.kind)]
    said = [flag for flag in table.flags if is_given(given.get(flag.key))]
    made: list[Edit] = []
    for name, family in table.families.items():
        members = [flag for flag in said if flag.family == name]
        if family.why and len(members) > 1:
            raise UserError(f"{' and '.join(f.name for f in members)} together", why=family.why, do="give one of them")
        origin = " ".join(flag.origin(given[flag.key]) for flag in members)
        made += [Edit(f"stages.{at}.{key}", None, origin) for key in family.keys if members for at in places]
    for flag in said:
        value = given[flag.key]
        if not flag.path:
            continue
        if flag.kind == "switch":
            changed = flag.constant
        else:
            changed = value if flag.convert is None else flag.convert(value, flag.name)
        keys = changed if isinstance(changed, Keys) else {flag.path: changed}
        made += [
            Edit(f"stages.{at}.{key}", content, flag.origin(value))
            for key, content in keys.items()
            for at in ("*" if flag.within else places)
        ]
    made += training_changes(table, str(loaded.content.get("name")), loaded, given)
    return made if table.edits is None else [*made, *table.edits(loaded.recipe, places[0], given)]


def training_changes(table: Table, name: str, loaded: LoadedRecipe, given: Given) -> list[Edit]:
    """What the flags of training change in a recipe, which is validated only where they have no effect: what is wrong
    with it may be the reason."""
    from compress.stages.shared.flags import training_edits

    try:
        return list(training_edits(table, name, loaded.rows, given))
    except UserError:
        _ = loaded.recipe
        raise


def first_stage(recipe: Recipe, kind: str) -> int:
    """The place of the recipe's first stage of this kind. Raises UserError when it has none."""
    for place, stage in enumerate(recipe.stages):
        if stage.kind == kind:
            return place
    kinds = ", ".join(dict.fromkeys(stage.kind for stage in recipe.stages))
    raise UserError(f"recipe {recipe.name} has no {kind} stage", where="--recipe", why=f"its stages: {kinds}")


def with_edits(overrides: Sequence[Override], made: Iterable[Edit]) -> tuple[Override, ...]:
    """All overrides in order: --set comes last, since it is the most exact."""
    from compress.contracts import Override

    exact = [one for one in overrides if one.is_set]
    return (*without_set(overrides), *(Override(e.path, e.value, e.origin) for e in made), *exact)


def without_set(overrides: Sequence[Override]) -> list[Override]:
    """The overrides but for those of --set, which may name keys that only exist once the flags are applied."""
    return [one for one in overrides if not one.is_set]


def resolve(
    table: Table, name: str, model: str | None, given: Given, options: RunOptions, *, later: str = ""
) -> LoadedRecipe:
    """The recipe `name` with what MODEL, the table's flags and the options change in it. Raises UserError.

    later: paths that begin so are only legal once the table's flags are applied.
    """
    from compress.cli._lengths import read_as_long
    from compress.recipe import LoadedRecipe
    from compress.stages.shared.flags import Edit, length_edits

    source = LoadedRecipe.read(name)
    overrides = _without_length(source, options.overrides)
    first = [one for one in without_set(overrides) if not later or not one.path.startswith(later)]
    base = source.with_overrides(first)
    made = edits(table, base, given)
    length = next((one.value for one in without_set(options.overrides) if one.path == "data.max_length"), None)
    length = given.get("max_length") if length is None else length
    if length is not None:
        made += length_edits(table, base.content, base.rows, given, length)
    if model is not None:
        made.insert(0, Edit("teacher", model, f"MODEL {model}"))
    changes = with_edits(overrides, made)
    found = base.with_overrides(changes)
    if table.demo and not (given.get("demo") or options.resume or options.dry_run or options.print_recipe):
        require_inputs(table, name, found, {one.path for one in changes})
    if model is not None and _embeds(model):
        found = and_then(found, _teach_vectors(found, {one.path for one in changes}))
    found = and_then(found, read_as_long(found, name, {one.path: one.value for one in changes}))
    if table.again is None and table.check is None:
        return found
    place = first_stage(found.recipe, table.kind)
    if table.check is not None:
        table.check(found.recipe, place, given)
    return found if table.again is None else and_then(found, table.again(found.recipe, place, given))


def _embeds(name: str) -> bool:
    """Whether MODEL is a folder of a model for sentence embeddings."""
    if not (Path(name) / "modules.json").is_file():
        return False
    from compress.modelfolder import folder as modelfolder

    return modelfolder.inspect(Path(name)).is_embedder


def _teach_vectors(loaded: LoadedRecipe, changed: Collection[str]) -> Iterator[Edit]:
    """What makes a recipe's recovery training one of vectors: the objectives of `embed-distil` take the place of those
    that read the logits of classes, and there is no control, which would train on labels. changed: keys that the
    command line sets, which stay."""
    from compress.registry import build
    from compress.stages.shared.flags import Edit

    origin = "a model for sentence embeddings"
    for place, (stage, row) in enumerate(zip(loaded.recipe.stages, loaded.content["stages"], strict=True)):
        at = f"stages.{place}"
        if stage.kind != "distill" or any(path.startswith(f"{at}.objectives") for path in changed):
            continue
        parts = [build("compress.objectives", one) for one in stage.objectives]
        kept = [
            one for one, part in zip(row["objectives"], parts, strict=True)
            if not part.student_needs.logits or getattr(part, "of_vectors", False)
        ]  # fmt: skip
        if len(kept) == len(parts):
            continue
        own = _rows("embed-distil")[0]["objectives"]
        yield Edit(f"{at}.objectives", [*own, *kept], origin)
        for key, value in (("control", False), ("select", "student")):
            if f"{at}.{key}" not in changed:
                yield Edit(f"{at}.{key}", value, origin)


def _without_length(source: LoadedRecipe, overrides: Sequence[Override]) -> tuple[Override, ...]:
    """Without --max-length of labelled data, where the recipe reads only a corpus."""
    changed = {one.path for one in overrides if one.value is not None}
    if source.content.get("data") is not None or "data.source" in changed or source.content.get("corpus") is None:
        return tuple(overrides)
    return tuple(one for one in overrides if one.path != "data.max_length" or one.is_set)


DATA_FLAGS = {
    "data.source": "--data", "data.unlabelled": "--unlabelled", "data.pool": "--pool",
    "data.teacher_columns": "--teacher-column",
}  # fmt: skip
"""Keys of data that name rows → their flags. --data resets the others."""


def require_inputs(
    table: Table, name: str, loaded: LoadedRecipe, changed: Collection[str], model: str | None = None
) -> None:
    """Raise UserError where a shipped recipe would use its own teacher or data, but for those that are made to be run
    as they are: it would train a teacher for a quarter of an hour, or measure on data that nobody chose.

    changed: keys that the command line sets.  model: MODEL, where it is not in the recipe yet.
    """
    from compress.recipe.library import names as recipe_names
    from compress.recipe.library import read_command

    if name in COMPLETE or name not in recipe_names():
        return
    content, command = loaded.content, table.kind.replace("_", "-")
    named = {path.partition(".")[0] for path in changed}
    flag = "--teacher" if table.kind == "distill" else "MODEL"
    what = "--model FOLDER" if table.kind == "finetune" else "--teacher FOLDER" if flag == "--teacher" else "FOLDER"
    recipe_flag = "" if name == table.recipe else f"--recipe {name} "
    on_text = _reads_text_only(content)
    example = f"compress {command} {recipe_flag}{what} {'--corpus TEXT' if on_text else '--data DATA'}"
    if on_text and (unread := next((flag for path, flag in DATA_FLAGS.items() if path in changed), None)) is not None:
        raise UserError(
            f"has no effect: recipe {name} reads plain text only", where=unread,
            do="use --corpus; labelled data is for the student: compress finetune --model STUDENT --data DATA",
        )  # fmt: skip
    has_own = bool(content.get("teacher") or content.get("teachers"))
    if not has_own and "teacher" in content:  # its first line says what it needs instead
        example = read_command(name)
    if {"teacher", "teachers"} & content.keys() and not named & {"teacher", "teachers"}:
        if (columns := DATA_FLAGS["data.teacher_columns"]) in example:
            raise UserError("a column with the teacher's outputs is required", where=columns, do=example)
        without = "; to try it without one, add --demo" if has_own else ""
        raise UserError("a model is required", where=flag, do=example + without)
    if content.get("data") is not None and "data.source" not in changed:
        parent = model or content.get("teacher") or content.get("model")
        raise UserError(
            "data is required: labelled rows, or texts for an embedding model",
            where="--data",
            do=_which_data(parent, example),
        )
    if content.get("corpus") is not None and "corpus.source" not in changed:
        raise UserError(
            "plain text is required", where="--corpus", do="add --corpus FILE; to use built-in text, add --demo"
        )


def _which_data(name: str | None, example: str) -> str:
    """The data that the model called `name` was made from, where its folder says so."""
    other = "to use built-in data, add --demo"
    if name is None or not (Path(name) / "config.json").is_file():
        return f"{example}; {other}"
    from compress.modelfolder import meta

    found = meta.read(Path(name))
    if found is None or found.data is None:
        return f"{example}; {other}"
    return f"the model was made from {found.data.name}; {other}"


def and_then(loaded: LoadedRecipe, made: Iterable[Edit]) -> LoadedRecipe:
    """A recipe that --set has changed already, with edits."""
    from compress.contracts import Override

    return loaded.and_then(*(Override(one.path, one.value, one.origin) for one in made))


def as_given(name: str, options: RunOptions) -> Callable[[], LoadedRecipe]:
    """What reads the recipe that the options name, else `name`, of a command whose flags change nothing else in it."""
    from compress.recipe import LoadedRecipe

    return lambda: LoadedRecipe.read(options.recipe or name, options.overrides)


# --- the run ----------------------------------------------------------------------------------------------------


def run_table(
    table: Table, model: str | None, given: Given, options: RunOptions, *, inputs: Mapping[str, Path] | None = None
) -> None:
    """The recipe with the flags applied, all of its stages; with --no-recover only those of the table's kind."""
    console, name = listening(options), options.recipe or table.recipe
    verb = table.kind if given.get("no_recover") else None
    loaded = resolve(table, name, model, given, options)
    run(loaded, options, console, verb=verb, seeds=given.get("seeds"), inputs=inputs)


def listening(options: RunOptions) -> Console:
    """The console of a command, which prints log messages from now on."""
    from compress.console import Console

    console = Console(quiet=options.quiet, json=options.json)
    console.listen()
    return console


def prints_recipe(loaded: LoadedRecipe, options: RunOptions, console: Console) -> bool:
    """Print the recipe where that, and no plan, was requested; whether it was."""
    if not options.print_recipe or options.dry_run:
        return False
    console.result(loaded.recipe.dump_yaml().rstrip())
    console.document(loaded.recipe.model_dump(mode="json"))
    return True


def run(
    loaded: LoadedRecipe,
    options: RunOptions,
    console: Console,
    *,
    verb: str | None,
    seeds: int | None = None,
    inputs: Mapping[str, Path] | None = None,
) -> RunReport | None:
    """The recipe's stages of this kind (None: all of them), once or with so many seeds; None without a report."""
    if prints_recipe(loaded, options, console):
        return None
    from compress.experiments.launch import launch

    with naming_flags(loaded):
        return launch(loaded, options, console, seeds=seeds, verb=verb, inputs=inputs or {})


@contextmanager
def naming_flags(loaded: LoadedRecipe) -> Iterator[None]:
    """Inside, an error about a key of a stage names the flag that set this key."""
    try:
        yield
    except UserError as error:
        for one in reversed(loaded.overrides):
            stages, _, rest = one.path.partition(".")
            key = rest.partition(".")[2]
            if stages == "stages" and key and key == error.where and one.value is not None:
                same = one.origin.split()[0] == f"--{key.replace('_', '-')}"
                error.where = one.origin if same else f"{one.origin}: {key}"
                error.args = (error.line(),)
                break
        raise
