"""Validation errors as one line: where it stands, the key path, found against allowed, the nearest legal name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compress.errors import UserError, describe, did_you_mean, format_count, nearest, printable
from compress.recipe.document import Place, Value

if TYPE_CHECKING:
    from pydantic import ValidationError

WANTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "mapping": "a mapping",
}
BOUNDS = {
    "greater_than": (">", "gt"),
    "greater_than_equal": (">=", "ge"),
    "less_than": ("<", "lt"),
    "less_than_equal": ("<=", "le"),
}

Problem = Mapping[str, Any]
Path = tuple[str | int, ...]


def explain(error: ValidationError, root: Value, within: Path = ()) -> UserError:
    """The error to show for a recipe that is not valid: the one nearest to its cause, and how many others there are.

    within: path of the block that was validated.
    """
    found = [{**problem, "loc": (*within, *problem["loc"])} for problem in error.errors(include_url=False)]
    problems = sorted(_causes(found), key=lambda problem: _rank(problem, root))
    first = _explain(problems[0], root)
    others = len(problems) - 1
    if others:
        more = f"and {format_count(others, 'more problem')}"
        first = UserError(first.what, where=first.where, why=first.why, do=f"{first.do} ({more})" if first.do else more)
    return first


def explain_unknown_key(block: Path, key: str, known: Sequence[str], root: Value) -> UserError:
    """The error about a key that the block at this path does not have."""
    return _unknown_key(block, {"key": key, "known": known}, root)


def format_key_path(path: Sequence[str | int]) -> str:
    """A key path as a person writes it after --set."""
    return printable(".".join(map(str, path)), 200)


def locate(root: Value, path: Sequence[str | int]) -> tuple[Value, bool]:
    """The value at `path`, or the deepest one that exists above it, and whether the whole path exists."""
    here = root
    for step in path:
        content = here.content
        if isinstance(content, dict) and step in content:
            here = content[str(step)]
        elif isinstance(content, list) and isinstance(step, int) and step < len(content):
            here = content[step]
        else:
            return here, False
    return here, True


def _causes(problems: Sequence[Any]) -> list[Problem]:
    """Without "too few items" of a list whose items were refused: that is their shadow."""
    return [
        p
        for p in problems
        if p["type"] != "too_short" or not any(q is not p and q["loc"][: len(p["loc"])] == p["loc"] for q in problems)
    ]


def _rank(problem: Problem, root: Value) -> tuple[int, int, int]:
    """Misspelt keys first, since each also shows up as a missing one; then as they stand in the file."""
    urgency = {"unknown_key": 0, "unknown_kind": 1, "no_kind": 1, "missing": 3}.get(problem["type"], 2)
    place = locate(root, problem["loc"])[0].place
    return urgency, place.line, place.column


def _explain(problem: Problem, root: Value) -> UserError:
    kind, path, context = problem["type"], tuple(problem["loc"]), problem.get("ctx", {})
    if kind == "unknown_key":
        return _unknown_key(path, context, root)
    if kind == "unknown_kind":
        return _unknown_kind((*path, "kind"), context, root)
    if kind in ("missing", "no_kind"):
        return _missing(path if kind == "missing" else (*path, "kind"), context, root)
    if kind == "missing_block":
        return _missing_block(context, root)
    value, exists = locate(root, path)
    while not exists and not isinstance(value.content, dict):  # pydantic adds which member of a union it tried
        path = path[:-1]
        value, exists = locate(root, path)
    found = problem["input"]
    if kind == "unknown_name":
        why = f"found {describe(found)}, allowed: {', '.join(context['known'])}"
        return UserError(format_key_path(path), where=str(value.place), why=why, do=_near(found, context["known"]))
    place = _start(value) if kind == "value_error" and exists and isinstance(value.content, dict) else value.place
    return UserError(
        format_key_path(path) or "recipe",
        where=str(place),
        why=_why(kind, problem, found),
        do=_hint(kind, found, context),
    )


def _unknown_key(path: Path, context: Mapping[str, Any], root: Value) -> UserError:
    key, known = str(context["key"]), context["known"]
    parent, _ = locate(root, path)
    child, exists = locate(root, (*path, key))
    place = (child.key_place or child.place) if exists else parent.place
    do = _name_stage_with(key, path, root) or did_you_mean(key, known)
    return UserError(f"{format_key_path((*path, key))}: unknown key", where=str(place), do=do)


def _name_stage_with(key: str, path: Path, root: Value) -> str:
    """Where another stage of the recipe has this key: which one; a stage is easily miscounted after --set."""
    stages = locate(root, ("stages",))[0].content
    if len(path) != 2 or path[0] != "stages" or not isinstance(stages, list):
        return ""
    kinds = [stage.content["kind"].content if _has(stage, "kind") else "" for stage in stages]
    others = [f"stages.{i} ({kinds[i]})" for i, stage in enumerate(stages) if i != path[1] and _has(stage, key)]
    return f"stages.{path[1]} is {kinds[int(path[1])]}; {others[0]} has this key" if others else ""


def _has(stage: Value, key: str) -> bool:
    return isinstance(stage.content, dict) and key in stage.content


def _unknown_kind(path: Path, context: Mapping[str, Any], root: Value) -> UserError:
    value, _ = locate(root, path)
    kind, known = context["kind"], context["known"]
    do = did_you_mean(kind, known) if isinstance(kind, str) else "known: " + ", ".join(known)
    return UserError(
        f"{format_key_path(path)}: unknown kind", where=str(value.place), why=f"found {describe(kind)}", do=do
    )


def _missing(path: Path, context: Mapping[str, Any], root: Value) -> UserError:
    parent, _ = locate(root, path[:-1])
    do = "known: " + ", ".join(context["known"]) if "known" in context else f"add `{path[-1]}:`"
    return UserError(f"{format_key_path(path)}: missing key", where=str(_start(parent)), do=do)


def _missing_block(context: Mapping[str, Any], root: Value) -> UserError:
    stage, _ = locate(root, ("stages", context["stage"]))
    why = f"stages.{context['stage']} ({context['kind']}) needs it"
    return UserError(f"{context['key']}: missing key", where=str(_start(stage)), why=why, do=f"add `{context['key']}:`")


def _start(value: Value) -> Place:
    """Where a mapping begins, for a person: at its key when it has one."""
    return value.key_place or value.place


def _why(kind: str, problem: Problem, found: Any) -> str:
    context = problem.get("ctx", {})
    if kind in ("value_error", "assertion_error"):
        return str(context["error"])
    if kind in BOUNDS:
        sign, name = BOUNDS[kind]
        return f"found {describe(found)}, allowed: {sign} {context[name]:g}"
    if kind == "literal_error":
        return f"found {describe(found)}, allowed: {_choices(context)}"
    if kind == "string_too_short":
        return "found an empty text"
    if kind in ("too_short", "too_long"):
        bound = f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
        return f"found {context['actual_length']} items, allowed: {bound}"
    wanted = WANTED.get(kind.partition("_")[0])
    if wanted:
        return f"found {describe(found)}, allowed: {wanted}"
    return f"found {describe(found)}: {problem['msg']}"


def _choices(context: Mapping[str, Any]) -> str:
    return str(context["expected"]).replace("'", "").replace(" or ", ", ")


def _hint(kind: str, found: Any, context: Mapping[str, Any]) -> str | None:
    """The nearest right thing, where one can be named."""
    if kind == "literal_error" and isinstance(found, str):
        return _near(found, _choices(context).split(", "))
    if kind == "string_type" and isinstance(found, bool | int | float):
        return f"quote it: '{describe(found)}'"
    if kind in ("int_type", "float_type") and isinstance(found, str):
        number = _number(found, int if kind == "int_type" else float)
        return None if number is None else f"write {number}"
    if kind == "bool_type" and isinstance(found, str):
        meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(found.lower())
        return f"write {meant}" if meant else None
    return None


def _near(found: str, known: Sequence[str]) -> str | None:
    hit = nearest(found, known)
    return f"did you mean '{hit}'?" if hit else None


def _number(text: str, kind: type[int] | type[float]) -> int | float | None:
    try:
        number = kind(text)
    except ValueError:
        return None
    return number if abs(number) < 1e15 else None
