"""The files of an archive of runs, as `export` writes and `import` reads them.

    FOLDER/manifest.json       sha256 of every file below
           archive.json        format, and the runs in it, those above before those below
           runs/<id>.json      what the store knows of a run     runs/<id>/…    its artifacts
           models/<id>.json    what it knows of a logged model   models/<id>/…  its files

Nothing is pickled, and nothing in it is ever run.
"""

from __future__ import annotations

import posixpath
import re
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, ValidationInfo
from pydantic import field_validator as validates

from compress.errors import UserError, printable
from compress.storage import safe
from compress.tracking.names import (
    DATASET_NAME_LIMIT,
    DIGEST_LIMIT,
    EXPERIMENT_LIMIT,
    INPUT_KEY_LIMIT,
    INPUT_VALUE_LIMIT,
    KEY_LIMIT,
    PARAM_LIMIT,
    SOURCE_STORED,
    TAG_LIMIT,
    VIEW_LIMIT,
)
from compress.tracking.view import PREFIX, TAG

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

VERSION = 1
INDEX = "archive.json"
LIMIT = 256 << 20
RUN_NAME = "mlflow.runName"
PARENT_TAGS = ("mlflow.parentRunId", "compress.parent_run")
_SPARED = ("start_time", "end_time", "model_type")
_LATEST = 253_402_300_799_999
"""Milliseconds: the end of the year 9999."""
_KEY = re.compile(r"[/\w.\- :]+")


def _checked_key(key: str) -> str:
    """What MLflow takes as the name of a metric, a parameter or a tag."""
    if not _KEY.fullmatch(key):
        raise ValueError("a key holds letters, digits, spaces and _ - . : / only")
    if posixpath.normpath(key) != key or key.startswith(("/", "..")) or key == ".":
        raise ValueError("a key must not read as another path")
    return key


def _checked_name(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise ValueError("a name has at least one character, and no control characters")
    return name


def _checked_model_name(name: str) -> str:
    if any(c in name for c in "/:.%\"'"):
        raise ValueError("the name of a model has none of / : . % \" '")
    return name


def _checked_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("a text has no NUL character")
    return text


TEXT = AfterValidator(_checked_text)
NAME = AfterValidator(_checked_name)


def _checked_data(point: tuple[Any, ...]) -> tuple[Any, ...]:
    if (point[4] is None) != (point[5] is None):
        raise ValueError("a data set has a name and a digest")
    return point


Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$")]
"""Of a run or a model: a name of files too, so nothing that a path could misread."""
Key = Annotated[str, Field(max_length=KEY_LIMIT), AfterValidator(_checked_key)]
Time = Annotated[int, Field(ge=0, le=_LATEST)]
"""Milliseconds since 1970."""
Moment = Annotated[int, Field(ge=1, le=_LATEST)]
"""The same of a run: MLflow reads 0 as now."""
Step = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Params = dict[Key, Annotated[str, Field(max_length=PARAM_LIMIT), TEXT]]
Tags = dict[Key, Annotated[str, Field(max_length=TAG_LIMIT), TEXT]]
Point = Annotated[tuple[Key, float, Time, Step], Strict(False)]
"""key, value, time in ms, step; a list in JSON."""
ModelPoint = Annotated[
    tuple[
        Key,
        float,
        Time,
        Step,
        Annotated[str, Field(max_length=DATASET_NAME_LIMIT), NAME] | None,
        Annotated[str, Field(max_length=DIGEST_LIMIT), NAME] | None,
    ],
    Strict(False),
    AfterValidator(_checked_data),
]
"""As a point, then name and digest of the data set."""


class _File(BaseModel):
    # Strict: "1.5", true and 5.0 are no numbers, 5 is no text.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class Dataset(_File):
    name: Annotated[str, Field(max_length=DATASET_NAME_LIMIT), NAME]
    digest: Annotated[str, Field(max_length=DIGEST_LIMIT), NAME]
    source_type: Annotated[str, Field(max_length=KEY_LIMIT), TEXT] | None
    source: Annotated[str, Field(max_length=SOURCE_STORED), TEXT] | None
    tags: dict[
        Annotated[str, Field(max_length=INPUT_KEY_LIMIT), NAME],
        Annotated[str, Field(max_length=INPUT_VALUE_LIMIT), TEXT],
    ]


class RunFile(_File):
    id: Id
    name: Annotated[str, Field(max_length=TAG_LIMIT), NAME]
    experiment: Annotated[str, Field(max_length=EXPERIMENT_LIMIT), NAME]
    status: str = Field(pattern="^(RUNNING|SCHEDULED|FINISHED|FAILED|KILLED)$")
    start_time: Moment | None
    end_time: Moment | None
    tags: Tags
    params: Params
    metrics: list[Point]
    datasets: list[Dataset]
    models: list[Id]

    @validates("end_time")
    @classmethod
    def _after_start(cls, end: int | None, info: ValidationInfo) -> int | None:
        if end is not None and end < (info.data.get("start_time") or 0):
            raise ValueError("a run cannot end before it starts")
        return end

    @validates("tags")
    @classmethod
    def _one_name(cls, tags: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if tags.get(RUN_NAME, info.data.get("name")) != info.data.get("name"):
            raise ValueError(f"the tag {RUN_NAME} is not the name of the run")
        return tags

    @validates("models")
    @classmethod
    def _once(cls, models: list[str]) -> list[str]:
        return _unique(models)


class ModelFile(_File):
    id: Id
    name: Annotated[str, Field(max_length=TAG_LIMIT), NAME, AfterValidator(_checked_model_name)]
    model_type: Annotated[str, Field(max_length=TAG_LIMIT), TEXT] | None
    tags: Tags
    params: Params
    metrics: list[ModelPoint]


class Index(_File):
    format: Literal["compress-runs"] = "compress-runs"
    version: Annotated[int, Field(ge=1)] = VERSION
    store: Annotated[str, Field(max_length=TAG_LIMIT), TEXT]
    """Where it was exported, without password."""
    runs: list[Id]
    experiments: dict[
        Annotated[str, Field(max_length=EXPERIMENT_LIMIT), NAME],
        dict[Key, Annotated[str, Field(max_length=VIEW_LIMIT), TEXT]],
    ]
    """Experiment → its saved views, as tags."""

    @validates("runs")
    @classmethod
    def _once(cls, runs: list[str]) -> list[str]:
        return _unique(runs)

    @validates("experiments")
    @classmethod
    def _views_alone(cls, experiments: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        for tags in experiments.values():
            for tag in tags:
                if not tag.startswith(TAG + PREFIX):
                    raise ValueError(f"the tag {printable(tag, 80)} is not a saved view")
        return experiments


def _unique(ids: list[str]) -> list[str]:
    seen: set[str] = set()
    for identity in ids:
        if identity in seen:
            raise ValueError(f"{identity} is listed twice")
        seen.add(identity)
    return ids


Read = TypeVar("Read", bound=_File)


def read(path: Path, kind: type[Read]) -> Read:
    """One of the archive's JSON files. UserError with the first thing that is wrong with it."""
    content = safe.read_json(path, LIMIT)
    version = content.get("version")
    if kind is Index and type(version) is int and version > VERSION:
        why = f"its format version is {version}; this program supports up to {VERSION}"
        where = str(path.parent)
        raise UserError("the archive was written by a newer version", where=where, why=why, do="upgrade compress")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise UserError("not the format of an archive", where=str(path), why=describe(error)) from None


def write_valid(kind: type[Read], content: dict[str, Any]) -> tuple[Read, list[str]]:
    """What the store says in the form of the archive, and sentences on what of it the format does not take.

    A store checks less than an import does; what it does not take is left out: one parameter or tag, one point, a time.
    Raises ValidationError where the rest cannot stand without it.
    """
    try:
        return kind(**content), []
    except ValidationError as error:
        kept, said = {key: copy(value) for key, value in content.items()}, []
        rows: dict[str, set[Any]] = {}
        for fault in error.errors(include_url=False, include_input=False):
            name, *inner = fault["loc"]
            if inner:
                rows.setdefault(str(name), set()).add(inner[0])
            elif name in _SPARED:
                kept[str(name)] = None
            said.append(_said(fault))
        for name, ids in rows.items():
            values = kept[name]
            if isinstance(values, dict):
                kept[name] = {key: value for key, value in values.items() if key not in ids}
            else:
                kept[name] = [value for place, value in enumerate(values) if place not in ids]
        return kind(**kept), said


def describe(error: ValidationError) -> str:
    """Where the first fault is, as key.row, and what it is."""
    return _said(error.errors(include_url=False, include_input=False)[0])


def _said(fault: ErrorDetails) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    return f"{printable(key, 200)}: {printable(fault['msg'].removeprefix('Value error, '), 200)}"
