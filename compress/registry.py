"""File name = kind: finds a part in its folder and builds it from a recipe row (the only dynamic import).

Adding a part is adding a file. A folder of parts (`compress.objectives`, …) holds one class per file, named like the
folder in the singular (`Objective`); files starting with `_` are not parts. A stage is a folder
`compress/stages/<kind>/` with `spec.py` (class `Spec`, light) and `stage.py` (class `Stage`); both are found here, so
recipes never name a folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

from compress.errors import ExitCode, UserError, did_you_mean, printable

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

    from compress.contracts import PartRow, StageSpec

ROOT = Path(__file__).parent


# --- parts ------------------------------------------------------------------------------------------------------


def parts(package: str) -> dict[str, str]:
    """kind → module name, of every part in `package` (dotted name). Nothing is imported."""
    folder = ROOT.parent.joinpath(*package.split("."))
    return {name: f"{package}.{name}" for name in _file_names(folder, folder.stat().st_mtime_ns)}


@cache
def _file_names(folder: Path, changed: int) -> tuple[str, ...]:
    """The parts of a folder that was last changed at `changed` (ns): each quantized module that is built asks."""
    return tuple(sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")))


def noun(package: str) -> str:
    """What one part of `package` is called: the folder's name in the singular (objectives → objective)."""
    plural = package.rpartition(".")[2]
    if plural == "criteria":
        return "criterion"
    return plural[:-3] + "y" if plural.endswith("ies") else plural.removesuffix("s")


def module(package: str, kind: str) -> ModuleType:
    """The file of one part, imported. Raises UserError for a kind that has no file, and for a part whose file has a
    mistake."""
    known = parts(package)
    if kind not in known:
        raise UserError(f"unknown {noun(package)} '{kind}'", do=did_you_mean(kind, known))
    try:
        return _import(known[kind])
    except (SyntaxError, NameError) as error:
        at = traceback.TracebackException.from_exception(error)
        file, line = (error.filename, error.lineno) if isinstance(error, SyntaxError) else at.stack[-1][:2]
        if package not in CONTRACTS or Path(file or "").stem != known[kind].rpartition(".")[2]:
            raise
        what = f"cannot import this file: {type(error).__name__}: {getattr(error, 'msg', error)}"
        raise UserError(what, where=f"{file}:{line}") from error


def load(package: str, kind: str) -> type:
    """The class of one part, e.g. `Objective` of compress/objectives/<kind>.py. Raises UserError where it has not all
    that its contract asks of the class."""
    part = _class_of(module(package, kind), noun(package).capitalize(), f"every file of {package}")
    _check_class(package, part)
    return part


def _class_of(found: ModuleType, name: str, needed: str) -> type[Any]:
    """needed: in what there must be one, for people."""
    if not hasattr(found, name):
        raise UserError(f"the file has no class {name}", where=found.__file__, do=f"{needed} needs one")
    return getattr(found, name)


@cache
def schema(package: str, kind: str) -> type[PartRow]:
    """What a recipe row of this part may say: its constructor's keyword-only arguments, with their types and defaults.

    Bounds are written in the signature: `temperature: Annotated[float, Field(gt=0)] = 2.0`. Arguments before the `*`
    are what the caller brings (widths, tokenizer …) and are no business of a recipe.
    """
    from pydantic import create_model

    from compress.contracts import ObjectiveRow, PartRow

    part = load(package, kind)
    fields: dict[str, Any] = {"kind": (Literal[kind], ...)}
    fields.update(_keywords(part))
    name = "".join(word.capitalize() for word in kind.split("_")) + noun(package).capitalize()
    base = ObjectiveRow if noun(package) == "objective" else PartRow
    # Its fields have no docstrings, and to look for them pydantic reads the source of every caller up to main.
    plain: Any = {"use_attribute_docstrings": False}
    return create_model(name, __base__=base, __doc__=inspect.getdoc(part), __cls_kwargs__=plain, **fields)


def build(package: str, row: PartRow, *given: Any) -> Any:
    """The part that `row` describes; `given` are the constructor's arguments before its keywords."""
    return create(package, row.kind, *given, **row.options())


def create(package: str, kind: str, *given: Any, **options: Any) -> Any:
    """A part of this kind. Raises UserError where it has not all that its contract asks."""
    part = load(package, kind)
    made = part(*given, **options)
    if (contract := _contract(package)) is not None:
        _require(part, contract, [name for name in _members(contract)[1] if not hasattr(made, name)])
    return made


CONTRACTS = {
    "compress.objectives": "compress.contracts:Objective",
    "compress.quantizers": "compress.contracts:Quantizer",
    "compress.stages.prune_layers.criteria": "compress.contracts:LayerCriterion",
    "compress.stages.prune_width.importance": "compress.contracts:WidthImportance",
    "compress.stages.share.patterns": "compress.contracts:SharingPattern",
    "compress.stages.share.starts": "compress.contracts:SharedStart",
    "compress.stages.factorize.methods": "compress.contracts:FactorMethod",
    "compress.stages.sparsify.methods": "compress.contracts:SparseMethod",
    "compress.stages.finetune.tunings": "compress.stages.finetune.tunings._base:Base",
    "compress.data.tasks": "compress.data.task:Task",
    "compress.modelfolder.families": "compress.modelfolder.family:Family",
}
"""Package → module:class that says what its parts must offer."""


@cache
def _contract(package: str) -> type | None:
    if package not in CONTRACTS:
        return None
    name, _, attribute = CONTRACTS[package].partition(":")
    return getattr(_import(name), attribute)


@cache
def _members(contract: type) -> tuple[list[str], list[str]]:
    """What a contract asks of a class (methods and class variables), and what of its instances (the rest)."""
    notes = inspect.get_annotations(contract)
    names = [name for name in {**notes, **vars(contract)} if not name.startswith("_")]
    later = [
        name
        for name in names
        if not notes.get(name, "ClassVar").startswith("ClassVar") or isinstance(vars(contract).get(name), property)
    ]
    return [name for name in names if name not in later], later


@cache
def _check_class(package: str, part: type) -> None:
    contract = _contract(package)
    if contract is None:
        return
    lacking = [name for name in _members(contract)[0] if not hasattr(part, name)]
    lacking += sorted(getattr(part, "__abstractmethods__", frozenset()) - {*lacking})
    if "__call__" in vars(contract):
        if getattr(getattr(part, "forward", None), "__name__", "") == "_forward_unimplemented":  # of an nn.Module
            lacking.append("forward")
        elif not any("__call__" in vars(base) for base in part.__mro__):
            lacking.append("__call__")
    _require(part, contract, lacking)


def _require(part: type, contract: type, lacking: list[str]) -> None:
    if lacking:
        described = f"class {contract.__name__} in {Path(inspect.getfile(contract)).relative_to(ROOT.parent)}"
        what = f"class {part.__name__} has no {', '.join(lacking)}"
        raise UserError(what, where=inspect.getfile(part), do=f"{described} says what it needs")


def _keywords(part: type) -> dict[str, tuple[Any, Any]]:
    """name → (type, default) of the keyword-only arguments of a class's constructor."""
    init = inspect.unwrap(part.__init__)
    chosen = [p for p in inspect.signature(init).parameters.values() if p.kind is p.KEYWORD_ONLY]
    untyped = [p.name for p in chosen if p.annotation is p.empty]
    if untyped:
        what = f"class {part.__name__} has arguments without a type: {', '.join(untyped)}"
        raise UserError(what, where=inspect.getfile(part), do="add the type, as in `rate: float = 1.0`")
    if not chosen:  # also of a class without a constructor of its own
        return {}
    try:
        hints = _resolve(init, [p.name for p in chosen])
    except NameError as error:
        what = f"class {part.__name__} has an argument of an unknown type: {error}"
        raise UserError(what, where=inspect.getfile(part), do="import the type") from error
    return {p.name: (hints[p.name], ... if p.default is p.empty else p.default) for p in chosen}


def _resolve(function: Any, names: list[str]) -> dict[str, Any]:
    """Types of some arguments only: the others may name what is imported for type checkers alone."""

    def carrier() -> None: ...

    assert isinstance(carrier, FunctionType)
    carrier.__annotations__ = {name: function.__annotations__[name] for name in names}
    return typing.get_type_hints(carrier, globalns=function.__globals__, include_extras=True)


# --- stages -----------------------------------------------------------------------------------------------------


@cache
def stages() -> dict[str, str]:
    """kind → package, of every folder of `compress/stages/` that has a spec.py."""
    return {
        kind: f"compress.stages.{kind}" for kind in sorted(spec.parent.name for spec in ROOT.glob("stages/*/spec.py"))
    }


def stage_spec(kind: str) -> type[StageSpec]:
    """What a recipe may say about this kind of stage (light: nothing heavy is imported)."""
    return _class_of(_import(f"{_stage_package(kind)}.spec"), "Spec", "the spec.py of a stage")


def stage_class(kind: str) -> type:
    """The class that does the work of this kind of stage."""
    package = _stage_package(kind)
    if importlib.util.find_spec(f"{package}.stage") is None:
        raise UserError("no stage.py in this folder", where=str(ROOT / "stages" / kind))
    return _class_of(_import(f"{package}.stage"), "Stage", "the stage.py of a stage")


def _stage_package(kind: str) -> str:
    if kind not in stages():
        raise UserError(f"unknown stage '{kind}'", do=did_you_mean(kind, stages()))
    return stages()[kind]


# --- the user's own ---------------------------------------------------------------------------------------------


def function(name: str, where: str) -> Callable[..., Any]:
    """A function of the user's: `module:function`, importable from here or from the working folder.

    where: the recipe key that names it. Raises UserError for anything that keeps it from being called.
    """
    module, colon, attribute = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise UserError("not of the form module:function", where=where, why=f"found '{printable(name, 80)}'")
    here = str(Path.cwd())
    sys.path.append(here)  # last: a file of the user's must not stand in for an installed package
    try:
        found = importlib.import_module(module)
    except Exception as error:  # a module of somebody else's may raise anything
        missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        raise UserError(
            f"cannot import '{module}'",
            where=where,
            why="no such module" if missing else printable(f"{type(error).__name__}: {error}", 160),
            do="install it, or run from the folder that contains its file" if missing else None,
        ) from error
    finally:
        sys.path.remove(here)
    if not callable(getattr(found, attribute, None)):
        known = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
        raise UserError(f"'{module}' has no function '{attribute}'", where=where, do=did_you_mean(attribute, known))
    return getattr(found, attribute)


def _import(name: str) -> ModuleType:
    """Import one of our modules; what it needs and is not installed becomes a clear error."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "compress", "evaluation"):
            raise
        raise UserError(
            f"{name} needs the package '{missing}', which is not installed",
            do="`compress doctor` shows which extra installs it",
            code=ExitCode.ENVIRONMENT,
        ) from error


# --- as fields of a recipe --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowOf:
    """Annotation of a recipe field: a row whose `kind` names a part, validated by that part's own schema.

    package: a folder of parts, or None for the stages. Kinds are looked up when a value is validated, not when the
    field is declared: declaring must stay light, and a part dropped into the folder must count.
    """

    package: str | None = None

    def kinds(self) -> Mapping[str, str]:
        return stages() if self.package is None else parts(self.package)

    def model(self, kind: str) -> type[Any]:
        return stage_spec(kind) if self.package is None else schema(self.package, kind)

    def validate(self, value: Any) -> Any:
        from pydantic_core import PydanticCustomError, PydanticKnownError

        from compress.contracts import PartRow, StageSpec

        if isinstance(value, StageSpec | PartRow):
            return value
        if not isinstance(value, Mapping):
            raise PydanticKnownError("dict_type")
        kinds = list(self.kinds())
        if "kind" not in value:
            raise PydanticCustomError("no_kind", "missing key", {"known": kinds})
        kind = value["kind"]
        if kind not in kinds:
            raise PydanticCustomError("unknown_kind", "unknown kind", {"kind": kind, "known": kinds})
        return self.model(kind).model_validate(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        serialize = core_schema.plain_serializer_function_ser_schema(lambda row: row.model_dump(mode="json"))
        return core_schema.no_info_plain_validator_function(self.validate, serialization=serialize)

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        from pydantic import TypeAdapter

        rows = []
        for kind in self.kinds():
            row = TypeAdapter(self.model(kind)).json_schema()
            # Each row brings its own definitions; a JSON pointer inside a oneOf would not find them.
            rows.append(_inline(row, row.pop("$defs", {})))
        return {"oneOf": rows}


def _inline(node: Any, definitions: Mapping[str, Any]) -> Any:
    """`node` with every local reference replaced by what it points at (our schemas do not recurse)."""
    if isinstance(node, dict):
        target = node.get("$ref")
        if isinstance(target, str):
            rest = {key: value for key, value in node.items() if key != "$ref"}
            return _inline({**definitions[target.rpartition("/")[2]], **rest}, definitions)
        return {key: _inline(value, definitions) for key, value in node.items()}
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    return node
