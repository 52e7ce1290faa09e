"""The first half of reading a model folder: everything that can be known, and refused, without reading a tensor."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.sparsity import SPARSITY, with_values
from compress.errors import UserError, nearest, printable
from compress.modelfolder import cross_encoder, labels, meta, private, sentence_head, vocabulary, weights
from compress.modelfolder import family as families
from compress.modelfolder.family import Description, Family
from compress.modelfolder.fields import Fields
from compress.modelfolder.language import read_language, read_license
from compress.modelfolder.meta import FolderMeta
from compress.modelfolder.weights import StoredTensor
from compress.storage import safe
from compress.storage.atomic import is_ours, read_manifest

CONFIG = "config.json"
OLD_CONFIG = "bert_config.json"  # as the first BERT checkpoints call it
CONFIG_BYTES = 16 * 2**20
_PUBLISHED = {private.FILE, *vocabulary.FILES, meta.CERTIFICATE, meta.CASCADE}
"""Files that, with the weights, nobody edits: what is published has them as they were written."""


@dataclass(frozen=True)
class OpenedFolder:
    """A folder whose config, labels, tokenizer and tensor headers agree with each other.

    values: config.json.  stock: whether the class that it names has the model's shape.  stored: canonical tensor name →
    where it lies.
    """

    path: Path
    values: Mapping[str, Any]
    family: Family
    stock: bool
    description: Description
    stored: dict[str, StoredTensor]
    files: list[Path]
    meta: FolderMeta
    tokenizer_files: dict[str, bytes]
    vocabulary: dict[str, int] | None
    notes: tuple[str, ...]


def open_folder(path: Path, *, verify: bool = True) -> OpenedFolder:
    """Look at everything but the tensors.

    Raises UserError for a folder that is missing, incomplete, contradictory, or beyond what the encoder can say.
    verify: where a manifest of ours lies, also compare the sha256 of weights and tokenizer with it.
    """
    path = Path(path)
    _check_place(path)
    config = path / CONFIG
    values = safe.read_json(config, CONFIG_BYTES)
    fields = Fields(values, str(config))
    family, told = families.of_config(
        values, str(config), lambda: [entry.name for entry in weights.read_headers(weights.weight_files(path))]
    )
    files = weights.weight_files(path)
    stored = weights.canonical(weights.read_headers(files), family)
    own = private.read(path)
    stock = family.model_type != families.NATIVE and not private.describes_all(own)
    shapes = {name: entry.shape for name, entry in stored.items()}
    if own is not None and private.describes_all(own):
        with _said_of(own.where):
            description = families.load_families()[families.NATIVE].describe(own, shapes)
    else:
        with _said_of(str(config)):
            known = {name: shape for name, shape in shapes.items() if stored[name].file.name != private.WEIGHTS}
            description = family.describe(fields, known)
            if SPARSITY in values and stock:  # as older versions wrote it
                encoder = with_values(description.encoder, values[SPARSITY], SPARSITY)
                description = dataclasses.replace(description, encoder=encoder)
        if own is not None:
            with _said_of(own.where):
                description = dataclasses.replace(description, heads=private.complete_heads(description.heads, own))
                description = with_own(description, private.complete_config(description.encoder, own))
    found = meta.read(path)
    description = cross_encoder.with_ranking(description, values, path, None if found is None else found.task)
    description, held, unread = sentence_head.with_embedding(description, path)
    stored |= held
    notes = told + unread + weights.check(description, stored, str(files[0]))
    if "auto_map" in values:
        notes.append("config.json refers to custom code (auto_map), which was not run")
    tokenizer_files = vocabulary.read_files(path)
    tokens = _tokens(tokenizer_files, description, path)
    if tokens is None:
        notes.append("the folder has no tokenizer")
    settled = vocabulary.settled(tokenizer_files, values, str(path), ours=found is not None)
    if settled != tokenizer_files:
        tokenizer_files, tokens = settled, _tokens(settled, description, path)
    if verify:
        require_as_written(path, [*(file.name for file in files), private.FILE, *tokenizer_files])
    return OpenedFolder(
        path=path,
        values=values,
        family=family,
        stock=stock,
        description=description,
        stored=stored,
        files=files,
        meta=_with_labels(
            found or FolderMeta(language=read_language(path), license=read_license(path)), fields, family, description
        ),
        tokenizer_files=tokenizer_files,
        vocabulary=tokens,
        notes=tuple(notes),
    )


def with_own(description: Description, encoder: EncoderConfig) -> Description:
    """A stock class's description with what its config.json cannot say: the tensors that this adds keep our names."""
    known = description.parameters
    stored = weights.compute_expected_shapes(encoder, description.heads)
    added = [name for name in stored if name not in known]
    names = description.names | {name: name for name in added}
    return dataclasses.replace(description, encoder=encoder, names=names)


def _check_place(path: Path) -> None:
    """Tell a wrong path from a folder that is not a model."""
    if path.is_file():
        if any(path.match(pattern) for pattern in weights.PICKLES):
            raise weights.refuse_pickle(path)
        raise UserError("expected a model folder, found a file", where=str(path), do=f"give the folder: {path.parent}")
    if not path.is_dir():
        near = nearest(path.name, _list_folders(path.parent))
        do = f"did you mean '{path.parent / near}'?" if near else None
        raise UserError("no such model folder", where=str(path), why=f"looked in {Path.cwd()}", do=do)
    if meta.is_cascade(path):
        raise UserError(
            "this is a cascade of several models, which is not supported here", where=str(path),
            do=f"use one of its models, such as {path / 'stage-1'}",
        )  # fmt: skip
    if not (path / CONFIG).is_file():
        inner = sorted(p.parent.name for p in path.glob(f"*/{CONFIG}"))
        do = f"did you mean '{path / inner[0]}'?" if inner else None
        if (path / OLD_CONFIG).is_file():
            do = f"rename {OLD_CONFIG} to {CONFIG}"
        raise UserError(f"no {CONFIG}: not a model folder", where=str(path), do=do)


def _list_folders(path: Path) -> list[str]:
    """Their names; none of a folder that is not there, or that may not be listed."""
    try:
        return [entry.name for entry in path.iterdir() if entry.is_dir()]
    except OSError:
        return []


def _tokens(files: Mapping[str, bytes], description: Description, path: Path) -> dict[str, int] | None:
    """Token → id. Raises UserError for an id without an embedding."""
    found = vocabulary.tokens(files, str(path))
    if found is not None:
        vocabulary.check_fits(found, description.encoder.vocabulary, str(path))
    return found


@contextmanager
def _said_of(file: str) -> Iterator[None]:
    """The encoder's own refusals name its keys; a person needs the file as well."""
    try:
        yield
    except UserError as error:
        if error.where and error.where.startswith(file):
            raise
        where = f"{file}: {error.where}" if error.where else file
        raise UserError(error.what, where=where, why=error.why, do=error.do, code=error.code) from None


def _with_labels(found: FolderMeta, fields: Fields, family: Family, description: Description) -> FolderMeta:
    """The meta with family and label names filled in. Raises UserError when the two files name different labels."""
    task = description.heads.get("task")
    if task is None:
        names: tuple[str, ...] = ()
    else:
        names = tuple(labels.names_of(task, fields.values, fields.where))
        if task.kind == sentence_head.EMBEDDING:
            found = sentence_head.embedding_meta(found, Path(fields.where).parent, description.encoder.hidden)
        elif task.problem == cross_encoder.RANKING:
            found = cross_encoder.ranking_meta(found, fields.values, Path(fields.where).parent)
        elif found.label_names and found.label_names != names:
            ours, theirs = (printable(", ".join(n), 80) for n in (found.label_names, names))
            raise UserError(
                f"{CONFIG} and {meta.FILE} have different labels",
                where=str(Path(fields.where).parent),
                why=f"{theirs} and {ours}",
                do="correct one of them",
            )
    return found.model_copy(update={"family": family.model_type, "label_names": names})


def require_as_written(path: Path, names: Iterable[str] | None = None) -> None:
    """Raise UserError where a manifest of ours lies and one of these files is not what was written: a flipped bit in
    weights loads silently. names: relative to the folder; None: those of all that is published, also of the models of a
    cascade."""
    if not (path / "manifest.json").is_file() or (meta.read(path) is None and not is_ours(path)):
        return
    records = read_manifest(path)
    if names is None:
        names = [name for name in records if name.endswith(".safetensors") or Path(name).name in _PUBLISHED]
    for name in names:
        if name in records and not (path / name).is_file():
            raise UserError(f"{name} is missing", where=str(path), why="manifest.json lists it", do="restore it")
        if name in records and file_digest(path / name) != records[name].sha256:
            raise UserError(
                f"{name} has changed since it was written",
                where=str(path),
                why="its sha256 differs from the one in manifest.json",
                do="restore it, or delete manifest.json if the change is intended",
            )


def file_digest(path: Path) -> str:
    """sha256 of the file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
