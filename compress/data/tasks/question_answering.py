"""Questions about a text, each answered by a piece of it, or by none (Rajpurkar et al. 2016, 2018).

A context that is longer than the model reads is read in windows that overlap (`data.passages`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from compress.data import task
from compress.data.batches.examples import Examples, examples_of
from compress.data.batches.ragged import LabelArray, Ragged
from compress.data.reading.columns import RequestedColumns, label_of
from compress.data.reading.frame import Column, Frame
from compress.data.tables import answers
from compress.data.tables.answer_spans import Reply, decode_spans
from compress.data.tables.label_lists import has_lists
from compress.data.tables.label_order import Labels
from compress.data.tables.table import UNLABELLED, Rows, first_rows
from compress.data.task import Choices, Fidelity, ScoredAnswers, check_outputs
from compress.data.text import baselines
from compress.data.text.passages import Windows, encode_windows, gold_positions, overlap
from compress.data.text.tokenizer import EncodedRows, Tokenizer
from compress.encoder.config.encoder import HeadKind, Problem
from compress.errors import UserError, format_count, printable
from evaluation.quality.agreement import divergence
from evaluation.quality.answers import rules_of, score_answers
from evaluation.quality.draws import of_mean
from evaluation.quality.slices import Members, by_quarter

QUESTIONS = ("question", "query")
CONTEXTS = ("context", "passage", "paragraph", "document", "text")
ANSWERS = ("answers", "answer")
OUTPUTS = ("start", "end")


@dataclass(frozen=True)
class Answer:
    """What the model says to one question."""

    reply: Reply

    def line(self, text: str) -> str:
        """The answer, its probability and the question."""
        one = self.reply.chosen
        return f"{printable(one.text) if one.end else '(no answer)'}\t{one.score:.4f}\t{printable(text, 200)}"

    def as_json(self) -> dict[str, Any]:
        """answer, score, start, end and n_best."""
        return self.reply.as_json()


class Task(task.Task):
    """A piece of the context for every question.

    stride: tokens of the context that neighbouring windows share; None: a third of the window.
    no_answer: whether the model may say that the answer is not in the context, as its training data had such questions;
    None, of a model that does not say: where the data has such questions.
    no_answer_threshold: by how much the score of "no answer" must beat that of the best answer.
    """

    kind: ClassVar[str] = "question-answering"
    aliases: ClassVar[tuple[str, ...]] = ("extractive-qa", "extractive-question-answering", "qa", "squad")
    text_roles: ClassVar[tuple[str, ...]] = ("question", "context")
    usual: ClassVar[Mapping[str, tuple[str, ...]]] = {"question": QUESTIONS, "context": CONTEXTS}
    usual_labels: ClassVar[tuple[str, ...]] = ANSWERS
    head: ClassVar[tuple[HeadKind, Problem]] = ("question_answering", "single_label")
    metrics: ClassVar[tuple[str, ...]] = ("f1", "exact_match")
    asked_as: ClassVar[tuple[str, str | None]] = ("question", None)
    example: ClassVar[str] = '--question "a question" --context "a text that answers it"'
    settings: ClassVar[tuple[str, ...]] = ("stride", "no_answer", "no_answer_threshold")

    def __init__(
        self, *, stride: int | None = None, no_answer: bool | None = None, no_answer_threshold: float = 0.0
    ) -> None:
        self.stride, self.no_answer, self.threshold = stride, no_answer, no_answer_threshold

    # --- reading ----------------------------------------------------------------------------------------------

    def claims(self, frame: Frame, asked: RequestedColumns) -> int:
        """A column of questions, one of contexts, and one of answers: with offsets, or lists of a usual name."""
        wanted = (asked.text, QUESTIONS), (asked.text_pair, CONTEXTS), (asked.label, ANSWERS)
        names = [name or label_of(frame, usual) for name, usual in wanted]
        if not (names[0] and names[1] and names[2]):
            return 0
        listed = asked.label is None and has_lists(frame.columns[names[2]])
        return 5 if listed or answers.are_in(frame, names[2]) else 0

    def read_text(self, role: str, column: Column, where: str) -> tuple[pa.ChunkedArray, np.ndarray]:
        """Strings; an empty one is missing: there is nothing to ask, or nothing to read."""
        texts, missing = super().read_text(role, column, where)
        return texts, missing | np.array([not text or text.isspace() for text in texts.to_pylist()], dtype=bool)

    def label_column(self, frame: Frame, roles: Mapping[str, str]) -> Column:
        """The answers of each row with their offsets and the context, which `read_labels` checks them against."""
        return answers.gather_cells(frame, roles["label"], roles["context"])

    def read_labels(self, columns: Mapping[str, Column], where: str, choices: Choices) -> Labels:
        """`Ragged` of (start, end) characters of the context; an empty list says that the answer is not in it."""
        out = Labels({}, list(choices.expected or OUTPUTS))
        for split, column in columns.items():
            assert isinstance(column, list)
            found = answers.read_answers(column, f"{where}: {split}")
            unknown = self.find_unlabelled(found.spans)
            if split != "train" and len(unknown) and unknown.all():
                out.hidden.append(split)
                continue
            if found.bad and choices.bad_rows == "refuse":
                raise _misplaced(found.bad, f"{where}: {split}")
            if found.bad:
                first = next(iter(found.bad))
                out.notes.append(f"{where}: {split}: the first bad answer, row {first + 1}: {found.bad[first]}")
            if split == "train" and not (found.spans.values >= 0).any():
                raise UserError(
                    "no question has an answer",
                    where=f"{where}: {split}",
                    why=f"{format_count(len(unknown))}, and every list of answers is empty or missing",
                    do="training needs answers; name their column with --label-column",
                )
            out.numbers[split] = found.spans
        return out

    def make_missing_labels(
        self, columns: Mapping[str, pa.ChunkedArray], rows: int, names: Sequence[str]
    ) -> LabelArray:
        """One answer a row that is UNLABELLED."""
        return Ragged(np.full((rows, 2), UNLABELLED, dtype=np.int64), np.arange(rows + 1, dtype=np.int64))

    def find_unlabelled(self, labels: LabelArray) -> np.ndarray:
        """Rows whose answer is not known. A row whose list is empty is known to have none."""
        assert isinstance(labels, Ragged)
        return labels.rows_with(labels.values[:, 0] == UNLABELLED)

    def misfits(self, rows: Rows) -> Mapping[str, np.ndarray]:
        """Rows with an answer that is not where it says."""
        assert isinstance(rows.labels, Ragged)
        wrong = rows.labels.values[:, 0] == answers.MISPLACED
        return {"with an answer that is not in the context": rows.labels.rows_with(wrong)}

    def count_outputs(self, names: Sequence[str]) -> int:
        """Start and end."""
        return len(OUTPUTS)

    def settings_of(self, train: Rows | None, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """What was asked for, and whether some train question has no answer."""
        if train is None:
            return dict(asked)
        assert isinstance(train.labels, Ragged)
        return {**asked, "no_answer": bool((train.labels.lengths == 0).any())}

    # --- encoding ---------------------------------------------------------------------------------------------

    def encode(self, tokenizer: Tokenizer, rows: Rows, *, max_length: int) -> Examples:
        """Windows with the first answer of their question, by the first and the last of its tokens."""
        assert isinstance(rows.labels, Ragged)
        questions, contexts = (rows.columns[role].to_pylist() for role in self.text_roles)
        return self._encoded(tokenizer, questions, contexts, rows.labels, rows.numbers, max_length)

    def encode_texts(
        self, tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int
    ) -> Examples:
        """Questions and their contexts."""
        self.check_texts(pairs)
        assert pairs is not None
        numbers = np.arange(1, len(texts) + 1, dtype=np.int64)
        labels = self.make_missing_labels({}, len(texts), ())
        assert isinstance(labels, Ragged)
        return self._encoded(tokenizer, texts, pairs, labels, numbers, max_length)

    def check_texts(self, pairs: Sequence[str] | None) -> None:
        """Raise UserError when there is no context."""
        if pairs is None:
            raise UserError(
                f"a model for {self.kind} needs a question and a context",
                do="give --question and --context, or --file with JSON lines that contain both",
            )

    def _encoded(
        self,
        tokenizer: Tokenizer,
        questions: Sequence[str],
        contexts: Sequence[str],
        spans: Ragged,
        numbers: np.ndarray,
        max_length: int,
    ) -> Examples:
        if not len(questions):
            raise UserError("there are no rows to encode")
        windows = encode_windows(
            tokenizer, questions, contexts, max_length=max_length, stride=self.stride, numbers=numbers
        )
        gold = gold_positions(windows, spans)
        part = EncodedRows(windows.ids, windows.offsets, windows.segments, None, 0)
        notes = self._notes(windows, gold, spans, numbers, max_length)
        owners = numbers[windows.questions]
        return examples_of(tokenizer, [part], gold, owners, max_length, places=windows.spans, notes=notes)

    def _notes(
        self, windows: Windows, gold: np.ndarray, spans: Ragged, numbers: np.ndarray, max_length: int
    ) -> tuple[str, ...]:
        notes = []
        several = int((np.bincount(windows.questions) > 1).sum())
        if several:
            shared = overlap(self.stride, max_length)
            notes.append(
                f"{several:,} of {len(spans):,} contexts are longer than {max_length} tokens and are split into "
                f"windows that overlap by {shared}"
            )
        torn = np.unique(windows.questions[gold[:, 0] == UNLABELLED])
        torn = torn[~self.find_unlabelled(spans)[torn]]
        if len(torn):
            notes.append(
                f"{format_count(len(torn))} with an answer that is longer than the overlap of the windows "
                f"({first_rows(numbers[torn])}): not used for training; a prediction can hold only a part of it"
            )
        return tuple(notes)

    # --- answering and scoring --------------------------------------------------------------------------------

    def decode(
        self,
        logits: np.ndarray,
        label_names: Sequence[str],
        examples: Examples,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
    ) -> Sequence[Answer]:
        """(T, 2) logits → the best piece of each context (`pairs`), or none."""
        assert pairs is not None
        return [Answer(reply) for reply in self._replies(logits, examples, pairs, bool(self.no_answer))]

    def _replies(self, logits: np.ndarray, examples: Examples, contexts: Sequence[str], no_answer: bool) -> list[Reply]:
        check_outputs(logits, len(OUTPUTS), "expected (start and end)")
        return decode_spans(_windows(examples), logits, contexts, no_answer=no_answer, threshold=self.threshold)

    def score(self, logits: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows) -> ScoredAnswers:
        """(T, 2) logits beside the gold answers, by the rules of their script (`evaluation.quality.answers`)."""
        assert isinstance(rows.labels, Ragged)
        contexts = rows.columns["context"].to_pylist()
        replies = self._replies(logits, examples, contexts, self._may_refuse(rows.labels))
        return self._score([reply.chosen.text for reply in replies], rows)

    def _may_refuse(self, labels: Ragged) -> bool:
        """Whether "no answer" is a reply to these questions."""
        return bool((labels.lengths == 0).any()) if self.no_answer is None else self.no_answer

    def answer_by_baseline(
        self, train: Rows, rows: Rows, label_names: Sequence[str]
    ) -> tuple[str, ScoredAnswers] | None:
        """The sentence that shares most words with the question."""
        questions, contexts = (rows.columns[role].to_pylist() for role in self.text_roles)
        return baselines.SENTENCE, self._score(baselines.nearest_sentences(questions, contexts), rows)

    def _score(self, said: Sequence[str], rows: Rows) -> ScoredAnswers:
        """One text a question, empty for no answer, beside the gold answers."""
        assert isinstance(rows.labels, Ragged)
        contexts = rows.columns["context"].to_pylist()
        gold = answers.extract_answer_texts(rows.labels, contexts)
        unanswered = rows.labels.lengths == 0
        scores = score_answers(said, gold, rules_of(gold))
        floor = {"no_answer_baseline": float(unanswered.mean())} if unanswered.any() else {}
        metrics = {"f1": of_mean(scores.f1), "exact_match": of_mean(scores.exact)}
        return ScoredAnswers(len(rows), metrics, floor, chance=dict.fromkeys(metrics, float(unanswered.mean())))

    def compare(
        self, ours: np.ndarray, theirs: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows
    ) -> Fidelity:
        """The share of questions with the same answer, and the mean KL divergence of starts and ends, in nats."""
        assert isinstance(rows.labels, Ragged)
        contexts, allowed = rows.columns["context"].to_pylist(), self._may_refuse(rows.labels)
        mine, other = (self._replies(side, examples, contexts, allowed) for side in (ours, theirs))
        same = [a.chosen.text == b.chosen.text for a, b in zip(mine, other, strict=True)]
        bounds = zip(examples.offsets[:-1].tolist(), examples.offsets[1:].tolist(), strict=True)
        kl = np.mean([divergence(ours[a:b].T, theirs[a:b].T).mean() for a, b in bounds])
        return Fidelity(len(rows), {"agreement": of_mean(same)}, {"kl": float(kl)})

    def groups(self, rows: Rows, label_names: Sequence[str]) -> Sequence[Members]:
        """Questions with and without an answer, where both are there, and by how many characters are right."""
        assert isinstance(rows.labels, Ragged)
        spans = rows.labels
        answered = spans.lengths > 0
        size = np.full(len(spans), np.nan)
        first = spans.values[spans.offsets[:-1][answered]]
        size[answered] = first[:, 1] - first[:, 0]
        found = [Members("answer", "answered", answered), Members("answer", "no answer", ~answered)]
        both = found if answered.any() and not answered.all() else []
        return [*both, *by_quarter("characters of the answer", size)]


def _windows(examples: Examples) -> Windows:
    """Encoded rows as windows: those of one question stand together and share its number."""
    assert examples.places is not None
    first = np.ones(len(examples), dtype=bool)
    first[1:] = examples.numbers[1:] != examples.numbers[:-1]
    return Windows(
        examples.ids,
        examples.offsets,
        examples.segments,
        np.cumsum(first) - 1,
        examples.places[:, 1] > 0,
        examples.places,
    )


def _misplaced(bad: Mapping[int, str], where: str) -> UserError:
    first, *others = bad
    more = f" (and {len(others):,} more, {first_rows([row + 1 for row in others])})" if others else ""
    return UserError(
        f"row {first + 1}: {bad[first]}{more}",
        where=where,
        do="correct it, or drop bad rows with --bad-rows drop (data.bad_rows: drop)",
    )
