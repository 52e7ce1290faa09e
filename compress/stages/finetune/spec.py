"""What a recipe may say about fine-tuning on labelled rows."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from compress.contracts import NoiseSpec, StageSpec, TrainingPlan


class Spec(StageSpec):
    """A task head on an encoder, all of it trained."""

    reads: ClassVar[frozenset[str]] = frozenset({"data"})
    compresses: ClassVar[bool] = False

    kind: Literal["finetune"]
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Of hidden states, of attention and of the task head; null: as in the model that it starts from."""
    new_head: bool = False
    """Replace a task head that answers other labels by a new one."""
    noise: NoiseSpec | None = None
    """Typing mistakes in the training texts, anew for each epoch."""
    training: TrainingPlan
