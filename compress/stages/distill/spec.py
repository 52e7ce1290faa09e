"""What a recipe may say about distilling a teacher into a student."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from compress.contracts import Frozen, ListOf, MaskingSpec, NoiseSpec, StageSpec, TrainingPlan
from compress.encoder.config import layer_maps as layermaps
from compress.encoder.config.schemes import QuantizationSpec
from compress.errors import describe, nearest
from compress.registry import RowOf, build
from compress.stages.distill.augmentation_spec import AugmentationSpec
from compress.stages.distill.student_spec import StudentSpec
from compress.stages.distill.tying_spec import PullSpec, ShrinkSpec


class CacheSpec(Frozen):
    """Keep the teacher's answers on the disk: made before the first step, read from then on."""

    path: str = Field(min_length=1)
    """A folder, shared by all who learn from the same teacher and data; answers lie in its `corpus` or `task`."""
    bits: Literal[8, 16, 32] = 16
    """Of each number that is kept."""
    top_k: int | None = Field(default=None, gt=0, le=1_000_000)
    """Of vocabulary logits the largest, beside what all others weigh together; null: what all of them are made of."""


class Spec(StageSpec):
    """Train a student to do what the teacher does, on the corpus or on the task."""

    reads: ClassVar[frozenset[str]] = frozenset({"teacher"})

    kind: Literal["distill"]
    level: Literal["general", "task_specific"]
    """general: general distillation on masked text of the corpus, before any task (DistilBERT's first step).
    task_specific: task-specific distillation on labelled rows."""
    student: StudentSpec | None = None
    """null: go on with the student of the stage before."""
    taught_by: Literal["teacher", "first", "parent"] | None = None
    """Of several stages, whom this one learns from. teacher: whom the recipe names.  first: the model that the chain
    starts from.  parent: what the stage is given, where the student is cut from it; of a student that is what the stage
    is given, the model before the stages without training which it recovers; of one that was taught already, whoever
    taught it.  null: parent, in whose place the recipe's teacher stands where that is the chain's first model."""
    objectives: Annotated[
        tuple[Annotated[Any, RowOf("compress.objectives")], ...], Field(strict=False, min_length=1, max_length=50)
    ]
    """What the student learns from the teacher and the data; their weighted sum is minimised."""
    layer_map: str | ListOf[Any] = "uniform"
    """Which teacher layer each student layer is compared with, by the objectives that compare layers: uniform (every
    student layer the end of its share), first, last, every-other, tinybert, pkd-skip, pkd-last, start (the layer it was
    copied from), cka (the one it resembles most, measured first), learned (weights over all teacher layers, trained
    along), smallest (at each step the one with the least loss); or a list of teacher layers, one for each student
    layer; or a list of pairs [student, teacher]. Layers count from 0."""
    masking: MaskingSpec | None = None
    """Masking with level: general. Default: the defaults of `masking`."""
    control: bool | None = None
    """Also train the same student on hard labels alone, at equal steps, to see what the teacher brought. null: yes on
    level task, when the stage is the recipe's last."""
    select: Literal["student", "best"] = "student"
    """Which model the run returns, on the recipe's last stage. student: the distilled student.  best: the best on
    validation of the model before training, the student and the control."""
    use_unlabelled: bool = False
    """Also learn from the unlabelled split, where only the teacher speaks."""
    augmentation: AugmentationSpec | None = None
    """Also learn from copies of the training texts in which words are replaced."""
    noise: NoiseSpec | None = None
    """Typing mistakes in the training texts, anew for each epoch. Student, teacher and control read the same mistyped
    text, so that tokens and layers can be compared; held-out text stays clean."""
    shrink_residuals: ShrinkSpec | None = None
    """Of a student whose layers share and add residuals: let these fade out while it trains. null: they stay."""
    pull: PullSpec | None = None
    """Draw layers together before a share stage merges them. null: each goes its own way."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Of the student while it trains; null: its own."""
    quantize: QuantizationSpec | None = None
    """Round the student's matrices, inputs and tables while it trains, so that it is born quantized; of a student that
    is cut or new, schemes with ranges that are observed once are refused. null: it is as it was."""
    freeze_ranges: float | None = Field(default=None, ge=0, le=1)
    """Of a quantized student whose ranges follow the batches (static-ema, q8bert): the share of the steps after which
    they stand still. null: 0.8."""
    cache: CacheSpec | None = None
    """Ask the teacher once for each row, and read its answers from the disk after; null: ask it at every step."""
    checks: Literal["stop", "tell", "off"] = "stop"
    """Of what keeps a student from learning. stop: findings are told, and the run stops where going on makes no sense
    (labels of teacher and data in different orders).  tell: it never stops.  off: no check runs."""
    training: TrainingPlan

    def needs(self) -> frozenset[str]:
        return self.reads | {"corpus" if self.level == "general" else "data"}

    def reads_vocabulary(self) -> bool:
        """Whether an objective reads vocabulary logits, which models without a masked-LM head do not have."""
        return any(build("compress.objectives", row).student_needs.mlm is not None for row in self.objectives)

    def masking_or_default(self) -> MaskingSpec:
        return self.masking or MaskingSpec()

    @field_validator("objectives")
    @classmethod
    def _weights(cls, rows: tuple[Any, ...]) -> tuple[Any, ...]:
        if not any(row.weight > 0 for row in rows):
            raise ValueError("every objective has weight 0; give at least one a weight above 0")
        return rows

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
        corpus = self.level == "general"
        wrong = [name for name in ("control", "use_unlabelled") if corpus and getattr(self, name)]
        wrong += ["augmentation"] if corpus and self.augmentation is not None else []
        wrong += ["masking"] if not corpus and self.masking is not None else []
        if wrong:
            raise ValueError(
                f"{wrong[0]} requires level: {'task_specific' if corpus else 'general'}, found {self.level}"
            )
        self.masking_or_default().check_noise(self.noise)
        if self.cache is not None:
            self._cacheable(self.cache)
        return self

    def _cacheable(self, cache: CacheSpec) -> None:
        """Raise ValueError for input that changes with each epoch, and for an option that nothing reads."""
        if self.noise is not None:
            raise ValueError(
                "typo noise changes the text every epoch, so teacher outputs cannot be cached; remove noise or cache"
            )
        strategy = self.masking_or_default().strategy
        if self.level == "general" and strategy != "static":
            raise ValueError(
                f"{strategy} masking masks other tokens in each epoch, so teacher outputs cannot be cached; set "
                "masking.strategy to static, or cache only in a stage with level: task_specific"
            )
        if cache.top_k is not None and not any(getattr(row, "on", "") == "vocabulary" for row in self.objectives):
            raise ValueError("cache.top_k is of vocabulary logits, and no objective reads them; leave it out")


def _is_layer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
