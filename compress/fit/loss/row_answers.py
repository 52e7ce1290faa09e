"""A model's answers to the rows that answers are compared on, and how far two models' answers to them are apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compress.contracts import Needs
from compress.data.batches.evaluation_batches import evaluation_batches, restore_order
from compress.data.batches.examples import Examples
from compress.data.batches.ragged import gather
from compress.data.tables.table import Rows
from compress.data.task import Task
from compress.encoder.infer.prepare import PreparedModel
from compress.predict.predictor import MAX_TOKENS
from compress.stages.shared.validation import mean_distance

ANSWERS = Needs(logits=True)


def answers(model: PreparedModel, examples: Examples, device: str) -> np.ndarray:
    """(rows, C) logits of encoded rows, in their order; (tokens, C) of heads that answer tokens."""
    return restore_order(examples, _answer_rows(model, examples, np.arange(len(examples)), device))


def _answer_rows(
    model: PreparedModel, examples: Examples, rows: np.ndarray, device: str
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The logits of some rows, by batch, as `restore_order` takes them."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    if not len(rows):
        return found
    for batch in evaluation_batches(examples, MAX_TOKENS, rows):
        logits = model(batch.to(device), ANSWERS).logits
        assert logits is not None
        found.append((batch.row_ids.numpy(), logits.float().cpu().numpy()))
    return found


def answer_changed(
    model: PreparedModel, examples: Examples, known: tuple[np.ndarray, Examples], device: str
) -> np.ndarray:
    """As `answers`, where the model's answers to other examples are known: rows of the same tokens are not computed
    again."""
    given, before = known
    if len(examples) != len(before):  # long texts in windows, whose number changes
        return answers(model, examples, device)
    same = np.array([_is_same_row(examples, before, row) for row in range(len(examples))])
    kept, changed = np.flatnonzero(same), np.flatnonzero(~same)
    places = gather(before.offsets, kept)[0] if len(given) == len(before.ids) else kept
    found = _answer_rows(model, examples, changed, device)
    return restore_order(examples, [*found, *([(kept, given[places])] if len(kept) else [])])


def _is_same_row(one: Examples, other: Examples, row: int) -> bool:
    """Whether a row has the same tokens in both."""
    ours, theirs = (slice(x.offsets[row], x.offsets[row + 1]) for x in (one, other))
    return np.array_equal(one.ids[ours], other.ids[theirs]) and np.array_equal(
        one.segments[ours], other.segments[theirs]
    )


def compute_kl_to_parent(
    task: Task,
    ours: tuple[np.ndarray, Examples],
    theirs: tuple[np.ndarray, Examples],
    names: Sequence[str],
    rows: Rows,
) -> float:
    """How far answers are from others to the same rows: mean KL divergence; of scores the squared difference; of
    vectors 1 minus the mean cosine; where both cut the rows otherwise and answer pieces of them, how much lower the
    main metric is."""
    if ours[0].shape != theirs[0].shape:
        metric = task.choose_metrics(names)[0]
        figures = [task.score(logits, names, examples, rows).value(metric) for logits, examples in (ours, theirs)]
        return max(0.0, figures[1] - figures[0])
    if task.label_free:
        return max(0.0, mean_distance(ours[0], theirs[0]))
    alike = task.compare(ours[0], theirs[0], names, ours[1], rows)
    if "kl" in alike.figures:
        return max(0.0, float(alike.figures["kl"](np.ones((1, alike.rows)))[0]))
    if "kl" in alike.values:
        return max(0.0, alike.values["kl"])
    return float(np.mean((ours[0] - theirs[0]) ** 2))
