"""Recipe keys of stage distill."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from compress.contracts import Frozen, ListOf, MaskingSpec, NoiseSpec, StageSpec, TrainingPlan
from compress.contracts.traits import Form, Rejection, Start, rejects_quantized
from compress.encoder.config import layer_maps
from compress.encoder.config.schemes import QuantizationSpec
from compress.errors import describe, nearest
from compress.registry import RowOf, build, load
from compress.stages.distill.augmentation_spec import AugmentationSpec
from compress.stages.distill.row_filter_spec import RowFilterSpec
from compress.stages.distill.student_spec import StudentSpec
from compress.stages.distill.tying_spec import ProximitySpec, ShrinkSpec

NEWER = {"control_start": "both", "row_filter": None, "stop": "validation"}
"""Keys that came later than many a hash → their defaults."""


class CacheSpec(Frozen):
    """Cache of teacher outputs on disk: written before the first step, read during training."""

    path: str = Field(min_length=1)
    """Cache folder; runs with the same teacher and data can share it. Outputs are in its subfolder `corpus` or
    `task`."""
    bits: Literal[8, 16, 32] = 16
    """Bits per stored value."""
    top_k: int | None = Field(default=None, gt=0, le=1_000_000)
    """Number of largest vocabulary logits to store, plus the total weight of the others. Default: store the hidden
    states from which all logits are computed."""


class Spec(StageSpec):
    """Distil a teacher into a student, on a corpus (general) or on labelled rows (task-specific)."""

    reads: ClassVar[frozenset[str]] = frozenset({"teacher"})
    learns: ClassVar[bool] = True
    reads_teacher: ClassVar[bool] = True
    result_name: ClassVar[str] = "student"
    task_recipe: ClassVar[str | None] = "distilbert-task"
    embeds: ClassVar[bool] = True

    kind: Literal["distill"]
    level: Literal["general", "task_specific"]
    """general: general distillation on masked text of the corpus, before any task (DistilBERT's first step).
    task_specific: task-specific distillation on labelled rows."""
    student: StudentSpec | None = None
    """How the student is initialized. Default: continue with the student of the stage before."""
    taught_by: Literal["teacher", "first", "parent"] | None = None
    """Which model teaches this stage, in a recipe of several stages. teacher: the recipe's teacher.  first: the model
    that the chain starts from.  parent: the stage's input if the student is initialized from it; for a student that is
    the stage's input, the model before the compression stages that this stage recovers from; for a student that was
    distilled already, its teacher. Default: parent, or the recipe's teacher if that is the first model of the chain."""
    objectives: Annotated[
        tuple[Annotated[Any, RowOf("compress.objectives")], ...], Field(strict=False, min_length=1, max_length=50)
    ]
    """Training objectives; the loss is their weighted sum."""
    layer_map: str | ListOf[Any] = "uniform"
    """Which teacher layer each student layer is matched with, for objectives that compare layers: uniform (teacher
    layers are divided evenly, each student layer gets the last of its share), first, last, every-other, tinybert,
    pkd-skip, pkd-last, start (the layer it was copied from), cka (the most similar one, measured before training),
    learned (trained weights over all teacher layers), smallest (the one with the lowest loss at each step); or a list
    of teacher layers, one per student layer; or a list of pairs [student, teacher]. Layers count from 0."""
    masking: MaskingSpec | None = None
    """Masking with level: general. Default: the defaults of `masking`; none if the teacher has no masked-LM head."""
    control: bool | None = None
    """Also train a control: the same student on hard labels alone for the same number of steps, to measure the gain
    from the teacher. Default: true with level: task_specific in the recipe's last stage, else false."""
    control_start: Literal["student", "teacher", "both"] = "both"
    """Where the control starts, if the student starts elsewhere than from layers of the fine-tuned teacher (from the
    general stage before, or another checkpoint) but has their shape. student: where the student starts.  teacher: from
    the teacher's layers.  both: train two controls, and compare the student with the better one."""
    select: Literal["student", "best"] = "student"
    """Which model the run returns, on the recipe's last stage. student: the distilled student.  best: the best on
    validation of the model before training, the student and the control."""
    use_unlabelled: bool | Literal["auto"] = False
    """Also train on the data's unlabelled split, with teacher outputs only. true: the split is required.  auto: if
    there is one.  Text that `data.unlabelled` or `data.pool` names is used in any case, by all stages that distil on
    the task."""
    augmentation: AugmentationSpec | None = None
    """Data augmentation: also train on copies of the training texts with replaced words."""
    row_filter: RowFilterSpec | None = None
    """Row filter: leave out rows that only the teacher labels, by its confidence, by class, or by disagreement."""
    stop: Literal["validation", "agreement"] = "validation"
    """What ends a training without `epochs` and `steps`, and selects the best weights. validation: the metric on the
    labelled validation rows.  agreement: the agreement with the teacher on text without labels, a tenth of which (at
    most 2,000 rows) is held out for it: for data with few validation labels."""
    noise: NoiseSpec | None = None
    """Typo noise in the training texts, different in every epoch. Student, teacher and control read the same noisy
    text, so that tokens and layers can be compared; held-out text stays clean."""
    shrink_residuals: ShrinkSpec | None = None
    """For a student with shared layers and low-rank residuals: shrink the residuals to zero during training. Default:
    the residuals stay."""
    proximity: ProximitySpec | None = None
    """Proximity regularizer: a penalty on the distance of layers that a later share stage ties. Default: none."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout of the student during training. Default: as in its config."""
    quantize: QuantizationSpec | None = None
    """Quantization-aware training: fake-quantize the student's matrices, inputs and tables during training. Schemes
    with ranges that are calibrated once are not supported for a student that is cut or new. Default: no
    quantization."""
    freeze_ranges: float | None = Field(default=None, ge=0, le=1)
    """For a quantized student with moving ranges (static-ema, q8bert): fraction of the steps after which the ranges are
    frozen. Default: 0.8."""
    cache: CacheSpec | None = None
    """Cache of teacher outputs: the teacher computes each row once, later steps read from disk. Default: the teacher
    runs at every step."""
    checks: Literal["stop", "warn", "off"] = "stop"
    """Checks for likely training problems. stop: report findings, and stop the run at one that makes training useless
    (labels of teacher and data in different orders).  warn: report only.  off: no checks."""
    training: TrainingPlan

    @model_serializer(mode="wrap")
    def _without_later_keys(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """These keys are newer than many a recipe: hashes of those with their defaults stay as they were."""
        return {k: v for k, v in handler(self).items() if k not in NEWER or v != NEWER[k]}

    def makes_forms(self) -> tuple[Form, ...]:
        return () if self.quantize is None else ("quantized",)

    def rejects(self) -> tuple[Rejection, ...]:
        return () if self.quantize is None else (rejects_quantized("quantizing it again"),)

    def starts_from(self) -> Start:
        if self.student is None:
            return "input"
        return "teacher" if self.student.model is None else "checkpoint"

    def checkpoint(self) -> str | None:
        return None if self.student is None else self.student.model

    def checkpoints(self) -> tuple[str, ...]:
        named = (self.checkpoint(), getattr(self.augmentation, "model", None))
        named += () if self.row_filter is None else (self.row_filter.names_model(),)
        return tuple(name for name in named if name is not None)

    def reads_unlabelled(self) -> bool:
        return self.level == "task_specific" and self.asks_teacher()

    def shares_work(self) -> bool:
        return self.cache is not None

    def asks_teacher(self) -> bool:
        """Whether an objective compares the student with a teacher, which rows without labels need."""
        return any(build("compress.objectives", row).teacher_needs is not None for row in self.objectives)

    def needs(self) -> frozenset[str]:
        return self.reads | {"corpus" if self.level == "general" else "data"}

    def reads_vocabulary(self) -> bool:
        """Whether an objective reads vocabulary logits, which models without a masked-LM head do not have."""
        return any(build("compress.objectives", row).student_needs.mlm is not None for row in self.objectives)

    def get_masking(self) -> MaskingSpec:
        return self.masking or MaskingSpec()

    @field_validator("objectives")
    @classmethod
    def _weights(cls, rows: tuple[Any, ...]) -> tuple[Any, ...]:
        if not any(row.weight > 0 for row in rows):
            raise ValueError("every objective has weight 0; set a weight above 0 for at least one")
        return rows

    @field_validator("layer_map", mode="before")
    @classmethod
    def _layer_map(cls, value: Any) -> Any:
        """Checked by hand, since a union of types would give an error for each of them."""
        if isinstance(value, str):
            if value in layer_maps.NAMES:
                return value
            near = nearest(value, layer_maps.NAMES)
            known = f"found {describe(value)}, allowed: {', '.join(layer_maps.NAMES)}, or a list"
            raise ValueError(f"{known}; did you mean '{near}'?" if near else known)
        if not isinstance(value, list | tuple):
            raise ValueError(f"found {describe(value)}, allowed: {', '.join(layer_maps.NAMES)}, or a list")
        numbers = [_is_layer(item) for item in value]
        pairs = [isinstance(item, list | tuple) and len(item) == 2 and all(map(_is_layer, item)) for item in value]
        if not value or not (all(numbers) or all(pairs)):
            raise ValueError(
                "allowed in the list: teacher layers, or pairs [student layer, teacher layer], counted from 0"
            )
        return tuple(tuple(item) if isinstance(item, list | tuple) else item for item in value)

    def vector_objective(self) -> str | None:
        kinds = (row.kind for row in self.objectives)
        return next((kind for kind in kinds if getattr(load("compress.objectives", kind), "of_vectors", False)), None)

    @model_validator(mode="after")
    def _level(self) -> Spec:
        corpus = self.level == "general"
        wrong = [name for name in ("control", "use_unlabelled") if corpus and getattr(self, name)]
        wrong += [name for name in ("augmentation", "row_filter") if corpus and getattr(self, name) is not None]
        wrong += ["stop"] if corpus and self.stop != "validation" else []
        wrong += ["masking"] if not corpus and self.masking is not None else []
        if wrong:
            raise ValueError(
                f"{wrong[0]} requires level: {'task_specific' if corpus else 'general'}, found {self.level}"
            )
        self.get_masking().check_noise(self.noise)
        if self.cache is not None:
            self._cacheable(self.cache)
        return self

    def _cacheable(self, cache: CacheSpec) -> None:
        """Raise ValueError for input that changes with each epoch, and for an option that nothing reads."""
        if self.noise is not None:
            raise ValueError(
                "typo noise changes the text every epoch, so teacher outputs cannot be cached; remove noise or cache"
            )
        strategy = self.get_masking().strategy
        if self.level == "general" and strategy != "static":
            raise ValueError(
                f"{strategy} masking masks other tokens in each epoch, so teacher outputs cannot be cached; set "
                "masking.strategy to static, or cache only in a stage with level: task_specific"
            )
        if cache.top_k is not None and not any(getattr(row, "on", "") == "vocabulary" for row in self.objectives):
            raise ValueError("cache.top_k has no effect: no objective reads vocabulary logits; remove it")


def _is_layer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
