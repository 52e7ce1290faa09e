"""Rows without labels, which only a teacher labels: which of them are used, and warnings about them."""

from __future__ import annotations

import logging

import numpy as np

from compress.data.batches.examples import Examples
from compress.data.tables.table import Rows, Table
from compress.data.text import texts
from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError, format_count
from compress.stages.shared.stage import StageContext
from compress.storage.spill import pieces

_log = logging.getLogger("compress.stages")


def find_unlabelled_rows(table: Table, context: StageContext) -> Rows:
    """The rows without labels, but for those whose text is in a split that the student is measured on. Raises UserError
    where there are none."""
    rows, data = table.split("unlabelled"), context.recipe.data
    assert data is not None
    return rows if data.allow_overlap else _without_overlap(rows, table, context)


def warn_of_few_rows(count: int, context: StageContext) -> None:
    """Warn where there are fewer unlabelled rows than the recipe asks for."""
    data = context.recipe.data
    if data is not None and data.unlabelled_rows is not None and count < data.unlabelled_rows:
        _log.warning("only %s of the %s unlabelled rows requested are there", f"{count:,}", f"{data.unlabelled_rows:,}")


def draw_unlabelled_rows(rows: Rows, context: StageContext) -> Rows:
    """No more of them than the recipe asks for, drawn at random."""
    data = context.recipe.data
    assert data is not None
    if data.unlabelled_rows is None or data.unlabelled_rows >= len(rows):
        warn_of_few_rows(len(rows), context)
        return rows
    drawn = np.random.default_rng(context.recipe.seed).choice(len(rows), data.unlabelled_rows, replace=False)
    context.say(f"{data.unlabelled_rows:,} of {format_count(len(rows), 'unlabelled row')} are used")
    return rows.take(np.sort(drawn))


def _without_overlap(rows: Rows, table: Table, context: StageContext) -> Rows:
    measured = [table.splits[split] for split in ("validation", "test") if split in table.splits]
    same = texts.find_overlap(rows, measured)
    if not same.any():
        return rows
    found = format_count(int(same.sum()), "unlabelled row")
    if same.all():
        raise UserError(
            "all unlabelled rows are also in the validation or test split", where=table.name,
            do="give other text, or add --allow-overlap",
        )  # fmt: skip
    context.say(f"{found} left out: their text is also in the validation or test split (--allow-overlap keeps them)")
    return rows.take(np.flatnonzero(~same))


FEW_UNKNOWN = 0.005
"""Share of unknown tokens up to which no text looks foreign."""


def warn_of_unknown_tokens(tokenizer: Tokenizer, labelled: Examples, unlabelled: Examples) -> None:
    """Text in another language or script has more tokens that the vocabulary does not hold."""
    if "unk" not in tokenizer.specials:
        return
    ours, theirs = (_share_of(part.ids, tokenizer.unk_id) for part in (labelled, unlabelled))
    if theirs > max(3 * ours, FEW_UNKNOWN):
        _log.warning(
            "%.1f%% of the tokens of the unlabelled rows are unknown to the tokenizer, %.1f%% of the labelled rows': "
            "is the text in the same language?", 100 * theirs, 100 * ours,
        )  # fmt: skip


def _share_of(ids: np.ndarray, wanted: int) -> float:
    found = sum(int((piece == wanted).sum()) for piece in pieces(ids))
    return found / max(1, len(ids))
