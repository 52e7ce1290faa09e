"""Latency over the texts of a data set: which of its rows are timed, and the calls that one model answers them with.

A cost grows with the length of a text, and hardly depends on anything else of it. So a few rows at evenly spaced
quantiles of the length stand for all: each counts for as many rows as any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from compress.contracts import Batch, TextLengths
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import Examples
from compress.data.tables.table import SLICE, Rows
from compress.data.task import Task
from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError
from compress.modelfolder.cascade import depends_on_texts
from compress.modelfolder.meta import is_cascade
from compress.predict.predictor import MAX_TOKENS, Predictor
from evaluation.cost.latency import Latency, measure_interleaved

TIMED = 32
"""Quantiles of the length: calls that are timed."""
CHARACTERS, LEAST = 4096, 8
"""Of a call, on average: where rows are longer, as queries with all their documents are, fewer calls are timed, but not
fewer than LEAST."""
ROUTED = 256
"""The same of a cascade and of early exits: what a text costs depends on which model or exit answers it, so that few
texts do not stand for all."""


@dataclass(frozen=True)
class TextSample:
    """Rows that latency is measured on, the same for every model whatever its tokenizer: shortest first, `shape.batch`
    of them to a call. max_length: tokens at most that a model reads of one."""

    rows: Rows
    shape: TextLengths
    max_length: int

    def calls(self) -> list[Rows]:
        """The rows of each call."""
        places = np.arange(len(self.rows)).reshape(-1, self.shape.batch)
        return [self.rows.take(part) for part in places]


def sample_texts(
    rows: Rows, *, data: str, digest: str, max_length: int, batch: int = 1, calls: int = TIMED
) -> TextSample:
    """So many calls, fewer of long rows, at evenly spaced quantiles of the length in characters, of `batch` rows of
    neighbouring lengths each; the middle of each quantile stands for it. data: name and split.

    Raises UserError for data without a text.
    """
    lengths = count_characters(rows)
    if not len(lengths) or not lengths.any():
        what = "all texts are empty" if len(lengths) else "there are no rows"
        do = "use data with texts, or give a fixed number of tokens: --length 128"
        raise UserError(f"{what}: their latency cannot be measured", where=data, do=do)
    order = np.argsort(lengths, kind="stable")
    fewer = int(calls * CHARACTERS / max(1.0, lengths.mean() * batch))
    calls = min(calls, len(order), max(LEAST, fewer))
    middles = ((np.arange(calls) + 0.5) / calls * len(order)).astype(np.int64)
    starts = np.clip(middles - batch // 2, 0, max(0, len(order) - batch))
    chosen = np.concatenate([order[(start + np.arange(batch)) % len(order)] for start in starts])
    return TextSample(rows.take(chosen), TextLengths(batch, data, digest, len(rows)), max_length)


def choose_calls(folders: Sequence[Path]) -> int:
    """Calls that the latency of these models is measured on."""
    return ROUTED if any(map(depends_on_texts, folders)) else TIMED


def require_fixed_costs(folders: Sequence[Path], do: str = "give --data, without --length") -> None:
    """Raise UserError for a cascade and for early exits: what random tokens cost there says nothing of texts. do: what
    it says to do instead."""
    for folder in filter(depends_on_texts, folders):
        raise UserError(
            "a cascade is timed on texts: which of its models answers depends on them"
            if is_cascade(folder)
            else "a model with early exits is timed on texts: which exit answers depends on them",
            where=str(folder), do=do,
        )  # fmt: skip


def count_characters(rows: Rows) -> np.ndarray:
    """(N,) characters of all that a model reads of each row."""
    parts = (np.array([sum(map(len, row)) for row in part], dtype=np.int64) for part in rows.contents(SLICE))
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


class TextCalls:
    """The calls of a sample as one model makes them: each tokenizes its rows, then answers them.

    batches: packed tokens of each call.  tokens: (calls,) that it has in all.  sequences: (calls,) that these are.
    keep_texts, make_batches: as of the model (`Predictor.keep_texts`, `Predictor.batches`). An exported file pads: the
    documents of a query in one batch would all cost as much as the longest.
    """

    def __init__(
        self,
        sample: TextSample,
        task: Task,
        tokenizer: Tokenizer,
        positions: int,
        device: str,
        keep_texts: Callable[[Examples, Rows, int], Examples] = lambda examples, *_: examples,
        make_batches: Callable[[Examples], Iterable[Batch]] = lambda examples: evaluation_batches(examples, MAX_TOKENS),
    ) -> None:
        self.sample, self.device, self._keep_texts, self._make_batches = sample, device, keep_texts, make_batches
        self._task, self._tokenizer = task, tokenizer
        self._max_length = min(sample.max_length, positions)
        self._rows = sample.calls()
        self.batches = [self._tokenize(rows) for rows in self._rows]
        self.tokens = np.array([sum(len(b.input_ids) for b in each) for each in self.batches])
        self.sequences = np.array([sum(b.rows for b in each) for each in self.batches])

    @classmethod
    def of(cls, sample: TextSample, predictor: Predictor) -> TextCalls:
        """Of a model that answers."""
        p = predictor
        return cls(sample, p.task, p.tokenizer, p.max_length, p.device, p.keep_texts, p.batches)

    def in_tokenizer(self, tokenizer: Tokenizer) -> TextCalls:
        """The same texts for a model with another tokenizer."""
        return TextCalls(self.sample, self._task, tokenizer, self._max_length, self.device)

    @property
    def lengths(self) -> np.ndarray:
        """(calls,) tokens of a sequence, on average of those of a call."""
        return self.tokens / self.sequences

    def parts(self, answer: Callable[[Batch], Any]) -> list[Callable[[], Any]]:
        """Two for each call, in turn: from its texts to tokens, and from these to the answers. For
        `measure_interleaved`, whose figures `TextLatency.of` reads."""
        answering = [lambda each=each: [answer(batch) for batch in each] for each in self.batches]
        return list(itertools.chain.from_iterable(zip(self.tokenizing(), answering, strict=True)))

    def tokenizing(self) -> list[Callable[[], Any]]:
        """From the texts to tokens, of each call."""
        return [lambda rows=rows: self._tokenize(rows) for rows in self._rows]

    def measure_tokenization(self) -> float:
        """Milliseconds from texts to tokens, the mean of the calls: the least that any model takes."""
        found = measure_interleaved([self.tokenizing()], device="cpu", repeats=10, seconds=1.0)[0]
        return found.minimum / len(self.tokens)

    def describe(self) -> str:
        """Their lengths, for people and as `latency_tokens` of a measurement, and how many a row has where it is not
        one: documents of a query, or windows of a long text."""
        low, middle, high, most = np.percentile(self.lengths, [0, 50, 95, 100])
        found = f"mean {self.lengths.mean():.1f}, median {middle:.0f}, p95 {high:.0f}, {low:.0f} to {most:.0f}"
        each = self.sequences.mean() / self.sample.shape.batch
        return found if each == 1 else f"{found}; {each:.1f} sequences a row"

    def _tokenize(self, rows: Rows) -> list[Batch]:
        return [batch.to(self.device) for batch in self._make_batches(self._encode(rows))]

    def _encode(self, rows: Rows) -> Examples:
        if self._task.label_free:  # one text is served at a time, whatever the data asks of pairs of them
            return self._task.encode_texts(self._tokenizer, rows.texts, max_length=self._max_length)
        examples = self._task.encode(self._tokenizer, rows, max_length=self._max_length)
        return self._keep_texts(examples, rows, self._max_length)


@dataclass(frozen=True)
class TextLatency:
    """Milliseconds of a call over the texts of a sample, tokenization included: their mean, and quantiles over the
    texts. tokenization: the mean of that part alone."""

    mean: float
    p50: float
    p95: float
    tokenization: float

    @classmethod
    def of(cls, latency: Latency) -> TextLatency:
        """latency: of `TextCalls.parts`."""
        tokenizing, answering = np.asarray(latency.parts).reshape(-1, 2).T
        both = tokenizing + answering
        p50, p95 = np.percentile(both, [50, 95])
        return cls(float(both.mean()), float(p50), float(p95), float(tokenizing.mean()))


def mean_of_calls(latency: Latency, calls: int) -> Latency:
    """All of `latency`, which is of so many calls one after the other, as of one of them on average."""
    each = {name: getattr(latency, name) / calls for name in ("p50", "p95", "p99", "minimum", "times")}
    return replace(latency, **each, processor_times=latency.processor_times / calls)
