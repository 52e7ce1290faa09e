"""Recipe keys of `student:`, how a student is initialized."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from compress.contracts import Frozen, ListOf
from compress.errors import describe, format_count, nearest, printable

LAYER_RULES = ("every-other", "every-other-from-last", "first", "last", "uniform")
STARTS = ("teacher", "selection", "svd", "projection", "random")
MOST_HIDDEN = 65_536
NARROWING = "svd"
"""What `init: teacher` does where the student is narrower: it keeps most before training."""


class StudentSpec(Frozen):
    """How the student is initialized: from its teacher or another checkpoint, with which layers and which widths."""

    model: str | None = Field(default=None, min_length=1)
    """Checkpoint from which the student is initialized, of any family, shape and tokenizer: a folder, hf:org/name,
    runs:/… or models:/…. Default: the teacher."""
    layers: str | ListOf[int] | None = None
    """Layers to keep, counted from 0, or a rule that selects `count` of them: every-other (0, 2, 4 …),
    every-other-from-last (1, 3, 5 of six), first, last, uniform (evenly spaced from the first to the last). Default:
    all layers."""
    count: int | None = Field(default=None, gt=0, le=512)
    """Number of layers that a rule selects. Default: half of the layers, rounded up."""
    hidden: int | Literal["half"] | None = None
    """Hidden size, or half: half of the teacher's, with as many heads. Default: unchanged."""
    heads: int | ListOf[int] | None = None
    """Attention heads of each layer, with hidden / heads channels each; or a list with one number per layer, whose
    heads keep their width. Default: unchanged."""
    intermediate_size: int | ListOf[int] | None = None
    """Feed-forward size (`intermediate_size` in transformers' configs), or a list with one per layer. Default:
    proportional to hidden."""
    embedding: int | None = Field(default=None, gt=0, le=65_536)
    """Embedding size; if it differs from hidden, the embedding is factorized (ALBERT). Default: unchanged, or as
    hidden."""
    init: Literal["teacher", "selection", "svd", "projection", "random"] = "teacher"
    """Initial weights. teacher: copies of the teacher's weights (or of `model`'s, if set); for a narrower student, as
    svd.  selection: evenly spaced elements of the weights (weight selection, arXiv 2311.18823).  svd: leading principal
    directions of hidden states and heads on real input (arXiv 2401.15024).  projection: random directions.  random:
    random weights in the teacher's shape."""
    pooler: bool = True
    """Copy the pooler, if there is one."""
    head: Literal["teacher", "new"] = "teacher"
    """Task head. teacher: a copy of the teacher's (of `model`'s, if it has the same labels).  new: a new head."""

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
        if isinstance(layers, tuple) and count not in (None, len(layers)):
            raise ValueError(f"found {count}, but {len(layers)} layers are listed; remove count")
        if layers is None and count is not None and "layers" in info.data:
            raise ValueError(f"found {count}, but layers names no rule; set layers to a rule such as uniform")
        return count

    @field_validator("hidden", mode="before")
    @classmethod
    def _hidden(cls, value: Any) -> Any:
        """By hand, like the layers."""
        if value in (None, "half") or (_is_width(value) and value <= MOST_HIDDEN):
            return value
        raise ValueError(f"found {describe(value)}, allowed: a whole number from 1 to {MOST_HIDDEN:,}, or half")

    @field_validator("heads", "intermediate_size", mode="before")
    @classmethod
    def _widths(cls, value: Any) -> Any:
        """By hand, like the layers."""
        numbers = list(value) if isinstance(value, list | tuple) else [value]
        if value is not None and (not numbers or not all(map(_is_width, numbers))):
            raise ValueError(f"found {describe(value)}, allowed: a whole number from 1, or a list of them")
        return tuple(value) if isinstance(value, list) else value

    def names_widths(self) -> bool:
        """Whether it says anything about another width than its model's."""
        return any(x is not None for x in (self.hidden, self.heads, self.intermediate_size, self.embedding))

    def sentence(self) -> str:
        """What the plan says of it."""
        if self.layers is None:
            chosen = "all layers"
        elif isinstance(self.layers, str):
            chosen = f"{format_count(self.count, 'layer') if self.count else 'half of the layers'} ({self.layers})"
        else:
            chosen = f"layers {list(self.layers)}"
        told = f"a student of {chosen} of {'the teacher' if self.model is None else self.model}"
        for name in ("hidden", "heads", "intermediate_size", "embedding"):
            value = getattr(self, name)
            if value == "half":
                told += ", half of its width"
            elif value is not None:
                told += f", {name} {list(value) if isinstance(value, tuple) else value}"
        if self.init == "random":
            return told + ", random weights"
        start = NARROWING if self.init == "teacher" and self.names_widths() else self.init
        return told if start == "teacher" else f"{told}, by {start}"


def _is_width(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1_000_000


def _check_numbers(layers: list[Any] | tuple[Any, ...]) -> None:
    if not layers:
        raise ValueError("found an empty list; a student needs at least one layer")
    for number in layers:
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"found layer {printable(repr(number), 60)}, allowed: whole numbers from 0")
    for before, after in pairwise(layers):
        if after == before:
            raise ValueError(f"layer {after} is listed twice; remove one")
        if after < before:
            raise ValueError(f"layer {after} is listed after {before}; list layers in ascending order")
