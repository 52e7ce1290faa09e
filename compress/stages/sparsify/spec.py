"""What a recipe may say about 2:4 sparsity."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from compress.contracts import StageSpec
from compress.registry import RowOf


class Spec(StageSpec):
    """Set two of every four weights of the layers to zero, of the model before this stage, or of the teacher when it is
    the first. Every training after it leaves these zeros alone."""

    reads: ClassVar[frozenset[str]] = frozenset({"teacher"})
    milestone: ClassVar[str | None] = "after sparsifying"

    kind: Literal["sparsify"]
    level: Literal["general", "task_specific"] = "task_specific"
    """The model this stage starts from when it is the first one, and the text it reads. general: the general teacher
    and the corpus.  task_specific: the teacher and the labelled rows."""
    pattern: Literal["2:4"] = "2:4"
    """Two of every four neighbours along a matrix's inputs stay: the one pattern that GPUs skip."""
    method: Annotated[Any, RowOf("compress.stages.sparsify.methods")] = Field(
        default={"kind": "reconstruct"}, validate_default=True
    )
    """How the two that go are chosen, and what becomes of the others: a file of compress/stages/sparsify/methods."""

    def needs(self) -> frozenset[str]:
        return self.reads | {"corpus" if self.level == "general" else "data"}
