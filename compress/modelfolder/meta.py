"""`compress.json`: what a model folder knows about itself beyond what the ecosystem's files can say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compress.contracts import Measurement
from compress.errors import UserError, did_you_mean, printable
from compress.storage import safe

FILE = "compress.json"
CERTIFICATE = "certificate.json"
"""What a folder was measured to keep and to cost, beside FILE; `compress fit` and `compress cascade` write it."""
CERTIFIED = "certificate: "
"""What notes begin with that repeat the certificate."""
CASCADE = "cascade.json"
"""The models of a folder that holds several, which answer in turn (`modelfolder.cascade`)."""
ONNX = "model.onnx"
"""What computes the model in other programs, beside FILE; `compress.onnx` writes it."""
FORMAT_VERSION, PRIVATE_VERSION = 1, 2
"""The second is that of folders with facts in files of our own (`private`), which older versions would pass over."""
MAX_BYTES = 64 * 2**20


def is_cascade(folder: Path | str) -> bool:
    """Whether a folder holds a cascade; `modelfolder.cascade.read` says whether it is sound."""
    return (Path(folder) / CASCADE).is_file()


class _Note(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Parent(_Note):
    """A model that this one was made from."""

    role: str
    """teacher, start (the weights training began with), base …"""
    name: str
    """What a person calls it; never a path of the machine it was made on."""
    fingerprint: str
    """`folder.fingerprint` of its folder."""


class RecipeNote(_Note):
    """The recipe that made the model."""

    name: str
    sha256: str = ""
    stage: str = ""
    resolved: dict[str, Any] = Field(default_factory=dict)
    """The whole recipe after `extends` and `--set`; of absolute paths the last two parts."""


class DataNote(_Note):
    """The data it was trained on."""

    name: str
    fingerprint: str
    rows: dict[str, int] = Field(default_factory=dict)
    """Rows of each split."""
    columns: tuple[str, ...] = ()
    """What the rows hold: text, text_pair …; empty where it is not known."""


class SlicesNote(_Note):
    """On which groups of rows the model measurably fails more than its parent, as people read it."""

    lines: tuple[str, ...]
    """Sentences: the finding, then how it was found."""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """A table of the worst groups; empty where it fails more on none."""


class MeasurementNote(_Note):
    """What was measured, under the names used in MLflow, and on what."""

    values: dict[str, float]
    context: dict[str, str] = Field(default_factory=dict)
    slices: SlicesNote | None = None
    """null: no groups of rows were compared with a parent's."""


class FolderMeta(_Note):
    """All of compress.json. A field that nobody filled in says that it is not known."""

    format_version: int = FORMAT_VERSION
    family: str = ""
    """The model_type in config.json; set by `save_model`."""
    task: str | None = None
    """Kind of the task (classification, pairs, regression …); null for a task-agnostic model."""
    label_names: tuple[str, ...] = ()
    """In order of the label ids; set by `save_model` when empty and there is a task head."""
    task_settings: dict[str, float | int | bool | str | None] = Field(default_factory=dict)
    """What else the task must know to answer as the model was trained: `data.task.Task.settings`."""
    method: str | None = None
    """How the model was made: finetune, distilbert …"""
    max_length: int | None = Field(default=None, gt=0)
    """Longest sequence, in tokens, that training saw: longer texts were cut."""
    language: tuple[str, ...] = ()
    """Codes such as `en`, as the makers of the data or else the card of the first model say; nobody looks at the texts.
    """
    license: str | None = None
    """Of the first parent, as its card says; null where none says one."""
    lineage: tuple[Parent, ...] = ()
    recipe: RecipeNote | None = None
    data: DataNote | None = None
    measurement: MeasurementNote | None = None
    baseline: MeasurementNote | None = None
    """The teacher's figures, measured beside this model's."""
    vocabulary_sha256: str | None = None
    """`same_vocabulary` compares these; set by `save_model`."""
    notes: tuple[str, ...] = ()
    """Plain statements for the model card."""
    software: dict[str, str] = Field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the data it was trained on; empty where that is not known."""
        return () if self.data is None else self.data.columns

    def without_certificate(self) -> FolderMeta:
        """The same without the notes that repeat a certificate."""
        return self.model_copy(update={"notes": tuple(n for n in self.notes if not n.startswith(CERTIFIED))})

    def with_certificate(self, lines: Iterable[str]) -> FolderMeta:
        """The same with the lines of a certificate as notes, in place of those of an earlier one."""
        notes = (*self.without_certificate().notes, *(f"{CERTIFIED}{line}" for line in lines))
        return self.model_copy(update={"notes": notes})

    def with_measurement(
        self, model: Measurement, baseline: Measurement | None = None, slices: SlicesNote | None = None
    ) -> FolderMeta:
        """The same, with what was measured; a figure that is not a finite number is left out. slices: of the model."""

        def note(m: Measurement, slices: SlicesNote | None = None) -> MeasurementNote:
            finite = {name: value for name, value in m.values.items() if math.isfinite(value)}  # JSON has no others
            return MeasurementNote(values=finite, context=dict(m.context), slices=slices)

        return self.model_copy(
            update={"measurement": note(model, slices), "baseline": None if baseline is None else note(baseline)}
        )


def read(folder: Path) -> FolderMeta | None:
    """The folder's compress.json, or None when it has none (a folder that another tool wrote)."""
    path = folder / FILE
    if not path.exists():
        return None
    values = safe.read_json(path, MAX_BYTES)
    refuse_newer(values, PRIVATE_VERSION, path)
    try:
        return FolderMeta.model_validate(values)
    except ValidationError as error:
        raise _first(error, path) from None


def refuse_newer(values: Mapping[str, Any], known: int, path: Path) -> None:
    """Raise UserError for a file whose format version is above `known`. values: what it holds."""
    version = values.get("format_version")
    if isinstance(version, int) and version > known:
        raise UserError(
            f"format version {version} is newer than this program's {known}", where=str(path), do="upgrade compress"
        )


def _first(error: ValidationError, path: Path) -> UserError:
    """The first complaint of pydantic, as one line."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return UserError(
            f"unknown key '{printable(key, 60)}'", where=str(path), do=did_you_mean(key, FolderMeta.model_fields)
        )
    return UserError(f"{printable(key, 60)}: {first['msg']}", where=str(path))
