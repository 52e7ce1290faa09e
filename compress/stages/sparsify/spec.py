"""Recipe keys of stage sparsify."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from compress.contracts import StageSpec
from compress.contracts.traits import (
    Form,
    Rejection,
    rejects_low_rank,
    rejects_partly_shared,
    rejects_quantized,
    rejects_sparse,
    rejects_static,
)
from compress.registry import RowOf


class Spec(StageSpec):
    """2:4 sparsity: set two of every four weights to zero in the model of the stage before, or in the teacher in the
    first stage. Later training keeps these zeros."""

    reads: ClassVar[frozenset[str]] = frozenset({"teacher"})
    forms: ClassVar[tuple[Form, ...]] = ("sparse",)
    rejected: ClassVar[tuple[Rejection, ...]] = (
        rejects_static("sparsify"),
        rejects_quantized("making it sparse"),
        rejects_sparse("making it sparse"),
        rejects_low_rank("making it sparse", "use only one of the two"),
        rejects_partly_shared(
            "which 2:4 sparsity does not support",
            "sparsify alone, or share whole layers (share_norms_and_biases: true, residual_rank: 0)",
        ),
    )
    milestone: ClassVar[str | None] = "after sparsifying"
    embeds: ClassVar[bool] = True

    kind: Literal["sparsify"]
    level: Literal["general", "task_specific"] = "task_specific"
    """The model this stage starts from when it is the first one, and the text it reads. general: the general teacher
    and the corpus.  task_specific: the teacher and the labelled rows."""
    sparsity: Literal["2:4"] = "2:4"
    """N:M sparsity: of every four neighbouring weights along a matrix's inputs, two stay. GPUs accelerate no other
    pattern."""
    method: Annotated[Any, RowOf("compress.stages.sparsify.methods")] = Field(
        default={"kind": "reconstruct"}, validate_default=True
    )
    """How the weights to remove are chosen, and how the others are updated: a file of
    compress/stages/sparsify/methods."""

    def needs(self) -> frozenset[str]:
        return self.reads | {"corpus" if self.level == "general" else "data"}
