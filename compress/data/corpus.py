"""Running text → sentences → blocks: what masked language modelling and sentence-pair objectives read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from compress.data import columns, files, places, splitting, texts
from compress.data.columns import Asked, Wanted
from compress.data.frame import Frame, FrameBuilder
from compress.data.segmentation import IDEOGRAPH, Segmenter, word_starts
from compress.data.table import UNLABELLED, Rows
from compress.data.textfiles import lines
from compress.data.tokenizer import Tokenizer, check_length
from compress.errors import UserError

# The end of a sentence: a mark and white space after it (no space in Chinese), or the end of a line.
_SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])|\s*\n\s*")
AT_ONCE = 256  # documents tokenized together
LONGEST = 5000  # characters of a sentence


@dataclass(frozen=True)
class Corpus:
    """Documents by split ("train", "validation"), one text each. fingerprint: sha256 of every text."""

    splits: Mapping[str, Rows]
    name: str
    fingerprint: str
    notes: Sequence[str] = field(default_factory=tuple)

    def texts(self, split: str = "train") -> Iterator[str]:
        """The documents of one split, one after the other."""
        for part, _ in self.splits[split].slices():
            yield from part


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
    asked = Asked(text=text_column or _described(found))
    roles, more = columns.roles(first, Wanted(), asked, name)
    notes += more
    splits = {}
    for split, frame in frames.items():
        columns.same_columns({split: frame}, {"text": roles["text"]}, name)
        rows = _documents(frame, roles["text"], f"{name}: {split}", notes)
        splits[split] = rows if limit is None else rows.take(np.arange(min(limit, len(rows))))
    if "train" not in splits:
        raise UserError("there is no train split", where=name, why="found " + ", ".join(splits))
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
    """Documents of a plain text file: what blank lines part; without any, every line is one."""
    files.look(path)
    builder = FrameBuilder(str(path))
    held: list[str] = []
    blank = any(not line.strip() for _, line in _inner(path))
    for _, line in lines(path):
        if line.strip():
            held.append(line)
        if held and (not blank or not line.strip()):
            builder.add({"text": "\n".join(held)})
            held = []
    if held:
        builder.add({"text": "\n".join(held)})
    frame = builder.finish()
    if not frame.rows:
        raise UserError("the file has no text", where=str(path), why="blank lines only")
    return frame


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
        notes.append(f"{where}: {int(missing.sum()):,} rows without a text are left out")
        rows = rows.take(np.flatnonzero(~missing))
    if not len(rows):
        raise UserError("no row has a text", where=where)
    return rows


def _with_validation(splits: dict[str, Rows], seed: int, name: str, notes: list[str]) -> dict[str, Rows]:
    if len(splits["train"]) < splitting.SMALLEST:
        notes.append("too few documents to cut a validation split from: the train text stands in for it")
        return {**splits, "validation": splits["train"]}
    parts = splitting.cut(splits["train"], {"train": 0.95, "validation": 0.05}, seed, name)
    notes.append(f"no validation split: {len(parts['validation']):,} documents cut from train (seed {seed})")
    return {**splits, **parts}


def with_task_texts(corpus: Corpus, rows: Rows) -> Corpus:
    """The corpus with every distinct text of a labelled set's rows as a train document more.

    Task-adaptive pretraining (Gururangan et al., arXiv 2004.10964) in one go with the general text. Word-level rows
    are joined with spaces, or without where they are ideographs.
    """
    found: dict[str, None] = {}
    for column in rows.columns.values():
        for value in column.to_pylist():
            text = value if isinstance(value, str) else _joined(value)
            if text.strip():
                found[text] = None
    train, more = corpus.splits["train"], pa.array(list(found), pa.large_string())
    chunks = [*train.columns["text"].chunks, more]
    count = len(train) + len(more)
    both = Rows({"text": pa.chunked_array(chunks)}, np.full(count, UNLABELLED), np.arange(1, count + 1))
    digest = hashlib.sha256(f"{corpus.fingerprint} with task texts".encode())
    for text in found:
        digest.update(json.dumps(text).encode())
    note = f"the corpus also holds {len(found):,} texts of the labelled data"
    return Corpus({**corpus.splits, "train": both}, corpus.name, digest.hexdigest(), (*corpus.notes, note))


def _joined(words: Sequence[str]) -> str:
    return "".join(
        word if IDEOGRAPH.match(word) and i and IDEOGRAPH.match(words[i - 1]) else f" {word}"
        for i, word in enumerate(words)
    ).strip()


# --- tokens -----------------------------------------------------------------------------------------------------


def sentences(text: str) -> list[str]:
    """The sentences of a text: parted after . ! ? … and at line ends; what marks them stays.

    What goes on for more than LONGEST characters is cut at a space: it would be cut into blocks anyway, and tokenizers
    take minutes and gigabytes for one text of megabytes.
    """
    parts = (piece.strip() for piece in _SENTENCE.split(text))
    return [piece for part in parts if part for piece in _pieces(part)]


def _pieces(part: str) -> Iterator[str]:
    while len(part) > LONGEST:
        space = part.rfind(" ", 1, LONGEST)
        place = space if space > 0 else LONGEST
        yield part[:place]
        part = part[place:].lstrip()
    yield part


@dataclass(frozen=True)
class Tokens:
    """A corpus as token ids without special tokens. T tokens in S sentences in N documents.

    ids: (T,) int32.  word_starts: (T,) bool.  sentences: (S+1,) int64 offsets into ids.  documents: (N+1,) int64
    offsets into sentences.
    """

    ids: np.ndarray
    word_starts: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    fingerprint: str

    def counts(self, vocabulary_size: int) -> np.ndarray:
        """(V,) int64: how often each token occurs."""
        return np.bincount(self.ids, minlength=vocabulary_size)


def tokenize(corpus: Corpus, tokenizer: Tokenizer, split: str = "train", segmenter: Segmenter | None = None) -> Tokens:
    """Tokenize one split, sentence by sentence. Words are the segmenter's, else the tokenizer's.

    Raises UserError when nothing is left, and for what the segmenter does wrong.
    """
    ids, starts, lengths, documents = [], [], [], [0]
    batch: list[list[str]] = []

    def flush() -> None:
        flat = [sentence for document in batch for sentence in document]
        made = tokenizer.encode_plain(flat, words=True, spans=segmenter is not None)
        size = np.diff(made.offsets)
        assert made.words is not None
        word = np.ones(len(made.ids), dtype=bool)
        if segmenter is None:
            word[1:] = (made.words[1:] != made.words[:-1]) | (made.words[1:] < 0)
        else:
            assert made.spans is not None
            word = word_starts(flat, made.offsets, made.spans, segmenter)
        inner = made.offsets[:-1]
        word[inner[inner < len(word)]] = True
        ids.append(made.ids)
        starts.append(word)
        lengths.append(size[size > 0])
        row = 0
        for document in batch:
            kept = int((size[row : row + len(document)] > 0).sum())
            row += len(document)
            if kept:
                documents.append(documents[-1] + kept)
        batch.clear()

    for text in corpus.texts(split):
        batch.append(sentences(text))
        if len(batch) == AT_ONCE:
            flush()
    flush()
    if len(documents) == 1:
        raise UserError("the corpus has no tokens", where=f"{corpus.name}: {split}")
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
    mark = hashlib.sha256(json.dumps(["tokens-1", corpus.fingerprint, split, tokenizer.fingerprint]).encode())
    words = np.concatenate(starts)
    if segmenter is not None:  # a function may change under its name: what it found counts
        mark.update(segmenter.fingerprint.encode() + np.packbits(words).tobytes())
    return Tokens(np.concatenate(ids), words, offsets, np.array(documents), mark.hexdigest())


# --- blocks -----------------------------------------------------------------------------------------------------


def with_separators(tokens: Tokens, separator: int) -> Tokens:
    """The corpus with a separator at the end of each document but the last, as part of its last sentence.

    For blocks that cross documents (RoBERTa, arXiv 1907.11692, FULL-SENTENCES).
    """
    after = tokens.sentences[tokens.documents[1:-1]]  # the token before which each goes
    ids = np.insert(tokens.ids, after, separator).astype(tokens.ids.dtype)
    starts = np.insert(tokens.word_starts, after, True)
    ends = tokens.sentences + np.searchsorted(after, tokens.sentences, side="right")
    return Tokens(ids, starts, ends, tokens.documents, tokens.fingerprint)


@dataclass(frozen=True)
class Blocks:
    """Stretches of a corpus, R in all: block r is ids[starts[r]:ends[r]], of document documents[r] (the first one)."""

    starts: np.ndarray
    ends: np.ndarray
    documents: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)


def pack_blocks(tokens: Tokens, block_length: int, special: int, *, across_documents: bool = False) -> Blocks:
    """Whole sentences, one after the other, up to `block_length` tokens with `special` of them reserved.

    Every token lands in exactly one block. A sentence that is longer than a block is cut. Blocks end with their
    document unless `across_documents`: computing on real tokens only, a short block costs no padding.
    """
    check_length(block_length)
    room = block_length - special
    if room < 1:
        raise UserError(f"blocks of {block_length} tokens have no room for text", do=f"give {special + 2} or more")
    found: list[tuple[int, int, int]] = []
    bounds = tokens.sentences.tolist()
    limits = tokens.documents.tolist()
    start = end = owner = 0
    for document in range(len(limits) - 1):
        for sentence in range(limits[document], limits[document + 1]):
            stop = bounds[sentence + 1]
            if stop - start > room and end > start:
                found.append((start, end, owner))
                start = end
            if start == end:
                owner = document
            while stop - start > room:  # the sentence alone is too long
                found.append((start, start + room, owner))
                start += room
            end = stop
        if not across_documents and end > start:
            found.append((start, end, owner))
            start = end
    if end > start:
        found.append((start, end, owner))
    starts, ends, owners = np.array(found, dtype=np.int64).T
    return Blocks(starts, ends, owners)
