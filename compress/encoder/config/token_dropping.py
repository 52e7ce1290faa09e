"""Which share of a text's tokens goes on after each layer (PoWER-BERT, 2001.08950). Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compress.encoder.config import checks
from compress.encoder.config.heads import HeadConfig
from compress.errors import UserError

WHERE = "encoder.kept_tokens"
ALL = 100


def count_kept(length: int, percent: int) -> int:
    """Tokens of a text of `length` tokens that go on, at least one: whole numbers, so that every runtime counts
    alike."""
    return -(-length * percent // 100)


def check_kept_tokens(kept: Any, depth: int, obstacle: str | None) -> tuple[int, ...] | None:
    """One spelling for each: None where all tokens go on. obstacle: why this encoder cannot drop tokens; None: it can.

    Raises UserError for anything but a percentage for each layer, none above the one before.
    """
    if kept is None:
        return None
    if not checks.is_list(kept) or len(kept) != depth:
        raise UserError("kept_tokens must be a list of one percentage for each layer", where=WHERE)
    for percent in kept:
        checks.integer("kept_tokens", percent, least=1, most=ALL)
    if list(kept) != sorted(kept, reverse=True):
        raise UserError("tokens that were dropped cannot come back", where=WHERE, why=f"found {list(kept)}")
    if all(percent == ALL for percent in kept):
        return None
    if obstacle is not None:
        raise UserError("this encoder cannot drop tokens", where=WHERE, why=obstacle)
    return tuple(kept)


def find_obstacle(positions: str, windows: object, relative: Sequence[object]) -> str | None:
    """Why an encoder cannot drop tokens; None: it can. Its tokens must know their own places."""
    if windows is not None:
        return "its layers have local attention, whose windows would move"
    if positions in ("rotary", "none") or any(each is not None for each in relative):
        return "its attention computes distances between tokens"
    return None


def find_head_obstacle(head: HeadConfig | None) -> str | None:
    """Why a task head cannot go without some of the tokens; None: it can."""
    if head is None:
        return "the model has no task head"
    if head.kind == "token_classification":
        return "token classification needs a label for every token"
    if head.kind == "question_answering":
        return "an answer can be at any token"
    if head.kind == "embedding":
        return "other programs pool the states of all tokens of an embedding model"
    if not head.only_first:
        return "its head reads the mean of all tokens"
    if head.exits:
        return "it has early exits, which read the mean of all tokens"
    return None
