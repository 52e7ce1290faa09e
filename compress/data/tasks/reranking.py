"""Queries with documents that another search found: how relevant each is, by a model that reads both together.

A row is a query with its candidates; an example that the model reads is one of them. Of pairs with a score of which
every query has one document only, there is nothing to rank: these are scored as similarities are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from compress.contracts import RANKINGS
from compress.data.batches.examples import Examples, examples_of
from compress.data.batches.ragged import LabelArray, Ragged
from compress.data.reading.beir import CANDIDATES as FOUND
from compress.data.reading.beir import RELEVANT
from compress.data.reading.columns import RequestedColumns
from compress.data.reading.frame import Column, Frame
from compress.data.tables.candidates import (
    Cell,
    group_pairs,
    mine_candidates,
    pack_cells,
    require_relevant,
)
from compress.data.tables.label_lists import is_list
from compress.data.tables.label_order import Labels
from compress.data.tables.scores import read_scores
from compress.data.tables.table import SLICE, Rows
from compress.data.task import METRIC, Choices, Fidelity, ScoredAnswers, Weighted, check_outputs
from compress.data.tasks._forms import FormTask
from compress.data.tasks.embedding import documents_of, relevant_of
from compress.data.tasks.regression import SCORES
from compress.data.text.bm25 import BM25
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import HeadKind, Problem
from compress.errors import UserError, printable
from evaluation.quality.agreement import bernoulli_divergence, sigmoid
from evaluation.quality.correlation import UndefinedCorrelationError, spearman_of_draws
from evaluation.quality.draws import of_mean
from evaluation.quality.retrieval import expected_ndcg, rank_metrics
from evaluation.quality.slices import Members, by_quarter

Form = Literal["ranking", "scored pairs"]
SPEARMAN, NAME, CUT = "spearman", "LABEL_0", 10
RELEVANCE = ("relevance", "relevant", "grade", *SCORES, "label", "labels")
BASELINE = "bm25"
QUERIES = 32
"""Fewer do not stand for the others."""


@dataclass(frozen=True)
class Answer:
    """score: of a pair, as the model's configuration gives it: a probability or a logit."""

    score: float

    def line(self, text: str) -> str:
        return f"{self.score:.4f}\t{printable(text, 200)}"

    def as_json(self) -> dict[str, Any]:
        return {"score": self.score}


class Task(FormTask):
    """How relevant a document is to a query.

    activation: what turns the logit into the score, "sigmoid" or "identity".  top_grade: the grade that stands for a
    probability of 1 where the model is trained.
    """

    kind: ClassVar[str] = "reranking"
    aliases: ClassVar[tuple[str, ...]] = ("text-ranking", "cross-encoder", "rerank")
    example: ClassVar[str] = '--query "a query" "a document" "another document"'
    text_roles: ClassVar[tuple[str, ...]] = ("text", "text_pair", "negative")
    optional_roles: ClassVar[tuple[str, ...]] = ("text_pair", "negative")
    usual: ClassVar[Mapping[str, tuple[str, ...]]] = {"negative": ("negative", "hard_negative")}
    usual_labels: ClassVar[tuple[str, ...]] = RELEVANCE
    head: ClassVar[tuple[HeadKind, Problem]] = ("classification", "ranking")
    metrics: ClassVar[tuple[str, ...]] = (*RANKINGS, SPEARMAN)
    of_form: ClassVar[Mapping[str, tuple[str, ...]]] = {"ranking": RANKINGS, "scored pairs": (SPEARMAN,)}
    settings: ClassVar[tuple[str, ...]] = ("activation", "top_grade")
    scores_of: ClassVar[tuple[str, ...]] = ("reranking", "regression", "embedding")
    pairs_answer: ClassVar[bool] = True
    asked_as: ClassVar[tuple[str, str | None]] = ("query", "document")
    names: ClassVar[tuple[str, ...]] = (NAME,)

    def __init__(self, *, activation: str = "sigmoid", top_grade: float = 1.0) -> None:
        self.activation, self.top_grade = activation, float(top_grade)

    # --- reading ----------------------------------------------------------------------------------------------

    def claims(self, frame: Frame, asked: RequestedColumns) -> int:
        """Never by columns alone: pairs with a label are also those of a classifier. The model's head, or the data,
        says that it is this task."""
        return 0

    def check_columns(self, frame: Frame, roles: Mapping[str, str], where: str) -> None:
        """Raise UserError for single texts, and for lists of documents."""
        pair, of_beir = roles.get("text_pair"), {FOUND, RELEVANT} & set(frame.columns)
        several = [name for name in ([pair] if pair else frame.columns) if is_list(frame.columns[name])]
        if several and not of_beir:
            do = "write a row for each query and document, with its relevance: query, document, label"
            raise UserError(f"'{printable(several[0], 40)}' is a list, not a text", where=where, do=do)
        if pair is None and FOUND not in frame.columns and "label" not in roles:
            raise UserError(
                "a reranker needs queries with documents", where=where, why="found single texts",
                do="name the column of documents with --text-pair-column",
            )  # fmt: skip

    def label_column(self, frame: Frame, roles: Mapping[str, str]) -> Column:
        """Of a folder in the layout of BEIR the cells of each query, else the column."""
        column = frame.columns[roles["label"]]
        if roles["label"] != RELEVANT or not isinstance(column, list):
            return column
        found = frame.columns.get(FOUND)
        assert found is None or isinstance(found, list)
        return [_cells(judged, None if found is None else found[row]) for row, judged in enumerate(column)]

    def read_labels(self, columns: Mapping[str, Column], where: str, choices: Choices) -> Labels:
        """(N,) float32 scores of pairs; of queries a `Ragged` (W, 3): see `candidates.Cell`."""
        if choices.names is not None and len(choices.names) != 1:
            raise UserError(
                "relevance has no label names", where=where, why=f"found {len(choices.names)}",
                do="give relevance as numbers, 0 for documents that are not relevant",
            )  # fmt: skip
        first = next(iter(columns.values()))
        if isinstance(first, list) and all(isinstance(cell, list) for cell in first):
            return Labels({split: pack_cells(values) for split, values in columns.items()}, list(self.names))
        read = read_scores(columns, where)
        for split, scores in read.numbers.items():
            assert isinstance(scores, np.ndarray)
            if (scores < 0).any():
                raise UserError("relevance below 0", where=f"{where}: {split}", do="give 0 where it is not relevant")
        return replace(read, names=list(self.names))

    def make_missing_labels(
        self, columns: Mapping[str, pa.ChunkedArray], rows: int, names: Sequence[str]
    ) -> LabelArray:
        """(N,) of NaN."""
        return np.full(rows, np.nan, dtype=np.float32)

    def find_unlabelled(self, labels: LabelArray) -> np.ndarray:
        """Rows without a score or a document."""
        return labels.lengths == 0 if isinstance(labels, Ragged) else np.isnan(labels)

    def arrange(self, splits: Mapping[str, Rows], where: str, bad_rows: str, notes: list[str]) -> Mapping[str, Rows]:
        """A row for each query, with its candidates; pairs stay as they are where no query has two documents."""
        if "unlabelled" in splits:
            raise UserError("rows without labels are not supported for reranking", where=f"{where}: unlabelled")
        made = {split: self._queries(rows) for split, rows in splits.items()}
        if all(len(made[split]) == len(rows) and rows.documents is None for split, rows in splits.items()) and all(
            isinstance(rows.labels, Ragged) and (rows.labels.lengths == 1).all() for rows in made.values()
        ):
            return splits
        return {split: require_relevant(rows, f"{where}: {split}", bad_rows, notes) for split, rows in made.items()}

    def _queries(self, rows: Rows) -> Rows:
        labels = rows.labels
        if isinstance(labels, Ragged):
            if labels.values[:, 2].any():
                return rows
            judged = [{int(d): float(g) for d, g, _ in labels.row(i)} for i in range(len(labels))]
            return mine_candidates(rows, documents_of(rows), judged, [()] * len(rows))
        if not np.isnan(labels).all():
            return group_pairs(rows)
        documents = documents_of(rows)
        places = {text: i for i, text in enumerate(documents)}
        negative = rows.columns.get("negative")
        own = [()] * len(rows) if negative is None else [(places[text],) for text in negative.to_pylist()]
        return mine_candidates(rows, documents, relevant_of(rows), own)

    def form(self, rows: Rows) -> Form:
        return "ranking" if isinstance(rows.labels, Ragged) else "scored pairs"

    def is_search(self, rows: Rows) -> bool:
        return self.form(rows) == "ranking"

    def settings_of(self, train: Rows | None, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """The highest grade of the training rows, where it is not 1."""
        kept = {name: value for name, value in asked.items() if name != METRIC or value is not None}
        if train is None or "top_grade" in kept:
            return kept
        grades = train.labels.values[:, 1] if isinstance(train.labels, Ragged) else train.labels
        top = float(np.nanmax(grades))
        return kept if top <= 1 else {**kept, "top_grade": top}

    def first_guess(self, labels: LabelArray) -> np.ndarray | None:
        """The logit of how much of all candidates is relevant, counted with one more on either side."""
        if isinstance(labels, Ragged):
            labels = labels.values[labels.values[:, 2] > 0, 1]
        known = labels[~np.isnan(labels)]
        share = (np.clip(known / self.top_grade, 0, 1).sum(keepdims=True) + 1) / (len(known) + 2)
        return np.log(share / (1 - share))

    # --- encoding ---------------------------------------------------------------------------------------------

    def encode(self, tokenizer: Tokenizer, rows: Rows, *, max_length: int) -> Examples:
        """Each candidate with its query. Labels (N, 1) are probabilities: grades, at most 1 of the top one."""
        labels = rows.labels
        if isinstance(labels, np.ndarray):
            owners, numbers, grades, pairs = np.arange(len(rows)), rows.numbers, labels, rows.slices()
        else:
            ranked = labels.values[:, 2] > 0
            owners = np.repeat(np.arange(len(labels)), labels.lengths)[ranked]
            numbers, grades = rows.numbers[owners], labels.values[ranked, 1]
            pairs = _pairs(rows, owners, labels.values[ranked, 0].astype(np.int64))
        wanted = np.clip(np.asarray(grades, dtype=np.float32) / self.top_grade, 0, 1)[:, None]
        parts = (tokenizer.encode_batch(texts, documents, max_length=max_length) for texts, documents in pairs)
        return examples_of(tokenizer, parts, wanted, numbers, max_length, queries=owners)

    def count_examples(self, rows: Rows) -> int:
        """One for each candidate of a query."""
        labels = rows.labels
        return len(labels) if isinstance(labels, np.ndarray) else int((labels.values[:, 2] > 0).sum())

    def count_rows(self, rows: Rows, examples: int) -> int:
        """Fewer, as each has all its candidates; but QUERIES at least."""
        enough = max(QUERIES, examples * len(rows) // max(1, self.count_examples(rows)))
        return min(enough, super().count_rows(rows, examples))

    def encode_texts(
        self, tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int
    ) -> Examples:
        """Raw pairs, without scores."""
        made = super().encode_texts(tokenizer, texts, pairs, max_length=max_length)
        return replace(made, labels=np.full((len(made), 1), np.nan, dtype=np.float32))

    def check_texts(self, pairs: Sequence[str] | None) -> None:
        if pairs is None:
            do = "give one --query for all texts, or each text its --pair"
            raise UserError("a reranker needs pairs of a query and a document", why="found single texts", do=do)

    # --- answering and scoring --------------------------------------------------------------------------------

    def count_outputs(self, names: Sequence[str]) -> int:
        return 1

    def decode(
        self,
        logits: np.ndarray,
        label_names: Sequence[str],
        examples: Examples,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
    ) -> Sequence[Answer]:
        """(N, 1) logits → the score of each pair."""
        check_outputs(logits, 1, NAME)
        found = logits if self.activation == "identity" else sigmoid(logits)
        return [Answer(float(score)) for score in found[:, 0]]

    def score(self, logits: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows) -> ScoredAnswers:
        """(N, 1) logits of the examples beside the grades."""
        check_outputs(logits, 1, NAME)
        return self._score(logits[:, 0], rows)

    def _score(self, scores: np.ndarray, rows: Rows) -> ScoredAnswers:
        """(N,) numbers of the candidates of all rows, or of all pairs. Of equal ones the less relevant comes first, so
        that a model that tells nothing apart gains nothing by the order of the data."""
        labels = rows.labels
        if isinstance(labels, np.ndarray):
            try:
                return ScoredAnswers(len(rows), {SPEARMAN: spearman_of_draws(labels, scores)}, chance={SPEARMAN: 0.0})
            except UndefinedCorrelationError as error:
                return ScoredAnswers(len(rows), {}, undefined={SPEARMAN: str(error)})
        cells = [labels.row(i) for i in range(len(labels))]
        relevant = [dict(zip(row[:, 0].astype(int).tolist(), row[:, 1].tolist(), strict=True)) for row in cells]
        found = np.full((len(cells), CUT), -1, dtype=np.int64)
        grades = [row[row[:, 2] > 0, 1] for row in cells]
        for place, (row, own) in enumerate(_by_query(labels, scores)):
            best = np.lexsort((row[:, 1], -own))[:CUT]
            found[place, : len(best)] = row[best, 0]
        values = rank_metrics(found, relevant, cut=CUT, recalls=())
        figures = {name: of_mean(values[name.replace("_at_", "@")]) for name in RANKINGS}
        random = float(
            np.mean([expected_ndcg(row, list(r.values()), CUT) for row, r in zip(grades, relevant, strict=True)])
        )
        return ScoredAnswers(len(rows), figures, chance={RANKINGS[0]: random})

    def has_baseline(self, rows: Rows) -> bool:
        return self.form(rows) == "ranking"

    def answer_by_baseline(
        self, train: Rows, rows: Rows, label_names: Sequence[str]
    ) -> tuple[str, ScoredAnswers] | None:
        """The candidates in the order of BM25; nothing is learned."""
        assert isinstance(rows.labels, Ragged)
        index = BM25(documents_of(rows))
        parts = [index.scores(text) for text in rows.texts]
        cells = [rows.labels.row(i) for i in range(len(rows))]
        found = [part[row[row[:, 2] > 0, 0].astype(int)] for part, row in zip(parts, cells, strict=True)]
        return BASELINE, self._score(np.concatenate(found), rows)

    def compare(
        self, ours: np.ndarray, theirs: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows
    ) -> Fidelity:
        """Of how many queries the first document is the same, or of how many pairs both say whether it is relevant; the
        rank correlation of the scores of a query's candidates, or of all pairs; and the KL divergence of a pair's
        probability from theirs to ours, in nats."""
        apart = bernoulli_divergence(ours, theirs)[:, 0]
        if isinstance(rows.labels, np.ndarray):
            same = (ours > 0)[:, 0] == (theirs > 0)[:, 0]
            figures: dict[str, Weighted] = {"agreement": of_mean(same), "kl": of_mean(apart)}
            with suppress(UndefinedCorrelationError):
                figures["rank_correlation"] = spearman_of_draws(theirs[:, 0], ours[:, 0])
            return Fidelity(len(rows), figures)
        sides = zip(_by_query(rows.labels, ours[:, 0]), _by_query(rows.labels, theirs[:, 0]), strict=True)
        both = [(mine, other) for (_, mine), (_, other) in sides]
        sums = [part.sum() for _, part in _by_query(rows.labels, apart)]
        figures = {
            "agreement": of_mean([mine.argmax() == other.argmax() for mine, other in both]),
            "rank_correlation": of_mean([_rank_correlation(mine, other) for mine, other in both]),
            "kl": of_mean(sums, [len(mine) for mine, _ in both]),
        }
        return Fidelity(len(rows), figures)

    def groups(self, rows: Rows, label_names: Sequence[str]) -> Sequence[Members]:
        """Pairs by their score, in quarters; queries by how many documents are ranked."""
        if isinstance(rows.labels, np.ndarray):
            return by_quarter("score", rows.labels, digits=2)
        counts = [int((rows.labels.row(i)[:, 2] > 0).sum()) for i in range(len(rows))]
        return by_quarter("candidates", counts)


def _cells(judged: Sequence[int], found: Sequence[int] | None) -> list[Cell]:
    """Of a query in the layout of BEIR. found: rows of the candidates; None: nobody has searched yet."""
    grades = dict(zip(judged[::2], judged[1::2], strict=True))
    ranked = list(dict.fromkeys(found or ()))
    cells: list[Cell] = [(place, float(grades.get(place, 0)), 1.0) for place in ranked]
    return cells + [(place, float(grade), 0.0) for place, grade in grades.items() if place not in set(ranked)]


def _pairs(rows: Rows, owners: np.ndarray, documents: np.ndarray) -> Iterator[tuple[list[str], list[str]]]:
    """(queries, documents) of all candidates, some thousand at a time."""
    assert rows.documents is not None
    texts = rows.texts
    for start in range(0, len(owners), SLICE):
        here = slice(start, start + SLICE)
        yield (
            [texts[i] for i in owners[here].tolist()],
            rows.documents.take(pa.array(documents[here])).to_pylist(),
        )


def _by_query(labels: Ragged, values: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(cells of the ranked candidates, their part of (N,) values) of each query."""
    start = 0
    for i in range(len(labels)):
        row = labels.row(i)
        row = row[row[:, 2] > 0]
        yield row, values[start : start + len(row)]
        start += len(row)


def _rank_correlation(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Spearman's of two (n,); 1 of one document, 0 where a side does not vary."""
    if len(ours) < 2:
        return 1.0
    try:
        return float(spearman_of_draws(theirs, ours)(np.ones((1, len(ours))))[0])
    except UndefinedCorrelationError:
        return 0.0
