"""What a recipe may say about copies of the training texts in which words are replaced."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from compress.contracts import Frozen


class AugmentationSpec(Frozen):
    """Copies of the labelled training texts with some words replaced, which the teacher labels (TinyBERT,
    1909.10351)."""

    method: Literal["masked-lm", "neighbours"] = "masked-lm"
    """Where other words come from. masked-lm: what a masked language model expects in the word's place, one hidden at a
    time; a word of several pieces gets its neighbours. neighbours: the nearest words in a model's embedding table,
    which needs no masked-LM head."""
    model: Annotated[str, Field(min_length=1)] | None = None
    """Whose masked-LM head, or whose embedding table; null: the general teacher's, or for neighbours the teacher's."""
    copies: int = Field(default=5, gt=0, le=100)
    """Of each text, at most: those that are like another one are left out. (The paper: 20.)"""
    rate: float = Field(default=0.4, gt=0, le=1)
    """Share of the words that are replaced."""
    candidates: int = Field(default=15, gt=0, le=1000)
    """How many other words there are for each, all of them equally likely."""
    keep_labels: bool = False
    """Give each copy its original's label too; false: only the teacher says what it is."""
