"""The row filter: what a teacher says of rows without labels, and which of them are trained on."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.ragged import Ragged
from compress.data.tables.table import Rows
from compress.data.task import Task
from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError, format_count
from compress.stages.distill.probe import TOKENS, AskedModel
from compress.stages.distill.row_filter_spec import RowFilterSpec
from compress.stages.shared.stage import StageContext
from compress.stages.shared.task_head import ONE_LABEL
from compress.stages.shared.validation import collect_logits
from compress.storage import atomic
from compress.storage.cache import cache_folder
from compress.training.precision import autocast
from evaluation.quality.agreement import bernoulli_divergence, divergence, sigmoid, softmax

WHERE = "row_filter"
FORMAT = "row-filter-1"
AT_ONCE = 4096
"""Rows that are predicted and kept on the disk at once."""
KEEP = 0.5
"""Share of the rows that are kept by disagreement where no number is given."""
LOW, HIGH, BALANCE, AGREEING = "removed_unsure", "removed_sure", "removed_by_balance", "removed_agreeing"
"""Figures of a filter: rows that it left out, by reason."""
REASONS: Mapping[str, str] = {
    LOW: "the teacher's confidence is too low", HIGH: "its confidence is too high",
    BALANCE: "their class has enough rows", AGREEING: "the models agree",
}  # fmt: skip


@dataclass(frozen=True)
class AskedReader:
    """A model with its tokenizer. mark: what its answers depend on, beside the rows."""

    model: AskedModel
    tokenizer: Tokenizer
    mark: str


@dataclass(frozen=True)
class Answers:
    """What is known of N rows. confidence: (N,) the teacher's largest probability, of several words or labels the
    smallest of these.  predicted: (N,) its class, -1 where a row has no single one.  disagreement: (N,) 0 to 2: above 1
    where models give other answers."""

    confidence: np.ndarray
    predicted: np.ndarray
    disagreement: np.ndarray


def check_filter(spec: RowFilterSpec, task: Task) -> None:
    """Raise UserError, naming the key, for what makes no sense for a kind of task."""
    kind, problem = task.head
    wrong: dict[str, str] = {}
    if kind == "question_answering":
        wrong = dict.fromkeys(RowFilterSpec.model_fields, "the teacher's prediction is a span of each window")
    if problem == "regression":
        wrong = dict.fromkeys(("min_confidence", "max_confidence"), "a score has no probability")
    if task.head != ONE_LABEL:
        wrong.setdefault("balance", "a row has no single predicted class")
    for key, why in wrong.items():
        if getattr(spec, key) is not None:
            raise UserError(f"{key} is not supported for {task.kind}", where=f"{WHERE}.{key}", why=why, do="remove it")


def find_answers(
    task: Task, rows: Rows, length: int, context: StageContext, teacher: AskedReader | None,
    others: Sequence[AskedReader] = (),
) -> Answers:  # fmt: skip
    """What the teacher says of the rows, and how far the others differ; predicted once and kept on the disk.

    teacher: None where it is columns of the rows.  length: most tokens of a text. Raises UserError for models whose
    predictions cannot be compared, Stopped when a signal asked for it.
    """
    readers = ([] if teacher is None else [teacher]) + list(others)
    told = [FORMAT, task.kind, repr(vars(task)), length, context.precision, context.device, *(r.mark for r in readers)]
    place = cache_folder() / "row-filter" / hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]
    parts = []
    with context.workshop.progress(f"{context.folder.name}: rows predicted", len(rows), "rows") as progress:
        for start in range(0, len(rows), AT_ONCE):
            context.workshop.stop()
            part = rows.take(np.arange(start, min(start + AT_ONCE, len(rows))))
            file = place / f"{_digest(part)}.f4" if readers else None
            found = None if file is None else _read(file, len(part))
            if found is None:
                found = _answer(task, part, length, context, teacher, others)
                if file is not None:
                    atomic.write_bytes(file, found.astype("<f4").tobytes())
            parts.append(found)
            progress.update(start + len(part))
    every = np.concatenate(parts)
    return Answers(every[:, 0], every[:, 1].astype(np.int64), every[:, 2])


def select_rows(
    spec: RowFilterSpec, answers: Answers, classes: int, most: int | None, seed: int
) -> tuple[np.ndarray, dict[str, int]]:
    """(places of the rows that are kept, ascending; how many each rule left out). classes: of the task.  most: rows
    that may be kept.  seed: of what is drawn.

    Confidence first, then at most so many of each class, then the number of rows. Within a class, and in all, rows are
    taken by disagreement, else at random."""
    left, removed = np.arange(len(answers.confidence)), {}

    def keep(chosen: np.ndarray, reason: str) -> None:
        nonlocal left
        removed[reason] = len(left) - len(chosen)
        left = chosen

    if spec.min_confidence is not None:
        keep(left[answers.confidence[left] >= spec.min_confidence], LOW)
    if spec.max_confidence is not None:
        keep(left[answers.confidence[left] <= spec.max_confidence], HIGH)
    by_disagreement = spec.disagreement is not None
    left = np.random.default_rng(seed).permutation(left)
    if by_disagreement:
        left = left[np.argsort(-answers.disagreement[left], kind="stable")]
    number = len(left) if most is None else min(most, len(left))
    if by_disagreement and (most is None or spec.keep is not None):
        number = min(number, math.ceil((spec.keep or KEEP) * len(left)))
    if spec.balance is not None:
        room = max(1, math.ceil(number / classes)) if spec.balance == "even" else spec.balance
        keep(left[_rank_in_class(answers.predicted[left]) < room], BALANCE)
    if by_disagreement:
        keep(left[:number], AGREEING)
    return np.sort(left[:number]), removed


def describe_filter(kept: int, every: int, removed: Mapping[str, float]) -> str:
    """`812 of 2,000 rows …; left out: …`."""
    parts = [f"{int(count):,} where {REASONS[name]}" for name, count in removed.items() if count]
    lost = f"; left out: {', '.join(parts)}" if parts else ""
    return f"row filter: {kept:,} of {format_count(every)} that only the teacher labels are trained on{lost}"


def make_empty_error(removed: Mapping[str, float], confidence: np.ndarray) -> UserError:
    """No row is left. confidence: (N,) of the teacher on all of them."""
    why = ", ".join(f"{int(count):,} rows where {REASONS[name]}" for name, count in removed.items() if count)
    low, middle, high = np.quantile(confidence, (0, 0.5, 1))
    why += f" (it is {low:.3f} to {high:.3f}, half of them above {middle:.3f})"
    return UserError(
        "the row filter leaves no row that only the teacher labels", where=WHERE, why=why,
        do="lower min_confidence, raise max_confidence, or add text",
    )  # fmt: skip


def digest_weights(model: torch.nn.Module) -> str:
    """sha256 of all tensors of a model."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _rank_in_class(predicted: np.ndarray) -> np.ndarray:
    """(N,) how many rows of the same class come before each."""
    order = np.argsort(predicted, kind="stable")
    ranks = np.empty(len(predicted), dtype=np.int64)
    sizes = np.unique(predicted, return_counts=True)[1]
    ranks[order] = np.arange(len(predicted)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return ranks


def _digest(rows: Rows) -> str:
    digest = hashlib.sha256()
    for part in rows.contents():
        for texts in part:
            digest.update(json.dumps(texts).encode())
    if rows.taught is not None:
        values = rows.taught.values if isinstance(rows.taught, Ragged) else rows.taught
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:32]


def _read(file: Path, rows: int) -> np.ndarray | None:
    """(N, 3) of a file that was written for these rows; None where there is none."""
    if not file.is_file() or file.stat().st_size != 12 * rows:
        return None
    return np.frombuffer(file.read_bytes(), dtype="<f4").reshape(rows, 3)


def _answer(
    task: Task, rows: Rows, length: int, context: StageContext, teacher: AskedReader | None,
    others: Sequence[AskedReader],
) -> np.ndarray:  # fmt: skip
    """(N, 3): confidence, class and disagreement."""
    logits, owners = _read_columns(rows) if teacher is None else _ask(task, rows, length, context, teacher)
    problem = task.head[1]
    if problem == "regression":
        sure = np.ones(len(logits))
    elif problem in ("multi_label", "ranking"):
        shares = sigmoid(logits)
        sure = np.maximum(shares, 1 - shares).min(1)
    else:
        sure = softmax(logits).max(1)
    out = np.zeros((len(rows), 3), dtype=np.float32)
    out[:, 0] = np.inf
    np.minimum.at(out[:, 0], owners, sure.astype(np.float32))
    out[~np.isfinite(out[:, 0]), 0] = 0  # a row without a word that is answered
    out[:, 1] = logits.argmax(1) if task.head == ONE_LABEL else -1
    for other in others:
        theirs, places = _ask(task, rows, length, context, other)
        if theirs.shape != logits.shape or (places != owners).any():
            raise UserError(
                "the model splits the texts otherwise than the teacher, so they cannot be compared",
                where=f"{WHERE}.disagreement", do="use a model with the teacher's tokenizer",
            )  # fmt: skip
        np.maximum.at(out[:, 2], owners, _compare(logits, theirs, problem).astype(np.float32))
    return out


def _compare(ours: np.ndarray, theirs: np.ndarray, problem: str) -> np.ndarray:
    """(M,) how far predictions are apart: 0 to 1, and 1 more where they are other answers."""
    if problem == "regression":
        apart, other = np.abs(ours - theirs)[:, 0], np.zeros(len(ours), dtype=bool)
    elif problem in ("multi_label", "ranking"):
        apart, other = bernoulli_divergence(theirs, ours).sum(1), ((ours > 0) != (theirs > 0)).any(1)
    else:
        apart, other = divergence(theirs, ours), ours.argmax(1) != theirs.argmax(1)
    return apart / (1 + apart) + other


def _ask(
    task: Task, rows: Rows, length: int, context: StageContext, reader: AskedReader
) -> tuple[np.ndarray, np.ndarray]:
    """((M, C) logits of rows or of words, (M,) the row of each)."""
    # Numbers that no two rows share: rows of several files may.
    own = replace(rows, numbers=np.arange(len(rows), dtype=np.int64), taught=None)
    examples = task.encode(reader.tokenizer, own, max_length=length)
    with torch.no_grad(), autocast(context.precision, torch.device(context.device)):
        batches = (batch.to(context.device) for batch in evaluation_batches(examples, TOKENS))
        found = collect_logits(reader.model, batches, examples)
    if examples.words is not None:
        at = np.flatnonzero(examples.words >= 0)
        return found[at], np.repeat(examples.numbers, examples.lengths)[at]
    pool_chunks = getattr(task, "pool_chunks", None)
    return (found if pool_chunks is None else pool_chunks(found, examples)), np.arange(len(rows))


def _read_columns(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The same of teacher columns."""
    assert rows.taught is not None
    if isinstance(rows.taught, Ragged):
        return np.asarray(rows.taught.values), np.repeat(np.arange(len(rows)), rows.taught.lengths)
    return np.asarray(rows.taught), np.arange(len(rows))
