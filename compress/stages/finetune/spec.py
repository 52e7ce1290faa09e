"""Recipe keys of stage finetune."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from compress.contracts import NoiseSpec, StageSpec, TrainingPlan
from compress.contracts.traits import Rejection, rejects_low_rank, rejects_quantized, rejects_sparse, rejects_static
from compress.registry import RowOf

ALL = {"kind": "all"}


class Spec(StageSpec):
    """Fine-tune an encoder with a task head."""

    reads: ClassVar[frozenset[str]] = frozenset({"data"})
    compresses: ClassVar[bool] = False

    kind: Literal["finetune"]
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout of hidden states, attention and task head. Default: as in the initial model."""
    new_head: bool = False
    """Replace a task head with different labels by a new one."""
    tune: Annotated[Any, RowOf("compress.stages.finetune.tunings")] = Field(default=ALL, validate_default=True)
    """Which parameters are trained: a file of compress/stages/finetune/tunings."""
    noise: NoiseSpec | None = None
    """Typo noise in the training texts, different in every epoch."""
    training: TrainingPlan

    def keeps_labels(self) -> bool:
        return not self.new_head

    def rejects(self) -> tuple[Rejection, ...]:
        static = rejects_static("fine-tune for a task")
        if self.tune.kind != "lora":
            return (static,)
        return (
            static,
            rejects_quantized("LoRA"),
            rejects_sparse("LoRA", "fine-tune with LoRA first"),
            rejects_low_rank("LoRA", "fine-tune with LoRA first"),
        )

    @model_serializer(mode="wrap")
    def _without_unset_tuning(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The key is newer than many a recipe: hashes of those without it stay as they were."""
        return {key: value for key, value in handler(self).items() if key != "tune" or value != ALL}
