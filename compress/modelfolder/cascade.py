"""A cascade on the disk: a folder of model folders that answer in turn, each the rows that it is sure of.

cascade.json                 the models in order: name, folder, temperature, threshold
compress.json  README.md     labels, task, parents and figures, as of any model folder
stage-1/  stage-2/  …        whole model folders, the fastest first
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compress.data.tables.label_order import outputs_in_order
from compress.errors import UserError, printable
from compress.modelfolder import folder as modelfolder
from compress.modelfolder import meta as metas
from compress.modelfolder import private
from compress.modelfolder.card.facts import Facts
from compress.modelfolder.card.page import render
from compress.modelfolder.folder import FolderInfo, FolderMeta
from compress.modelfolder.meta import CASCADE, is_cascade, refuse_newer
from compress.modelfolder.open import require_as_written
from compress.modelfolder.save import README
from compress.modelfolder.weights import PICKLES
from compress.storage import atomic, manifest, safe
from compress.storage.trees import copy_files

METHOD = "cascade"
FORMAT_VERSION = 1
RESTORE = "restore it, or make the cascade again: compress cascade"


class Stage(BaseModel):
    """One model of a cascade."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: str
    """What a person calls it."""
    folder: Annotated[str, Field(pattern=r"^stage-[0-9]+$")]
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Divides its logits."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """It answers rows whose most probable label has a probability above; null: all that reach it, as the last does."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1] = FORMAT_VERSION
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Cascade:
    """Models that answer in turn. meta: of them together."""

    folder: Path
    stages: tuple[Stage, ...]
    meta: FolderMeta

    @property
    def folders(self) -> list[Path]:
        """Of each model."""
        return [self.folder / stage.folder for stage in self.stages]


def read(path: Path | str) -> Cascade:
    """What a cascade's folder says. Raises UserError for a file that is damaged, and for a model that is missing."""
    folder = Path(path)
    file = folder / CASCADE
    said = safe.read_json(file, 1 << 20)
    refuse_newer(said, FORMAT_VERSION, file)
    try:
        stages = _File.model_validate(said).stages
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{printable(key, 60)}: {first['msg']}", where=str(file), do=RESTORE) from None
    if len(stages) < 2 or len({stage.folder for stage in stages}) < len(stages):
        raise UserError("a cascade needs at least two models, each in a folder of its own", where=str(file), do=RESTORE)
    open_ended = [stage.threshold is None for stage in stages]
    if open_ended != [False] * (len(stages) - 1) + [True]:
        raise UserError(
            "every model but the last needs a threshold, and the last has none", where=str(file), do=RESTORE
        )
    for stage in stages:
        if not modelfolder.is_model_folder(place := folder / stage.folder):
            state = "is incomplete: looked for config.json and *.safetensors" if place.is_dir() else "is missing"
            what = f"{stage.folder}, the model {printable(stage.name, 60)}, {state}"
            raise UserError(what, where=str(folder), do=RESTORE)
    found = metas.read(folder)
    if found is None:
        raise UserError(f"{metas.FILE} is missing", where=str(folder), do=RESTORE)
    # What is in a model's own manifest is compared with it when the model is loaded.
    require_as_written(folder, [CASCADE, *(f"{stage.folder}/{manifest.NAME}" for stage in stages)])
    return Cascade(folder, stages, found)


def require_labels(cascade: Cascade, model: Path, names: Sequence[str]) -> None:
    """Raise UserError unless one of its models has the labels of the cascade, in any order. names: of the model."""
    try:
        outputs_in_order(names, cascade.meta.label_names, where=str(model))
    except UserError as error:
        what = "the labels of this model are not those of its cascade"
        raise UserError(what, where=str(model), why=error.why, do=RESTORE) from None


def depends_on_texts(folder: Path) -> bool:
    """Whether the cost of a row depends on what it says, not on its length alone: of a cascade, and of a model with
    early exits."""
    return is_cascade(folder) or private.has_exits(folder)


def inspect(path: Path | str) -> FolderInfo:
    """`folder.inspect` of any model folder. Of a cascade: the shape of its last model, the size of all of them. Raises
    UserError too where its labels are not those of its models."""
    if not is_cascade(path):
        return modelfolder.inspect(path)
    cascade = read(path)
    each = [modelfolder.inspect(folder) for folder in cascade.folders]
    for info in each:
        require_labels(cascade, info.path, info.label_names)
    return dataclasses.replace(
        each[-1],
        path=Path(path),
        stock_class=None,
        label_names=cascade.meta.label_names,
        parameters=sum(info.parameters for info in each),
        parameters_without_embeddings=sum(info.parameters_without_embeddings for info in each),
        disk_mb=sum(info.disk_mb for info in each),
        meta=cascade.meta,
        notes=tuple(note for info in each for note in info.notes),
    )


def fill(folder: Path, stages: Sequence[Stage], sources: Sequence[Path], meta: FolderMeta) -> None:
    """Write models and description into a folder that is being written. sources: the folder of each model, which is
    copied; meta: with family and label names."""
    for stage, source in zip(stages, sources, strict=True):
        copy_model(source, folder / stage.folder)
    atomic.write_json(folder / CASCADE, _File(stages=tuple(stages)).model_dump(mode="json"))
    atomic.write_json(folder / metas.FILE, meta.model_dump(mode="json"))


def describe(folder: Path, meta: FolderMeta, name: str, lines: Sequence[str]) -> None:
    """Write compress.json and the model card of a cascade that was filled and measured.

    name: of the folder.  lines: a sentence on each model.
    """
    info = inspect(folder)
    facts = Facts(
        name=name, parameters=info.parameters, parameters_without_embeddings=info.parameters_without_embeddings,
        layers=info.config.depth, hidden=info.config.hidden, heads=("task",), stock_class=None, objection=None,
        certificate=(folder / metas.CERTIFICATE).is_file(), stages=tuple(lines),
    )  # fmt: skip
    atomic.write_json(folder / metas.FILE, meta.model_dump(mode="json"))
    atomic.write_text(folder / README, render(meta, facts))


def copy_model(source: Path, target: Path, left: Sequence[str] = ()) -> None:
    """Copy a model folder into one that is being written: the files that lie in it itself, without pickles and further
    names of its files in folders, which only other programs read. left: names of files to leave out too."""
    files = [file for file in source.iterdir() if file.is_file() and not file.name.startswith(".")]
    names = [file.name for file in files if not any(file.match(pattern) for pattern in PICKLES)]
    copy_files(source, target, sorted(set(names) - set(left)))
