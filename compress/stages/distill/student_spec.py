"""What a recipe may say about where a student comes from."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from compress.contracts import Frozen, ListOf
from compress.errors import describe, nearest

LAYER_RULES = ("every-other", "first", "last", "uniform")
STARTS = ("teacher", "selection", "svd", "projection", "random")
NARROWING = "svd"
"""What `start: teacher` does where the student is narrower: it keeps most before training."""


class StudentSpec(Frozen):
    """Where the student comes from: its teacher, or a checkpoint of its own; which layers; how wide."""

    model: str | None = Field(default=None, min_length=1)
    """A checkpoint that the student is cut from in place of the teacher, of whatever family, shape and tokenizer: a
    folder, hf:org/name, runs:/… or models:/…"""
    layers: str | ListOf[int] | None = None
    """Layers to keep, counted from 0, or a rule that picks `count` of them: every-other (0, 2, 4 …), first, last,
    uniform (spread from the first to the last). null: all of them."""
    count: int | None = Field(default=None, gt=0, le=512, validate_default=True)
    """How many layers a rule keeps."""
    hidden: int | None = Field(default=None, gt=0, le=65_536)
    """Width of a token between the layers; null: as it was."""
    heads: int | ListOf[int] | None = None
    """Attention heads of each layer, of hidden / heads channels; or a list with a number for each layer, whose heads
    are as wide as they would be otherwise. null: as many as there were."""
    feed_forward: int | ListOf[int] | None = None
    """Width inside the feed-forward part, or a list with one for each layer; null: in proportion to hidden."""
    embedding: int | None = Field(default=None, gt=0, le=65_536)
    """Width of the embedding tables; another than hidden is factorized (ALBERT). null: as it was, or as hidden."""
    start: Literal["teacher", "selection", "svd", "projection", "random"] = "teacher"
    """teacher: copies of its weights (of the `model`'s, where that is named); where the student is narrower, as svd.
    selection: evenly spaced elements of the weights (weight selection, arXiv 2311.18823).  svd: the leading directions
    of hidden states and heads, by real input (arXiv 2401.15024).  projection: random directions.  random: only the
    shape is the teacher's."""
    pooler: bool = True
    """Take the pooler along, if there is one."""
    head: Literal["teacher", "new"] = "teacher"
    """The task head: a copy of the teacher's (of the `model`'s, where it answers the same labels), or a new one."""

    @field_validator("layers", mode="before")
    @classmethod
    def _layers(cls, layers: Any) -> Any:
        """Checked by hand, since a union of two types would give two errors for one mistake."""
        if layers is None or (isinstance(layers, str) and layers in LAYER_RULES):
            return layers
        if not isinstance(layers, list | tuple):
            what = f"found {describe(layers)}, allowed: {', '.join(LAYER_RULES)} or a list of layer numbers"
            near = nearest(layers, LAYER_RULES) if isinstance(layers, str) else None
            raise ValueError(f"{what}; did you mean '{near}'?" if near else what)
        _check_numbers(layers)
        return tuple(layers)

    @field_validator("count")
    @classmethod
    def _count(cls, count: int | None, info: ValidationInfo) -> int | None:
        layers = info.data.get("layers")
        if isinstance(layers, str) and count is None:
            raise ValueError(f"layers '{layers}' needs a number of layers")
        if isinstance(layers, tuple) and count not in (None, len(layers)):
            raise ValueError(f"found {count}, but {len(layers)} layers are listed; leave it out")
        if layers is None and count is not None and "layers" in info.data:
            raise ValueError(f"found {count}, but no rule that picks so many layers; name one with layers")
        return count

    @field_validator("heads", "feed_forward", mode="before")
    @classmethod
    def _widths(cls, value: Any) -> Any:
        """By hand, like the layers."""
        numbers = list(value) if isinstance(value, list | tuple) else [value]
        if value is not None and (not numbers or not all(map(_is_width, numbers))):
            raise ValueError(f"found {describe(value)}, allowed: a whole number from 1, or a list of them")
        return tuple(value) if isinstance(value, list) else value

    def names_widths(self) -> bool:
        """Whether it says anything about another width than its model's."""
        return any(x is not None for x in (self.hidden, self.heads, self.feed_forward, self.embedding))

    def sentence(self) -> str:
        """What the plan says of it."""
        if self.layers is None:
            chosen = "all layers"
        else:
            chosen = f"layers {self.layers if isinstance(self.layers, str) else list(self.layers)}"
            chosen += f" x {self.count}" if self.count else ""
        whose = "teacher" if self.model is None else self.model
        told = f"a student of {whose} {chosen}" if self.layers is not None else f"a student of {chosen} of {whose}"
        for name in ("hidden", "heads", "feed_forward", "embedding"):
            value = getattr(self, name)
            if value is not None:
                told += f", {name} {list(value) if isinstance(value, tuple) else value}"
        if self.start == "random":
            return told + ", random weights"
        start = NARROWING if self.start == "teacher" and self.names_widths() else self.start
        return told if start == "teacher" else f"{told}, by {start}"


def _is_width(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1_000_000


def _check_numbers(layers: list[Any] | tuple[Any, ...]) -> None:
    if not layers:
        raise ValueError("found an empty list; a student needs at least one layer")
    for number in layers:
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"found {number!r} among the layers, allowed: whole numbers from 0")
    for before, after in pairwise(layers):
        if after == before:
            raise ValueError(f"layer {after} is named twice")
        if after < before:
            raise ValueError(f"layer {after} stands after {before}; list the layers in rising order")
