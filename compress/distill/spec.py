"""What a recipe may say about distilling a teacher into a student."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core.core_schema import ValidationInfo

from compress.contracts import Frozen, ListOf, MaskingSpec, NoiseSpec, StageSpec, TrainingPlan
from compress.distill.augmentspec import AugmentationSpec
from compress.encoder import layermaps
from compress.errors import describe, nearest
from compress.registry import RowOf, build

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
    layer_map: str | ListOf[Any] = "uniform"
    """Which teacher layer each student layer is compared with, by the objectives that compare layers: uniform (every
    student layer the end of its share), first, last, every-other, tinybert, pkd-skip, pkd-last, start (the layer it was
    copied from), cka (the one it resembles most, measured first), learned (weights over all teacher layers, trained
    along), smallest (at each step the one with the least loss); or a list of teacher layers, one for each student
    layer; or a list of pairs [student, teacher]. Layers count from 0."""
    masking: MaskingSpec | None = None
    """Of level corpus; null: the defaults."""
    control: bool | None = None
    """Also train the same student on hard labels alone, at equal steps, to see what the teacher brought. null: yes on
    level task, when the stage is the recipe's last."""
    use_unlabelled: bool = False
    """Also learn from the unlabelled split, where only the teacher speaks."""
    augmentation: AugmentationSpec | None = None
    """Also learn from copies of the training texts in which words are replaced."""
    noise: NoiseSpec | None = None
    """Typing mistakes in the training texts, anew for each epoch. Student, teacher and control read the same mistyped
    text, so that tokens and layers can be compared; held-out text stays clean."""
    checks: Literal["stop", "tell", "off"] = "stop"
    """Of what keeps a student from learning. stop: findings are told, and the run stops where going on makes no sense
    (labels of teacher and data in different orders).  tell: it never stops.  off: no check runs."""
    training: TrainingPlan

    def needs(self) -> frozenset[str]:
        return self.reads | {"corpus" if self.level == "corpus" else "data"}

    def reads_vocabulary(self) -> bool:
        """Whether an objective reads vocabulary logits, which models without a masked-LM head do not have."""
        return any(build("compress.objectives", row).student_needs.mlm is not None for row in self.objectives)

    def masking_or_default(self) -> MaskingSpec:
        return self.masking or MaskingSpec()

    @field_validator("layer_map", mode="before")
    @classmethod
    def _layer_map(cls, value: Any) -> Any:
        """Checked by hand, since a union of types would give an error for each of them."""
        if isinstance(value, str):
            if value in layermaps.NAMES:
                return value
            near = nearest(value, layermaps.NAMES)
            known = f"found {describe(value)}, allowed: {', '.join(layermaps.NAMES)}, or a list"
            raise ValueError(f"{known}; did you mean '{near}'?" if near else known)
        if not isinstance(value, list | tuple):
            raise ValueError(f"found {describe(value)}, allowed: {', '.join(layermaps.NAMES)}, or a list")
        numbers = [_is_layer(item) for item in value]
        pairs = [isinstance(item, list | tuple) and len(item) == 2 and all(map(_is_layer, item)) for item in value]
        if not value or not (all(numbers) or all(pairs)):
            raise ValueError("allowed in the list: teacher layers, or pairs [student layer, teacher layer], from 0")
        return tuple(tuple(item) if isinstance(item, list | tuple) else item for item in value)

    @model_validator(mode="after")
    def _level(self) -> Spec:
        corpus = self.level == "corpus"
        wrong = [name for name in ("control", "use_unlabelled") if corpus and getattr(self, name)]
        wrong += ["augmentation"] if corpus and self.augmentation is not None else []
        wrong += ["masking"] if not corpus and self.masking is not None else []
        if wrong:
            raise ValueError(f"{wrong[0]} belongs to level {'task' if corpus else 'corpus'}, this is {self.level}")
        self.masking_or_default().check_noise(self.noise)
        return self


def _is_layer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


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
