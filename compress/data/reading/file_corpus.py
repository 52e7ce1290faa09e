"""A corpus that stays in its files: documents are read one after the other, and no more than a few are in memory."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from compress.data.reading import columnar, columns, files, places
from compress.data.reading import corpus as corpora
from compress.data.reading.columns import RequestedColumns, TaskColumns
from compress.data.reading.copies import local_name, show_address, show_addresses
from compress.data.reading.corpus import Corpus, text_documents
from compress.data.reading.frame import Frame
from compress.data.reading.text_files import jsonl_rows
from compress.errors import UserError, printable

KINDS = ("jsonl", "parquet", "arrow", "text")
LARGE = 512 << 20
"""Bytes of files from which on a corpus is read this way without being asked to."""
LOOKED_AT = 100  # rows that tell which column is the text
HELD_OUT = 500
"""Most documents that are held out: cut from train where there is no validation split, else its first ones."""
MUCH = 1 << 20  # bytes, above which it is said that not all of the validation split may be read
EVERY = 20  # one document in so many may be held out


@dataclass(frozen=True)
class Source:
    """Files of each split, in the order they are read."""

    splits: Mapping[str, Sequence[Path]]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for paths in self.splits.values() for path in paths)


@dataclass(frozen=True)
class FileCorpus(Corpus):
    """files, column: what is read; column None for plain text.  limit: most documents of a split.

    cut: the validation documents are taken from train: the first HELD_OUT whose text hashes into one of EVERY parts.
    """

    files: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    column: str | None = None
    limit: int | None = None
    cut: bool = False

    @property
    def sizes(self) -> str:
        sizes = {split: sum(path.stat().st_size for path in paths) for split, paths in self.files.items()}
        return "files: " + ", ".join(f"{size / 1e6:,.0f} MB {split}" for split, size in sizes.items())

    def texts(self, split: str = "train") -> Iterator[str]:
        """The documents of one split, one after the other; those without text are left out."""
        paths = self.files.get(split) or self.files["train"]
        found = islice((text for path in paths for text in documents(path, self.column)), self.limit)
        texts = (text for text in found if text and not text.isspace())
        if self.cut:
            return select_split(texts, split)
        return islice(texts, HELD_OUT) if split == "validation" else texts

    def list_texts(self) -> Iterator[str]:
        """The documents of all splits, each once."""
        found = (text for paths in self.files.values() for path in paths for text in documents(path, self.column))
        return (text for text in islice(found, self.limit) if text and not text.isspace())


def select_split(texts: Iterator[str], split: str) -> Iterator[str]:
    """The validation documents among `texts`, or all others. Equal texts stay together, but for the last held out."""
    held = 0
    for text in texts:
        chosen = held < HELD_OUT and zlib.crc32(text.encode()) % EVERY == 0
        held += chosen
        if chosen == (split == "validation"):
            yield text
        if split == "validation" and held == HELD_OUT:
            return


def open_corpus(
    name: str, *, text_column: str | None = None, limit: int | None = None, stream: bool | None = None
) -> Corpus:
    """Running text, in memory or left where it is. stream: `CorpusSpec.stream`.

    Raises UserError, also when it is to be streamed and cannot be read document by document.
    """
    local = local_name(name)
    with show_addresses():
        corpus = _open_local(local, text_column, limit, stream)
    notes = tuple(map(show_address, corpus.notes))
    corpus = replace(corpus, language=places.find_language(local))
    return replace(corpus, name=show_address(corpus.name), notes=notes) if local != name else corpus


def _open_local(name: str, text_column: str | None, limit: int | None, stream: bool | None) -> Corpus:
    source = None if stream is False else find(name)
    if source is not None and (stream or source.size >= LARGE):
        return open_files(name, source, text_column=text_column, limit=limit)
    if stream and not places.is_elsewhere(name) and not places.is_saved(places.path_of(name)):
        why = "streaming needs train files of these types: " + ", ".join(
            s for s, k in files.SUFFIXES.items() if k in KINDS
        )
        raise UserError("this corpus cannot be streamed", where=name, why=why, do="convert it to .jsonl")
    return replace(corpora.open_corpus(name, text_column=text_column, limit=limit), stored=bool(stream))


def find(name: str) -> Source | None:
    """The files that `name` means, when all of them can be read document by document; None when they cannot.

    A folder's files belong to the split that their name is, or begins with (`train-00001.jsonl`); where no name says
    train, all files whose names say nothing are the train split.
    """
    if places.is_elsewhere(name):
        return None
    path = places.path_of(name)
    if path.is_file():
        return Source({"train": [path]}) if _kind(path) in KINDS else None
    if not path.is_dir() or places.is_saved(path):
        return None
    held = [p for p in sorted(path.iterdir()) if p.is_file() and p.suffix.lower() in files.SUFFIXES]
    held = [p for p in held if p.name != "info.json"]
    found: dict[str, list[Path]] = {}
    for entry in held:
        found.setdefault(_split(entry) or "", []).append(entry)
    if "train" not in found and "" in found:
        found["train"] = found[""]
    splits = {split: found[split] for split in ("train", "validation") if split in found}
    if "train" not in splits or any(_kind(p) not in KINDS for paths in splits.values() for p in paths):
        return None
    return Source(splits)


def open_files(name: str, source: Source, *, text_column: str | None = None, limit: int | None = None) -> FileCorpus:
    """A corpus over the files of `source`. Reads every byte once, for the fingerprint. Raises UserError."""
    notes: list[str] = []
    column = _column(name, source, text_column, notes)
    digest = hashlib.sha256(repr(["files-1", column, limit]).encode())
    for split, paths in sorted(source.splits.items()):
        for path in paths:
            files.look(path)
            with path.open("rb") as file:
                digest.update(f"{split} {hashlib.file_digest(file, 'sha256').hexdigest()}".encode())
    cut = "validation" not in source.splits
    made = FileCorpus({}, name, digest.hexdigest(), (), True, source.splits, column, limit, cut)
    if cut and next(made.texts("validation"), None) is None:
        made = FileCorpus({}, name, digest.hexdigest(), (), True, source.splits, column, limit)
        notes.append("too few documents for a validation split: the train text is used instead")
    elif cut:
        notes.append(f"no validation split: up to {HELD_OUT:,} documents are held out of train")
    elif sum(path.stat().st_size for path in source.splits["validation"]) > MUCH:
        notes.append(f"only the first {HELD_OUT:,} documents of the validation split are used")
    notes.append(f"streamed from its files ({source.size / 1e6:,.0f} MB); tokens are cached on disk")
    return FileCorpus({}, name, made.fingerprint, tuple(notes), True, source.splits, column, limit, made.cut)


def documents(path: Path, column: str | None) -> Iterator[str]:
    """The texts of one file, in order. Raises UserError naming file and row for what is no text."""
    with show_addresses():
        yield from _documents(path, column)


def _documents(path: Path, column: str | None) -> Iterator[str]:
    kind = _kind(path)
    if kind == "text":
        yield from text_documents(path)
        return
    assert column is not None
    for number, value in enumerate(_values(path, kind, column), 1):
        if value is not None and not isinstance(value, str):
            raise UserError(
                "the text column contains values that are not text",
                where=f"{path}: column '{column}'",
                why=f"row {number} is {printable(repr(value), 60)}",
                do="write them as strings, or name another text column",
            )
        if value is not None:
            yield value


def _values(path: Path, kind: str | None, column: str) -> Iterator[object]:
    if kind == "jsonl":
        for _, row in jsonl_rows(path):
            yield row.get(column)
        return
    start = 0
    for batch in _batches(path, kind, [column]):
        columnar.require_utf8(pa.table([batch.column(column)], [column]), path, start)
        yield from batch.column(column).to_pylist()
        start += batch.num_rows


def _batches(path: Path, kind: str | None, names: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """Record batches of a parquet or Arrow file; names None: all columns."""
    head = files.look(path)
    try:
        if kind == "parquet":
            with pq.ParquetFile(path) as opened:
                yield from opened.iter_batches(batch_size=1024, columns=names)
            return
        with pa.memory_map(os.fspath(path)) as source:
            if head.startswith(b"ARROW1"):
                reader = pa.ipc.open_file(source)
                yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                yield from pa.ipc.open_stream(source)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise files.make_damaged_error(path, kind, error) from error


def _column(name: str, source: Source, asked: str | None, notes: list[str]) -> str | None:
    """The text column, the same in every file; None where all are plain text."""
    tables = [path for paths in source.splits.values() for path in paths if _kind(path) != "text"]
    if not tables:
        if asked is not None:
            raise UserError(
                "plain text has no columns", where="corpus.text_column", why=f"column '{asked}' was requested"
            )
        return None
    roles, more = columns.roles(_sample(tables[0]), TaskColumns(), RequestedColumns(text=asked), name)
    notes += more
    for path in tables[1:]:
        columns.same_columns({path.name: _sample(path)}, {"text": roles["text"]}, name)
    return roles["text"]


def _sample(path: Path) -> Frame:
    """The first rows of a table."""
    kind = _kind(path)
    if kind == "jsonl":
        return Frame.from_rows([row for _, row in islice(jsonl_rows(path), LOOKED_AT)])
    for batch in _batches(path, kind, None):
        sample = batch.slice(0, LOOKED_AT)
        columnar.require_utf8(pa.Table.from_batches([sample]), path)
        return Frame.from_rows(sample.to_pylist())
    raise UserError("the file has no rows", where=str(path))


def _kind(path: Path) -> str | None:
    return files.SUFFIXES.get(path.suffix.lower())


def _split(path: Path) -> str | None:
    """The split that a file's name is or begins with."""
    stem = path.stem.lower()
    for split, aliases in places.SPLITS.items():
        if any(stem == alias or stem.startswith((f"{alias}-", f"{alias}_", f"{alias}.")) for alias in aliases):
            return split
    return None
