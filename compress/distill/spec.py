"""What a recipe may say about distilling a teacher into a student."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core.core_schema import ValidationInfo

from compress.contracts import Frozen, ListOf, MaskingSpec, StageSpec, TrainingPlan
from compress.errors import describe, nearest
from compress.registry import RowOf

LAYER_RULES = ("every-other", "first", "last", "uniform")


class StudentSpec(Frozen):
    """How the student is cut from the teacher."""

    layers: str | ListOf[int]
    """Teacher layers to keep, counted from 0, or a rule that picks `count` of them:
    every-other (0, 2, 4 …), first, last, uniform (spread from the first to the last)."""
    count: int | None = Field(default=None, gt=0, le=512, validate_default=True)
    """How many layers a rule keeps."""
    start: Literal["teacher", "random"] = "teacher"
    """teacher: copies of its weights.  random: only the shape is the teacher's."""
    pooler: bool = True
    """Take the teacher's pooler along, if it has one."""
    head: Literal["teacher", "new"] = "teacher"
    """The task head: a copy of the teacher's, or a new one."""

    @field_validator("layers", mode="before")
    @classmethod
    def _layers(cls, layers: Any) -> Any:
        """Checked by hand, since a union of two types would give two errors for one mistake."""
        if isinstance(layers, str) and layers in LAYER_RULES:
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
        return count


class Spec(StageSpec):
    """Train a student to do what the teacher does, on the corpus or on the task."""

    reads: ClassVar[frozenset[str]] = frozenset({"teacher"})

    kind: Literal["distill"]
    level: Literal["corpus", "task"]
    """corpus: masked text, before any task (DistilBERT's first step).  task: labelled rows."""
    student: StudentSpec | None = None
    """null: go on with the student of the stage before."""
    objectives: Annotated[
        tuple[Annotated[Any, RowOf("compress.objectives")], ...], Field(strict=False, min_length=1, max_length=50)
    ]
    masking: MaskingSpec | None = None
    """Of level corpus; null: the defaults."""
    control: bool = False
    """Also train the same student on hard labels alone, at equal steps, to see what the teacher brought."""
    use_unlabelled: bool = False
    """Also learn from the unlabelled split, where only the teacher speaks."""
    training: TrainingPlan

    def needs(self) -> frozenset[str]:
        return self.reads | {"corpus" if self.level == "corpus" else "data"}

    def masking_or_default(self) -> MaskingSpec:
        return self.masking or MaskingSpec()

    @model_validator(mode="after")
    def _level(self) -> Spec:
        corpus = self.level == "corpus"
        wrong = [name for name in ("control", "use_unlabelled") if corpus and getattr(self, name)]
        wrong += ["masking"] if not corpus and self.masking is not None else []
        if wrong:
            raise ValueError(f"{wrong[0]} belongs to level {'task' if corpus else 'corpus'}, this is {self.level}")
        return self


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
