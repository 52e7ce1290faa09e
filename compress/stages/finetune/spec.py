"""Recipe keys of stage finetune."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from compress.contracts import NoiseSpec, StageSpec, TrainingPlan


class Spec(StageSpec):
    """Fine-tune an encoder with a task head; all weights are trained."""

    reads: ClassVar[frozenset[str]] = frozenset({"data"})
    compresses: ClassVar[bool] = False

    kind: Literal["finetune"]
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout of hidden states, attention and task head. Default: as in the initial model."""
    new_head: bool = False
    """Replace a task head with different labels by a new one."""
    noise: NoiseSpec | None = None
    """Typo noise in the training texts, different in every epoch."""
    training: TrainingPlan
