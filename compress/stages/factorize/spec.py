"""Recipe keys of stage factorize."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from compress.contracts import StageSpec
from compress.contracts.traits import (
    Form,
    Rejection,
    rejects_dropped_tokens,
    rejects_low_rank,
    rejects_partly_shared,
    rejects_quantized,
    rejects_sparse,
    rejects_static,
)
from compress.registry import RowOf

TARGETS = ("ratio", "rank", "max_mb")


class Spec(StageSpec):
    """Replace weight matrices of the layers by low-rank factors, in the model of the stage before, or in the teacher
    in the first stage."""

    reads: ClassVar[frozenset[str]] = frozenset({"teacher"})
    timed: ClassVar[bool] = True
    timed_by: ClassVar[tuple[str, ...]] = ("only_faster",)
    forms: ClassVar[tuple[Form, ...]] = ("low_rank",)
    rejected: ClassVar[tuple[Rejection, ...]] = (
        rejects_static("factorize"),
        rejects_dropped_tokens("factorizing its matrices"),
        rejects_quantized("factorizing it"),
        rejects_sparse("factorizing it", "use only one of the two"),
        rejects_low_rank("factorizing it"),
        rejects_partly_shared(
            "which low-rank factors do not support",
            "factorize alone, or share whole layers (share_norms_and_biases: true, residual_rank: 0)",
        ),
    )
    milestone: ClassVar[str | None] = "after factorizing"
    embeds: ClassVar[bool] = True

    kind: Literal["factorize"]
    level: Literal["general", "task_specific"] = "task_specific"
    """The model this stage starts from when it is the first one, and the text it reads. general: the general teacher
    and the corpus.  task_specific: the teacher and the labelled rows."""
    method: Annotated[Any, RowOf("compress.stages.factorize.methods")] = Field(
        default={"kind": "whitened"}, validate_default=True
    )
    """Factorization method: a file of compress/stages/factorize/methods."""
    ratio: float | None = Field(default=None, gt=0, lt=1)
    """Fraction of the parameters in the layers' matrices to keep."""
    rank: int | None = Field(default=None, ge=1, le=65_536)
    """Rank of every matrix."""
    max_mb: float | None = Field(default=None, gt=0)
    """Maximum size of the whole model in MB (10^6 bytes) of fp32."""
    allocation: Literal["sensitivity", "error", "uniform"] = "sensitivity"
    """How `ratio` or `max_mb` is distributed over the matrices. sensitivity: minimize the summed effect of the errors
    on the outputs, measured for each matrix alone.  error: minimize the summed relative errors.  uniform: every matrix
    keeps the same fraction."""
    only_faster: bool = False
    """Keep a matrix unfactorized if its low-rank factors are not faster on this device (measured); the model is larger
    then."""

    @model_validator(mode="after")
    def _one_target(self) -> Spec:
        given = [name for name in TARGETS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"set exactly one of {', '.join(TARGETS)}; found {' and '.join(given) or 'none'}")
        return self

    def needs(self) -> frozenset[str]:
        return self.reads | {"corpus" if self.level == "general" else "data"}
