"""Words of a text, a tag for each: named entities (IOB2, BIOES), parts of speech.

A word's tag is read at its first piece; the pieces after it, and special tokens, have none (Devlin et al. 2019, 5.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from compress.data import task
from compress.data.batches.examples import Examples, examples_of
from compress.data.batches.ragged import LabelArray, Ragged, bounds_of
from compress.data.reading.columns import LABEL, RequestedColumns, is_text, label_of
from compress.data.reading.frame import Column, Frame
from compress.data.tables.label_lists import has_lists, read_tags
from compress.data.tables.label_order import Labels
from compress.data.tables.table import UNLABELLED, Rows
from compress.data.task import Choices, Fidelity, ScoredAnswers, check_outputs
from compress.data.text import baselines, words
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import HeadKind, Problem
from compress.errors import UserError, printable
from evaluation.quality.agreement import divergence, softmax
from evaluation.quality.chance import score_constant_label
from evaluation.quality.confusion import margins
from evaluation.quality.counts import f1_micro
from evaluation.quality.draws import of_counts, of_mean, of_tables
from evaluation.quality.entities import entities, entity_counts, scheme_of
from evaluation.quality.f1_macro import score_margins
from evaluation.quality.slices import Members

WORDS = ("tokens", "words", "token", "forms", "text", "sentence")
TAGS = ("ner_tags", "tags", "labels", "pos_tags", "upos", "pos", "ner", "chunk_tags", *LABEL)
OUTSIDE = "O"


@dataclass(frozen=True)
class Word:
    """A word of the text, characters start..end-1. label None: the model did not see it (cut, or no piece)."""

    word: str
    start: int
    end: int
    label: str | None
    probability: float


@dataclass(frozen=True)
class Answer:
    """words: in their order.  entities: (type, start, end, text) of chunk tags, by characters; None for other tags."""

    words: tuple[Word, ...]
    entities: tuple[tuple[str, int, int, str], ...] | None = None

    def line(self, text: str) -> str:
        return " ".join(f"{printable(w.word)}/{printable(w.label or '?')}" for w in self.words)

    def as_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {"words": [vars(word) for word in self.words]}
        if self.entities is not None:
            made["entities"] = [{"type": t, "start": a, "end": b, "text": s} for t, a, b, s in self.entities]
        return made


class Task(task.Task):
    """A tag for every word."""

    kind: ClassVar[str] = "token-classification"
    aliases: ClassVar[tuple[str, ...]] = ("tagging", "ner", "named-entity-recognition", "pos", "part-of-speech")
    text_roles: ClassVar[tuple[str, ...]] = ("words",)
    usual: ClassVar[Mapping[str, tuple[str, ...]]] = {"words": WORDS}
    usual_labels: ClassVar[tuple[str, ...]] = TAGS
    head: ClassVar[tuple[HeadKind, Problem]] = ("token_classification", "single_label")
    metrics: ClassVar[tuple[str, ...]] = ("entity_f1", "accuracy", "f1_macro")

    # --- reading ----------------------------------------------------------------------------------------------

    def claims(self, frame: Frame, asked: RequestedColumns) -> int:
        """A column of words and one of tags, both of lists; the error about a row that has none is that of reading."""
        names = asked.text or label_of(frame, WORDS), asked.label or label_of(frame, TAGS)
        return 4 if all(n in frame.columns and has_lists(frame.columns[n]) for n in names if n) and all(names) else 0

    def read_text(self, role: str, column: Column, where: str) -> tuple[pa.ChunkedArray, np.ndarray]:
        """Lists of strings."""
        return words.read_words(column, where)

    def read_plain_text(self, role: str, column: Column, where: str) -> tuple[pa.ChunkedArray, np.ndarray]:
        """Lists of strings; plain text is cut into words by `words.locate_words`."""
        return words.cut_words(column) if is_text(column) else self.read_text(role, column, where)

    def read_labels(self, columns: Mapping[str, Column], where: str, choices: Choices) -> Labels:
        """`Ragged` of int64 tag numbers."""
        return read_tags(columns, where, names=choices.names, expected=choices.expected, bad_tags=choices.bad_tags)

    def make_missing_labels(
        self, columns: Mapping[str, pa.ChunkedArray], rows: int, names: Sequence[str]
    ) -> LabelArray:
        """As many UNLABELLED as there are words."""
        offsets = bounds_of(_counts(columns["words"]).tolist())
        return Ragged(np.full(int(offsets[-1]), UNLABELLED, dtype=np.int64), offsets)

    def find_unlabelled(self, labels: LabelArray) -> np.ndarray:
        """Rows in which a word has no tag."""
        assert isinstance(labels, Ragged)
        return labels.rows_with(labels.values == UNLABELLED)

    def misfits(self, rows: Rows) -> Mapping[str, np.ndarray]:
        """Rows that have more or fewer tags than words."""
        assert isinstance(rows.labels, Ragged)
        return {"with a different number of tags than words": _counts(rows.columns["words"]) != rows.labels.lengths}

    # --- encoding ---------------------------------------------------------------------------------------------

    def encode(self, tokenizer: Tokenizer, rows: Rows, *, max_length: int) -> Examples:
        """Words with their tags; the words are joined by spaces, so that raw text is encoded alike."""
        assert isinstance(rows.labels, Ragged)
        lines = [words.join_with_places(row) for row in rows.columns["words"].to_pylist()]
        texts, places = [text for text, _ in lines], [at for _, at in lines]
        return _encoded(tokenizer, texts, places, rows.labels, rows.numbers, max_length)

    def encode_taught(self, examples: Examples, rows: Rows) -> np.ndarray:
        """(T, C) logits at the first piece of each word, 0 elsewhere."""
        assert isinstance(rows.taught, Ragged)
        assert examples.words is not None
        at, taught = np.flatnonzero(examples.words >= 0), rows.taught
        owners = np.repeat(examples.numbers, examples.lengths)[at]
        made = np.zeros((len(examples.ids), taught.values.shape[1]), np.float32)
        made[at] = taught.values[taught.offsets[:-1][owners] + examples.words[at]]
        return made

    def encode_texts(
        self, tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int
    ) -> Examples:
        """Raw texts, cut into words by `words.locate_words`."""
        self.check_texts(pairs)
        places = [words.locate_words(text) for text in texts]
        offsets = bounds_of(map(len, places))
        tags = Ragged(np.full(int(offsets[-1]), UNLABELLED, dtype=np.int64), offsets)
        return _encoded(tokenizer, texts, places, tags, np.arange(1, len(texts) + 1, dtype=np.int64), max_length)

    # --- answering and scoring --------------------------------------------------------------------------------

    def decode(
        self,
        logits: np.ndarray,
        label_names: Sequence[str],
        examples: Examples,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
    ) -> Sequence[Answer]:
        """(T, C) logits → the words of each text with their tags, and entities where the tags tell chunks."""
        check_outputs(logits, len(label_names))
        places = [words.locate_words(text) for text in texts]
        tags, asked, at = _by_word(logits, examples, np.array([len(row) for row in places]))
        probability = np.zeros(len(tags.values))
        probability[asked] = softmax(logits[at]).max(1)
        scheme, names = scheme_of(label_names), list(label_names)
        answers = []
        for i, (text, row) in enumerate(zip(texts, places, strict=True)):
            numbers, first = tags.row(i).tolist(), int(tags.offsets[i])
            made = tuple(
                Word(text[a:b], a, b, names[n] if n >= 0 else None, float(probability[first + k]))
                for k, ((a, b), n) in enumerate(zip(row, numbers, strict=True))
            )
            found = None
            if scheme is not None:
                spans = entities([w.label or OUTSIDE for w in made], scheme)
                ends = [(s.type, made[s.start].start, made[s.end - 1].end) for s in spans]
                found = tuple((kind, a, b, text[a:b]) for kind, a, b in ends)
            answers.append(Answer(made, found))
        return answers

    def list_metrics(self, names: Sequence[str]) -> tuple[str, ...]:
        """Entities where the tags tell chunks; else the share of right tags."""
        return ("entity_f1", "accuracy") if scheme_of(names) is not None else ("accuracy", "f1_macro")

    def score(self, logits: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows) -> ScoredAnswers:
        """(T, C) logits beside the tags, resampled by sentence. A word without a piece counts as O, or as wrong."""
        assert isinstance(rows.labels, Ragged)
        check_outputs(logits, len(label_names))
        gold, names = rows.labels, list(label_names)
        tags, _, _ = _by_word(logits, examples, gold.lengths)
        return self._score(tags, gold, names)

    def _score(self, tags: Ragged, gold: Ragged, names: Sequence[str]) -> ScoredAnswers:
        """The tag of every word, -1 where there is none, beside the right ones."""
        owners = np.repeat(np.arange(len(gold)), gold.lengths)
        right = np.bincount(owners, tags.values == gold.values, minlength=len(gold))
        accuracy = of_mean(right, gold.lengths)
        chance = score_constant_label(gold.values, len(names))
        baselines, scheme = {"majority_baseline": chance["accuracy"]}, scheme_of(names)
        if scheme is None:
            count = len(names)
            said = np.where(tags.values < 0, count, tags.values)  # a class of its own, which no word has
            tables = of_tables(gold.values, said, count + 1, {"f1_macro": _f1_of_all_but_last}, owners)
            return ScoredAnswers(len(gold), {"accuracy": accuracy, **tables}, baselines, chance=chance)
        counts, _ = entity_counts(_spelled(gold, names), _spelled(tags, names), scheme)
        metrics = {"entity_f1": of_counts(counts, f1_micro), "accuracy": accuracy}
        return ScoredAnswers(len(gold), metrics, baselines, chance={**chance, "entity_f1": 0.0})

    def answer_by_baseline(
        self, train: Rows, rows: Rows, label_names: Sequence[str]
    ) -> tuple[str, ScoredAnswers] | None:
        """The tag that each word has most often."""
        assert isinstance(train.labels, Ragged)
        assert isinstance(rows.labels, Ragged)
        known = [train.labels.row(i).tolist() for i in range(len(train))]
        asked = rows.columns["words"].to_pylist()
        found = baselines.tag_words(train.columns["words"].to_pylist(), known, asked)
        tags = Ragged(np.array([n for row in found for n in row], dtype=np.int64), rows.labels.offsets)
        return baselines.TAG, self._score(tags, rows.labels, list(label_names))

    def compare(
        self, ours: np.ndarray, theirs: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows
    ) -> Fidelity:
        """The share of words with the same tag, and the mean KL divergence at a word from theirs to ours, in nats."""
        assert examples.words is not None
        at = np.flatnonzero(examples.words >= 0)
        owners = _owners(examples)[at]
        same = np.bincount(owners, ours[at].argmax(1) == theirs[at].argmax(1), minlength=len(rows))
        sizes = np.bincount(owners, minlength=len(rows))
        apart = np.bincount(owners, divergence(ours[at], theirs[at]), minlength=len(rows))
        return Fidelity(len(rows), {"agreement": of_mean(same, sizes), "kl": of_mean(apart, sizes)})

    def groups(self, rows: Rows, label_names: Sequence[str]) -> Sequence[Members]:
        """A group for each kind of entity (of tag, where they tell no chunks), of the sentences that hold one."""
        assert isinstance(rows.labels, Ragged)
        chunks = scheme_of(label_names) is not None
        kinds = np.array([name.partition("-")[2] if chunks else name for name in map(str, label_names)], dtype=object)
        said = kinds[rows.labels.values]
        named = {str(kind): rows.labels.rows_with(said == kind) for kind in dict.fromkeys(kinds.tolist()) if kind}
        by = "entity" if chunks else "tag"
        return [Members(by, kind, inside) for kind, inside in named.items() if inside.any()]


def _f1_of_all_but_last(tables: np.ndarray) -> np.ndarray:
    """(..., C + 1, C + 1) confusion tables to (...) macro F1 of C classes. The last one is predicted for words without
    a token, which count as missed."""
    hits, gold, predicted = (side[..., :-1] for side in margins(tables))
    return score_margins(hits, gold, predicted)


def _spelled(tags: Ragged, names: Sequence[str]) -> list[list[str]]:
    return [[str(names[n]) if n >= 0 else OUTSIDE for n in tags.row(i).tolist()] for i in range(len(tags))]


def _counts(column: pa.ChunkedArray) -> np.ndarray:
    """(N,) int64 words of each row."""
    sizes = [np.asarray(chunk.value_lengths().fill_null(0), dtype=np.int64) for chunk in column.chunks]
    return np.concatenate([np.zeros(0, np.int64), *sizes])


def _encoded(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    places: Sequence[Sequence[words.Place]],
    tags: Ragged,
    numbers: np.ndarray,
    max_length: int,
) -> Examples:
    if not len(texts):
        raise UserError("there are no rows to encode")
    made = words.encode_places(tokenizer, texts, places, max_length=max_length)
    owners = np.repeat(made.owners, np.diff(made.offsets))
    labels = np.full(len(made.words), UNLABELLED, dtype=np.int64)
    at = made.words >= 0
    labels[at] = tags.values[tags.offsets[:-1][owners[at]] + made.words[at]]
    notes = words.notes(made, tags.lengths, numbers, max_length)
    return examples_of(tokenizer, [made], labels, numbers[made.owners], max_length, words=made.words, notes=notes)


def _owners(examples: Examples) -> np.ndarray:
    """(T,) place of the row of each token; the windows of a row stand together and share its number."""
    first = np.ones(len(examples), dtype=bool)
    first[1:] = examples.numbers[1:] != examples.numbers[:-1]
    return np.repeat(np.cumsum(first) - 1, examples.lengths)


def _by_word(logits: np.ndarray, examples: Examples, counts: np.ndarray) -> tuple[Ragged, np.ndarray, np.ndarray]:
    """(the most probable tag of every word, -1 where it has no piece; (A,) places of the answered words among all of
    them; (A,) the tokens that answer them). counts: (N,) words of each row."""
    assert examples.words is not None
    offsets = bounds_of(counts.tolist())
    at = np.flatnonzero(examples.words >= 0)
    owners = _owners(examples)[at]
    tags = np.full(int(offsets[-1]), -1, dtype=np.int64)
    asked = offsets[:-1][owners] + examples.words[at]
    tags[asked] = logits[at].argmax(1)
    return Ragged(tags, offsets), asked, at
