"""The files of an archive of runs, as `export` writes and `import` reads them.

    FOLDER/manifest.json       sha256 of every file below
           archive.json        format, and the runs in it, those above before those below
           runs/<id>.json      what the store knows of a run     runs/<id>/…    its artifacts
           models/<id>.json    what it knows of a logged model   models/<id>/…  its files

Nothing is pickled, and nothing in it is ever run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compress.errors import ExitCode, UserError, printable
from compress.storage import safe

VERSION = 1
INDEX = "archive.json"
LIMIT = 256 << 20

Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
"""Of a run or a model: a name of files too, so nothing that a path could misread."""

Point = tuple[str, float, int, int]
"""key, value, time in ms, step."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Dataset(_File):
    name: str
    digest: str
    source_type: str | None
    source: str | None
    tags: dict[str, str]


class RunFile(_File):
    id: Id
    name: str
    experiment: str
    status: str = Field(pattern="^(RUNNING|SCHEDULED|FINISHED|FAILED|KILLED)$")
    start_time: int | None
    end_time: int | None
    tags: dict[str, str]
    params: dict[str, str]
    metrics: list[Point]
    datasets: list[Dataset]
    models: list[Id]


class ModelFile(_File):
    id: Id
    name: str
    model_type: str | None
    tags: dict[str, str]
    params: dict[str, str]
    metrics: list[tuple[str, float, int, int, str | None, str | None]]
    """As a point, then name and digest of the data set."""


class Index(_File):
    format: Literal["compress-runs"] = "compress-runs"
    version: int = VERSION
    store: str
    """Where it was exported, without password."""
    runs: list[Id]
    experiments: dict[str, dict[str, str]]
    """Experiment → its saved views, as tags."""


Read = TypeVar("Read", bound=_File)


def read(path: Path, kind: type[Read]) -> Read:
    """One of the archive's JSON files. UserError with the first thing that is wrong with it."""
    try:
        return kind.model_validate(safe.read_json(path, LIMIT))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        why = printable(f"{key}: {first['msg']}", 200)
        raise UserError("not the format of an archive", where=str(path), why=why, code=ExitCode.DATA) from None
