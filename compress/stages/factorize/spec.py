"""What a recipe may say about low-rank matrices."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from compress.contracts import StageSpec
from compress.registry import RowOf

TARGETS = ("ratio", "rank", "megabytes")


class Spec(StageSpec):
    """Split matrices of the layers of the model before this stage, or of the teacher when it is the first, in two."""

    reads: ClassVar[frozenset[str]] = frozenset({"teacher"})
    milestone: ClassVar[str | None] = "after factorizing"

    kind: Literal["factorize"]
    level: Literal["general", "task_specific"] = "task_specific"
    """The model this stage starts from when it is the first one, and the text it reads. general: the general teacher
    and the corpus.  task_specific: the teacher and the labelled rows."""
    method: Annotated[Any, RowOf("compress.stages.factorize.methods")] = Field(
        default={"kind": "whitened"}, validate_default=True
    )
    """How a matrix is split: a file of compress/stages/factorize/methods."""
    ratio: float | None = Field(default=None, gt=0, lt=1)
    """Of the numbers in the layers' matrices, the share that stays."""
    rank: int | None = Field(default=None, ge=1, le=65_536)
    """The same rank for every matrix."""
    megabytes: float | None = Field(default=None, gt=0)
    """What the whole model may take, in 10^6 bytes of fp32."""
    allocation: Literal["sensitivity", "error", "uniform"] = "sensitivity"
    """Of ratio and megabytes.  sensitivity: ranks by matrix, for the least sum of what their errors do to the answers,
    each measured alone.  error: for the least sum of relative errors.  uniform: every matrix keeps the same share."""
    only_faster: bool = False
    """Leave a matrix whole where its two thin ones are not faster on this device, measured; more numbers stay then."""

    @model_validator(mode="after")
    def _one_target(self) -> Spec:
        given = [name for name in TARGETS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"say once how much stays: {', '.join(TARGETS)}; found {' and '.join(given) or 'none'}")
        return self

    def needs(self) -> frozenset[str]:
        return self.reads | {"corpus" if self.level == "general" else "data"}
