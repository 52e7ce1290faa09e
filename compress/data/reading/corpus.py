"""Running text: documents by split, from files, tables, the hub or the embedded grammar."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from compress.data.reading import columns, files, places
from compress.data.reading.columns import RequestedColumns, TaskColumns
from compress.data.reading.frame import Frame, FrameBuilder
from compress.data.reading.text_files import lines
from compress.data.tables import splits as splitting
from compress.data.tables.table import UNLABELLED, Rows
from compress.data.text import texts
from compress.data.text.segmentation import IDEOGRAPH
from compress.errors import UserError


@dataclass(frozen=True)
class Corpus:
    """Documents by split ("train", "validation"), one text each. fingerprint: sha256 of every text.

    stored: its tokens are kept on the disk instead of in memory (`tokenstore`).  language: as of a `Table`.
    """

    splits: Mapping[str, Rows]
    name: str
    fingerprint: str
    notes: Sequence[str] = field(default_factory=tuple)
    stored: bool = False
    language: Sequence[str] = field(default=(), kw_only=True)

    @property
    def sizes(self) -> str:
        """How much there is of each split, for people."""
        return "documents: " + ", ".join(f"{len(rows):,} {split}" for split, rows in self.splits.items())

    def texts(self, split: str = "train") -> Iterator[str]:
        """The documents of one split, one after the other."""
        for part, _ in self.splits[split].slices():
            yield from part

    def list_texts(self) -> Iterator[str]:
        """The documents of the splits that may be trained on, train and validation, each once."""
        for split in ("train", "validation"):
            rows = self.splits.get(split)
            if rows is not None and (split == "train" or rows is not self.splits["train"]):
                yield from self.texts(split)


def open_corpus(
    name: str, *, text_column: str | None = None, split: str | None = None, seed: int = 0, limit: int | None = None
) -> Corpus:
    """Open running text: a .txt file (blank lines part documents), a table with a text column, a folder, `hf:name`,
    or the embedded `opinions-corpus`. A missing validation split is cut from train, aloud.

    split: the source's split to train on, where it is not called train.  limit: most documents. Raises UserError.
    """
    notes: list[str] = []
    frames, found = _read(name, notes, {"train": split} if split else None)
    first = frames["train"] if "train" in frames else next(iter(frames.values()))
    asked = RequestedColumns(text=text_column or _described(found))
    roles, more = columns.roles(first, TaskColumns(), asked, name)
    notes += more
    splits = {}
    for split, frame in frames.items():
        columns.same_columns({split: frame}, {"text": roles["text"]}, name)
        rows = _documents(frame, roles["text"], f"{name}: {split}", notes)
        splits[split] = rows if limit is None else rows.take(np.arange(min(limit, len(rows))))
    if "train" not in splits:
        raise UserError("no train split", where=name, why="found " + ", ".join(splits))
    if "validation" not in splits:
        splits = _with_validation(splits, seed, name, notes)
    digest = hashlib.sha256(b"corpus-1")
    for split in sorted(splits):
        for part, _ in splits[split].slices():
            digest.update(json.dumps([split, part]).encode())
    return Corpus(splits, name, digest.hexdigest(), notes)


def _read(
    name: str, notes: list[str], splits: Mapping[str, str] | None
) -> tuple[dict[str, Frame], Mapping[str, object]]:
    if places.is_elsewhere(name):
        source = places.open_source(name, notes, splits)
        return dict(source.frames), source.info
    path = places.path_of(name)
    if path.is_dir():
        found = {p.stem.lower(): p for p in sorted(path.iterdir()) if p.suffix.lower() == ".txt"}
        frames = {}
        for split, aliases in places.SPLITS.items():
            hit = next((found[a] for a in aliases if a in found), None)
            if hit is not None:
                frames[split] = _text_file(hit)
        if frames:
            return frames, {}
        if found:  # a heap of text files, each a document or more
            return {"train": _merged([_text_file(p) for p in found.values()])}, {}
    if path.suffix.lower() == ".txt" and not path.is_dir():
        return {"train": _text_file(path)}, {}
    source = places.open_source(name, notes, splits)
    return dict(source.frames), source.info


def _text_file(path: Path) -> Frame:
    builder = FrameBuilder(str(path))
    for document in text_documents(path):
        builder.add({"text": document})
    frame = builder.finish()
    if not frame.rows:
        raise UserError("the file has no text", where=str(path), why="blank lines only")
    return frame


def text_documents(path: Path) -> Iterator[str]:
    """Documents of a plain text file: what blank lines part; without any, every line is one."""
    files.look(path)
    held: list[str] = []
    blank = any(not line.strip() for _, line in _inner(path))
    for _, line in lines(path):
        if line.strip():
            held.append(line)
        if held and (not blank or not line.strip()):
            yield "\n".join(held)
            held = []
    if held:
        yield "\n".join(held)


def _inner(path: Path) -> Iterator[tuple[int, str]]:
    """Lines up to the last one that holds text: blank lines at the end part nothing."""
    waiting: list[tuple[int, str]] = []
    for number, line in lines(path):
        waiting.append((number, line))
        if line.strip():
            yield from waiting
            waiting = []


def _merged(frames: Sequence[Frame]) -> Frame:
    return Frame.from_rows([{"text": text} for f in frames for text in _strings(f)])


def _strings(frame: Frame) -> list[str]:
    column = frame.columns["text"]
    return column if isinstance(column, list) else column.to_pylist()


def _described(info: Mapping[str, object]) -> str | None:
    said = info.get("text_columns")
    return said[0] if isinstance(said, list) and said and isinstance(said[0], str) else None


def _documents(frame: Frame, column: str, where: str, notes: list[str]) -> Rows:
    """Rows with text; those without are left out, which in running text loses nothing."""
    values, missing = texts.read_text(frame.columns[column], f"{where}: column '{column}'")
    rows = Rows({"text": values}, np.full(frame.rows, -100), np.arange(1, frame.rows + 1))
    if missing.any():
        notes.append(f"{where}: {int(missing.sum()):,} rows without text are skipped")
        rows = rows.take(np.flatnonzero(~missing))
    if not len(rows):
        raise UserError("no row has text", where=where)
    return rows


def _with_validation(splits: dict[str, Rows], seed: int, name: str, notes: list[str]) -> dict[str, Rows]:
    try:
        parts = splitting.split_rows(splits["train"], {"train": 0.95, "validation": 0.05}, seed, name)
    except UserError:  # too few rows
        notes.append("too few documents for a validation split: the train text is used instead")
        return {**splits, "validation": splits["train"]}
    notes.append(f"no validation split: {len(parts['validation']):,} documents of train are held out (seed {seed})")
    return {**splits, **parts}


def with_task_texts(corpus: Corpus, rows: Rows) -> Corpus:
    """The corpus, and as train documents every distinct text of a labelled set's rows that it does not hold yet.

    Task-adaptive pretraining (Gururangan et al., arXiv 2004.10964) in one go with the general text. The texts of a row
    follow one another, so that blocks across documents show a text beside its pair. Word-level rows are joined with
    spaces, or without where they are ideographs.
    """
    held = {text for split in corpus.splits for text in corpus.texts(split)}
    found: dict[str, None] = {}
    for row in zip(*(column.to_pylist() for column in rows.columns.values()), strict=True):
        for value in row:
            text = value if isinstance(value, str) else _joined(value)
            if text.strip() and text not in held:
                found[text] = None
    train, more = corpus.splits["train"], pa.array(list(found), pa.large_string())
    chunks = [*train.columns["text"].chunks, more]
    count = len(train) + len(more)
    both = Rows({"text": pa.chunked_array(chunks)}, np.full(count, UNLABELLED), np.arange(1, count + 1))
    digest = hashlib.sha256(f"{corpus.fingerprint} with task texts".encode())
    for text in found:
        digest.update(json.dumps(text).encode())
    note = f"the corpus also contains {len(found):,} texts of the labelled data"
    splits, notes = {**corpus.splits, "train": both}, (*corpus.notes, note)
    return replace(corpus, splits=splits, fingerprint=digest.hexdigest(), notes=notes)


def _joined(words: Sequence[str]) -> str:
    return "".join(
        word if IDEOGRAPH.match(word) and i and IDEOGRAPH.match(words[i - 1]) else f" {word}"
        for i, word in enumerate(words)
    ).strip()
