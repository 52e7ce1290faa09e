"""What is written about the model of a stage: its parents, its recipe and its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compress.data.reading.corpus import Corpus
from compress.data.reading.remote import SCHEME, RemotePath
from compress.data.tables.table import Table
from compress.errors import without_folders
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import DataNote, FolderMeta, Parent, RecipeNote
from compress.modelfolder.names import model_label
from compress.stages.shared.labelled_data import task_max_length
from compress.stages.shared.stage import StageContext


def folder_meta(
    context: StageContext,
    parents: Mapping[str, Path],
    table: Table | None,
    corpus: Corpus | None = None,
    notes: Sequence[str] = (),
) -> FolderMeta:
    """Lineage, recipe and data of a stage's result. parents: role (teacher, start) → folder.  notes: for the card."""
    recipe = context.recipe
    if table is not None:
        data = data_note(table)
    elif corpus is not None:
        data = DataNote(name=without_folders(corpus.name), fingerprint=corpus.fingerprint)
    else:
        data = None
    above = [modelfolder.inspect(folder) for folder in parents.values()]
    read = table if table is not None else corpus
    languages = [*([] if read is None else [read.language]), *(one.meta.language for one in above)]
    return FolderMeta(
        family=above[0].family if above else "",
        language=next((tuple(codes) for codes in languages if codes), ()),
        license=next((one.meta.license for one in above if one.meta.license), None),
        task=table.task if table is not None else None,
        label_names=tuple(table.label_names) if table is not None else (),
        task_settings=dict(table.settings) if table is not None else {},
        method=recipe.method or None,
        max_length=task_max_length(recipe) if table is not None else None,
        lineage=tuple(
            Parent(role=role, name=model_label(folder), fingerprint=modelfolder.fingerprint(folder))
            for role, folder in parents.items()
        ),
        recipe=RecipeNote(
            name=recipe.name,
            sha256=recipe.hash(),
            stage=context.folder.name,
            resolved=_for_others(recipe.model_dump(mode="json")),
        ),
        data=data,
        notes=tuple(notes),
    )


def data_note(table: Table) -> DataNote:
    """What a model was made on, without the folders of this machine."""
    rows = {split: len(rows) for split, rows in table.splits.items()}
    return DataNote(
        name=table.display_name, fingerprint=table.fingerprint, rows=rows, columns=tuple(table.columns)
    )  # fmt: skip


def _for_others(value: Any) -> Any:
    """A recipe's values without the folders of this machine and the servers of object stores; the run's own recipe.yaml
    keeps them."""
    if isinstance(value, str):
        return RemotePath.parse(value).shown if value.startswith(SCHEME) else without_folders(value, parts=2)
    if isinstance(value, dict):
        return {key: _for_others(one) for key, one in value.items()}
    return [_for_others(one) for one in value] if isinstance(value, list) else value
