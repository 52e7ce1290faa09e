"""Texts as vectors: similar texts have similar ones. Sentence embeddings, for search, clustering and comparison.

What rows are worth depends on what they hold. A text alone says how near a model's vectors are to its parent's; a pair
with a score, whether cosines follow the scores; a query and its document, or judged documents, whether a search by
vectors finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from compress.contracts import RANKINGS
from compress.data.batches.examples import Examples, examples_of
from compress.data.batches.ragged import LabelArray, Ragged
from compress.data.reading.columns import LABEL, RequestedColumns, label_of
from compress.data.reading.frame import Column, Frame
from compress.data.tables.label_order import Labels
from compress.data.tables.scores import read_scores
from compress.data.tables.table import SLICE, UNLABELLED, Rows, spread_places
from compress.data.task import METRIC, Choices, Fidelity, ScoredAnswers, check_outputs
from compress.data.tasks._forms import FormTask
from compress.data.tasks.regression import SCORES
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import HeadKind, Problem
from compress.errors import UserError, printable
from evaluation.quality.correlation import UndefinedCorrelationError, spearman_of_draws
from evaluation.quality.draws import of_mean
from evaluation.quality.retrieval import TOP, cosines, rank_metrics, search
from evaluation.quality.slices import Members, by_quarter
from evaluation.representation.axes import have_same_axes
from evaluation.representation.neighbours import (
    FEWEST_TEXTS,
    NEIGHBOURS,
    neighbour_overlap,
    similarity_rank_correlation,
)

Form = Literal["texts", "scored pairs", "retrieval"]
RETRIEVAL = (*RANKINGS, "recall_at_1", "recall_at_10", "recall_at_100")
SPEARMAN, COSINE, OVERLAP = "spearman", "cosine", f"neighbour_overlap_{NEIGHBOURS}"
OF_FORM: Mapping[str, tuple[str, ...]] = {
    "retrieval": RETRIEVAL,
    "scored pairs": (SPEARMAN,),
    "texts": (COSINE, OVERLAP),
}
"""What rows of each form are scored by, the usual main metric first."""
COMPARED, ASKED = 5000, 1000
"""Different texts among which neighbours are looked for, and those whose neighbours are."""


@dataclass(frozen=True)
class Answer:
    """vector: (D,) of the text."""

    vector: np.ndarray

    def line(self, text: str) -> str:
        return " ".join(f"{value:.6g}" for value in self.vector) + "\t" + printable(text, 200)

    def as_json(self) -> dict[str, Any]:
        return {"embedding": [float(f"{value:.7g}") for value in self.vector]}


class Task(FormTask):
    """The vector of a text.

    prompt: put before each text.  query_prompt, document_prompt: before those of a search, in its place, as in
    `encode_query` and `encode_document` of sentence-transformers.  lowercase: texts are lower-cased first.
    similarity: by which documents are ranked, "cosine" or "dot".  unpooled_prompts: the tokens of prompts are left out
    of the pooling, which is not computed here.
    """

    kind: ClassVar[str] = "embedding"
    aliases: ClassVar[tuple[str, ...]] = ("sentence-embedding", "feature-extraction", "retrieval")
    text_roles: ClassVar[tuple[str, ...]] = ("text", "text_pair", "negative")
    optional_roles: ClassVar[tuple[str, ...]] = ("text_pair", "negative")
    usual: ClassVar[Mapping[str, tuple[str, ...]]] = {"negative": ("negative", "hard_negative")}
    usual_labels: ClassVar[tuple[str, ...]] = SCORES
    head: ClassVar[tuple[HeadKind, Problem]] = ("embedding", "single_label")
    metrics: ClassVar[tuple[str, ...]] = (*RETRIEVAL, SPEARMAN, COSINE, OVERLAP)
    of_form: ClassVar[Mapping[str, tuple[str, ...]]] = OF_FORM
    settings: ClassVar[tuple[str, ...]] = (
        "prompt", "query_prompt", "document_prompt", "lowercase", "similarity", "unpooled_prompts",
    )  # fmt: skip
    label_free: ClassVar[bool] = True
    scores_of: ClassVar[tuple[str, ...]] = ("embedding", "regression")

    def __init__(
        self,
        *,
        prompt: str = "",
        query_prompt: str = "",
        document_prompt: str = "",
        lowercase: bool = False,
        similarity: str = "cosine",
        unpooled_prompts: bool = False,
    ) -> None:
        self.prompt, self.lowercase, self.similarity = prompt, lowercase, similarity
        self.query_prompt, self.document_prompt = query_prompt, document_prompt
        self.unpooled_prompts = unpooled_prompts

    # --- reading ----------------------------------------------------------------------------------------------

    def claims(self, frame: Frame, asked: RequestedColumns) -> int:
        """Never by columns alone: any text has a vector. The model's head, or the data, says that it is this task."""
        return 0

    def check_columns(self, frame: Frame, roles: Mapping[str, str], where: str) -> None:
        """Raise UserError for pairs with classes: they are no scores, and their second text answers no query."""
        classes = label_of(frame, LABEL)
        if "text_pair" in roles and "label" not in roles and classes is not None:
            raise UserError(
                f"column '{printable(classes, 60)}' holds labels of pairs, not scores", where=where,
                do="name a column of scores with --label-column, or one of texts with --text-column, or remove it",
            )  # fmt: skip

    def read_labels(self, columns: Mapping[str, Column], where: str, choices: Choices) -> Labels:
        """(N,) float32 scores of pairs; of queries a `Ragged` (W, 2) of int64, row and grade of each document."""
        first = next(iter(columns.values()))
        if not isinstance(first, list):
            return Labels(dict(read_scores(columns, where).numbers), [])
        return Labels({split: _judged(values) for split, values in columns.items()}, [])

    def make_missing_labels(
        self, columns: Mapping[str, pa.ChunkedArray], rows: int, names: Sequence[str]
    ) -> LabelArray:
        """(N,) of NaN."""
        return np.full(rows, np.nan, dtype=np.float32)

    def find_unlabelled(self, labels: LabelArray) -> np.ndarray:
        """Rows without a score or a document."""
        return labels.lengths == 0 if isinstance(labels, Ragged) else np.isnan(labels)

    def form(self, rows: Rows) -> Form:
        return form_of(rows)

    def is_search(self, rows: Rows) -> bool:
        return form_of(rows) == "retrieval"

    # --- encoding ---------------------------------------------------------------------------------------------

    def encode(self, tokenizer: Tokenizer, rows: Rows, *, max_length: int) -> Examples:
        """Each text alone: the texts of all rows, then their second texts, or of a search its documents."""
        parts: list[tuple[str, Iterable[str], np.ndarray]] = []
        texts = (text for part, _ in rows.slices() for text in part)
        form = form_of(rows)
        if form == "retrieval":
            self._check_search("measure on pairs with scores, or on texts")
            documents = documents_of(rows)
            numbers = np.arange(1, len(documents) + 1, dtype=np.int64)
            parts = [(self.query_prompt, texts, rows.numbers), (self.document_prompt, documents, numbers)]
        else:
            parts = [(self.prompt, texts, rows.numbers)]
            if form == "scored pairs":
                parts.append((self.prompt, (text for _, part in rows.slices() for text in part or ()), rows.numbers))
        return self._encode_parts(tokenizer, parts, max_length)

    def encode_search(self, tokenizer: Tokenizer, query: str, documents: Sequence[str], *, max_length: int) -> Examples:
        """A query, then documents, each behind its prompt."""
        self._check_search(None)
        numbers = np.arange(1, len(documents) + 1, dtype=np.int64)
        parts = [(self.query_prompt, [query], np.ones(1, dtype=np.int64)), (self.document_prompt, documents, numbers)]
        return self._encode_parts(tokenizer, parts, max_length)

    def _encode_parts(
        self, tokenizer: Tokenizer, parts: Sequence[tuple[str, Iterable[str], np.ndarray]], max_length: int
    ) -> Examples:
        """parts: a prompt, texts, and their row numbers."""
        check_prompts(tokenizer, [part[0] for part in parts], max_length)
        numbers = np.concatenate([part[2] for part in parts])
        whole = (text for prompt, given, _ in parts for text in self._as_read(given, prompt))
        return _encoded(tokenizer, whole, numbers, max_length)

    def _check_search(self, do: str | None) -> None:
        """Raise UserError for prompts that are left out of the pooling."""
        if self.unpooled_prompts:
            raise UserError(
                "prompts that are left out of the pooling are not supported", why="include_prompt is false", do=do
            )

    def count_examples(self, rows: Rows) -> int:
        """Of each row its texts; of a search its documents too."""
        form = form_of(rows)
        if form == "retrieval":
            return len(rows) + len(documents_of(rows) if rows.documents is None else rows.documents)
        return len(rows) * (2 if form == "scored pairs" else 1)

    def encode_texts(
        self, tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int
    ) -> Examples:
        check_prompts(tokenizer, [self.prompt], max_length)
        return super().encode_texts(tokenizer, list(self._as_read(texts, self.prompt)), pairs, max_length=max_length)

    def check_texts(self, pairs: Sequence[str] | None) -> None:
        if pairs is not None:
            raise UserError("a model for embedding needs single texts", why="found pairs of texts")

    def _as_read(self, texts: Iterable[str], prompt: str) -> Iterator[str]:
        for text in texts:
            yield (prompt + text).lower() if self.lowercase else prompt + text

    # --- answering and scoring --------------------------------------------------------------------------------

    def decode(
        self,
        logits: np.ndarray,
        label_names: Sequence[str],
        examples: Examples,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
    ) -> Sequence[Answer]:
        """(N, D) vectors → that of each text."""
        check_outputs(logits, logits.shape[-1])
        return [Answer(vector) for vector in logits]

    def score(self, logits: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows) -> ScoredAnswers:
        """(N, D) vectors of the examples beside scores or judgements; of texts alone there is nothing to say."""
        check_outputs(logits, logits.shape[-1])
        form, count = form_of(rows), len(rows)
        if form == "texts":
            return ScoredAnswers(count, {})
        if form == "scored pairs":
            assert isinstance(rows.labels, np.ndarray)
            return _score_pairs(cosines(logits[:count], logits[count:]), rows.labels)
        found, _ = self.search(logits[:count], logits[count:], TOP)
        values = rank_metrics(found, relevant_of(rows))
        named = {name: of_mean(values[name.replace("_at_", "@")]) for name in RETRIEVAL}
        return ScoredAnswers(count, named)

    def search(self, queries: np.ndarray, documents: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
        """(Q, top) rows of the nearest documents, best first, and their similarities, for vectors (Q, D) and (N, D).
        Raises UserError for a similarity that is not supported."""
        return search(queries, documents, min(top, len(documents)), similarity=self.check_similarity())

    def check_similarity(self) -> Literal["cosine", "dot"]:
        """By what documents are ranked. Raises UserError for a similarity that is not supported."""
        if self.similarity not in ("cosine", "dot"):
            raise UserError(
                f"search by {printable(self.similarity, 40)} similarity is not supported",
                where="similarity_fn_name", do="use cosine or dot",
            )  # fmt: skip
        return "cosine" if self.similarity == "cosine" else "dot"

    def score_against(
        self,
        ours: np.ndarray,
        theirs: np.ndarray,
        label_names: Sequence[str],
        examples: Examples,
        rows: Rows,
    ) -> ScoredAnswers:
        """Of texts alone the cosine of both models' vectors, or where that was chosen the neighbours that they share;
        else as `score`. There is no cosine between vectors of other widths or axes."""
        if form_of(rows) != "texts":
            return self.score(ours, label_names, examples, rows)
        check_outputs(ours, ours.shape[-1])
        if self._wanted() == OVERLAP:
            texts = spread_places(len(rows), COMPARED)
            if len(texts) < FEWEST_TEXTS:
                return ScoredAnswers(len(rows), {}, undefined={OVERLAP: f"it needs {FEWEST_TEXTS} texts or more"})
            shared = neighbour_overlap(ours[texts], theirs[texts])
            return ScoredAnswers(
                len(texts), {OVERLAP: of_mean(shared)}, chance={OVERLAP: NEIGHBOURS / (len(texts) - 1)}
            )
        if ours.shape != theirs.shape:
            why = f"the vectors have {ours.shape[1]} dimensions, the parent's {theirs.shape[1]}"
            return ScoredAnswers(len(rows), {}, undefined={COSINE: why})
        if not have_same_axes(ours, theirs):
            why = "the vectors have other axes than the parent's; compare the shared neighbours"
            return ScoredAnswers(len(rows), {}, undefined={COSINE: why})
        return ScoredAnswers(len(rows), {COSINE: of_mean(cosines(ours, theirs))}, chance={COSINE: 0.0})

    def compare(
        self, ours: np.ndarray, theirs: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows
    ) -> Fidelity:
        """Mean cosine (where both have the same axes), overlap of the ten nearest neighbours and rank correlation of
        similarities, over different texts of the rows."""
        kept = _different(examples, spread_places(len(examples), 2 * COMPARED))
        compared = kept[spread_places(len(kept), COMPARED)]
        asked = spread_places(len(compared), ASKED)
        x, y = ours[compared], theirs[compared]
        figures: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
        if x.shape == y.shape and form_of(rows) != "texts" and have_same_axes(x, y):  # of texts it is the metric
            figures[COSINE] = of_mean(cosines(x[asked], y[asked]))
        if len(compared) >= FEWEST_TEXTS:
            figures[OVERLAP] = of_mean(neighbour_overlap(x, y, asked))
            correlation = np.nan_to_num(similarity_rank_correlation(x, y, asked))
            figures["similarity_rank_correlation"] = of_mean(correlation)
        return Fidelity(len(asked), figures)

    def groups(self, rows: Rows, label_names: Sequence[str]) -> Sequence[Members]:
        """Pairs by their score, in quarters."""
        if form_of(rows) != "scored pairs":
            return ()
        assert isinstance(rows.labels, np.ndarray)
        return by_quarter("score", rows.labels, digits=2)

    def settings_of(self, train: Rows | None, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: value for name, value in asked.items() if name != METRIC or value is not None}


def check_prompts(tokenizer: Tokenizer, prompts: Iterable[str], max_length: int) -> None:
    """Raise UserError for a prompt that takes all of the `max_length` tokens that are read of a text."""
    for prompt in filter(None, dict.fromkeys(prompts)):
        read = tokenizer.encode_batch([prompt], None, max_length=max_length)
        if read.cut or len(read.ids) >= max_length:
            raise UserError(
                f"the prompt '{printable(prompt, 40)}' leaves no room for a text",
                why=f"{max_length} tokens are read of both", do="increase the maximum length, or shorten the prompt",
            )  # fmt: skip


def form_of(rows: Rows) -> Form:
    """What rows hold: judged documents or pairs without a score are a search, pairs with one are scored."""
    if rows.documents is not None:
        return "retrieval"
    if "text_pair" not in rows.columns:
        return "texts"
    assert isinstance(rows.labels, np.ndarray)
    return "retrieval" if np.isnan(rows.labels).all() else "scored pairs"


def documents_of(rows: Rows) -> list[str]:
    """What is searched: the documents of the set, or the different second texts of all rows, then their negatives."""
    if rows.documents is not None:
        return rows.documents.to_pylist()
    parts = [rows.columns[role] for role in ("text_pair", "negative") if role in rows.columns]
    return list(dict.fromkeys(text for part in parts for text in part.to_pylist()))


def relevant_of(rows: Rows) -> list[dict[int, float]]:
    """Per row, document of `documents_of` → its grade."""
    labels = rows.labels
    if rows.documents is not None:
        assert isinstance(labels, Ragged)
        return [{int(d): float(g) for d, g in labels.row(i)} for i in range(len(labels))]
    places = {text: i for i, text in enumerate(documents_of(rows))}
    same: dict[str, dict[int, float]] = {}  # all documents of a query that comes several times
    texts, pairs = rows.texts, rows.pairs or []
    for text, pair in zip(texts, pairs, strict=True):
        same.setdefault(text, {})[places[pair]] = 1.0
    return [same[text] for text in texts]


def _judged(cells: Sequence[Sequence[int]]) -> Ragged:
    values = np.array([x for cell in cells for x in cell], dtype=np.int64).reshape(-1, 2)
    lengths = np.array([len(cell) // 2 for cell in cells], dtype=np.int64)
    return Ragged(values, np.concatenate([[0], np.cumsum(lengths)]))


def _encoded(tokenizer: Tokenizer, texts: Iterable[str], numbers: np.ndarray, max_length: int) -> Examples:
    """Texts one by one, of which a few thousand are held at once."""
    source = iter(texts)
    chunks = iter(lambda: list(islice(source, SLICE)), [])
    parts = (tokenizer.encode_batch(part, None, max_length=max_length) for part in chunks)
    return examples_of(tokenizer, parts, np.full(len(numbers), UNLABELLED, dtype=np.int64), numbers, max_length)


def _score_pairs(found: np.ndarray, scores: np.ndarray) -> ScoredAnswers:
    known = ~np.isnan(scores)
    try:
        of_known = spearman_of_draws(scores[known], found[known])
    except (UndefinedCorrelationError, ValueError) as error:
        return ScoredAnswers(len(scores), {}, undefined={SPEARMAN: str(error)})
    figure = of_known if known.all() else lambda weights: of_known(weights[:, known])
    return ScoredAnswers(len(scores), {SPEARMAN: figure}, chance={SPEARMAN: 0.0})


def _different(examples: Examples, places: np.ndarray) -> np.ndarray:
    """The first of these examples of each different text, as the tokenizer cuts it."""
    ids, bounds = examples.ids, examples.offsets
    seen = {ids[bounds[i] : bounds[i + 1]].tobytes(): i for i in places[::-1]}
    return np.sort(np.fromiter(seen.values(), dtype=np.int64))
