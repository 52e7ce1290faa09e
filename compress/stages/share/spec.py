"""Recipe keys of stage share."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from compress.contracts import Frozen, StageSpec
from compress.contracts.traits import (
    Form,
    Rejection,
    rejects_dropped_tokens,
    rejects_low_rank,
    rejects_quantized,
    rejects_sparse,
    rejects_static,
)
from compress.registry import RowOf

SIZES = ("size", "error", "max_mb")


class EmbeddingSpec(Frozen):
    """Factorize the embedding tables into two matrices, V x E and E x D. Set exactly one of size, error and max_mb."""

    size: int | None = Field(default=None, ge=1, le=65_536)
    """Embedding size E, below the hidden size D."""
    error: float | None = Field(default=None, gt=0, lt=1)
    """Maximum relative squared error, weighted as set in `weighting`; the smallest such E is used."""
    max_mb: float | None = Field(default=None, gt=0)
    """Maximum size of tables and projection in MB (10^6 bytes) of fp32; the largest such E is used."""
    weighting: Literal["frequency", "none"] = "frequency"
    """Weight of each row of the table in the error. frequency: its count in the training text plus one.  none: all rows
    have equal weight."""

    @model_validator(mode="after")
    def _one_size(self) -> EmbeddingSpec:
        given = [name for name in SIZES if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"set exactly one of {', '.join(SIZES)}; found {' and '.join(given) or 'none'}")
        return self


class Spec(StageSpec):
    """Tie layers of the model of the stage before, or of the teacher in the first stage, and factorize its
    embeddings."""

    reads: ClassVar[frozenset[str]] = frozenset({"teacher"})
    task_recipe: ClassVar[str | None] = "share"
    rejected: ClassVar[tuple[Rejection, ...]] = (
        rejects_quantized("sharing its layers"),
        rejects_static("share"),
        rejects_dropped_tokens("sharing layers"),
    )
    milestone: ClassVar[str | None] = "after conversion"
    embeds: ClassVar[bool] = True

    kind: Literal["share"]
    level: Literal["general", "task_specific"] = "task_specific"
    """The model this stage starts from when it is the first one, and the text it reads. general: the general teacher
    and the corpus.  task_specific: the teacher and the labelled rows."""
    pattern: Annotated[Any, RowOf("compress.stages.share.patterns")]
    """Which layers share parameters: a file of compress/stages/share/patterns."""
    init: Annotated[Any, RowOf("compress.stages.share.starts")] = Field(default={"kind": "mean"}, validate_default=True)
    """Initialization of the shared weights: a file of compress/stages/share/starts."""
    share_norms_and_biases: bool = False
    """Also share LayerNorm parameters and biases, as in ALBERT. Default: each layer keeps its own, 0.1 % of
    the bytes."""
    residual_rank: int = Field(default=0, ge=0, le=65_536)
    """Rank of the low-rank residual that each layer adds to each shared matrix, from the truncated SVD of the
    difference; with an `init` that reads inputs, fitted jointly with the shared matrix. 0: no residual."""
    embedding: EmbeddingSpec | None = None
    """Factorization of the embedding tables. Default: the tables do not change."""
    reuse_input: bool = False
    """Accept a model whose layers are already shared: merge its groups further, or fold its residuals into the shared
    weights and drop them."""

    def makes_forms(self) -> tuple[Form, ...]:
        shares = self.pattern.kind != "none"
        found: list[Form] = ["shared"] if shares else []
        if shares and (not self.share_norms_and_biases or self.residual_rank > 0):
            found.append("partly_shared")
        return (*found, *(() if self.embedding is None else ("factorized_embeddings",)))

    def rejects(self) -> tuple[Rejection, ...]:
        found, doing = list(self.rejected), "sharing its layers"
        if self.pattern.kind != "none":
            found += [rejects_sparse(doing), rejects_low_rank(doing)]
        if self.embedding is not None:
            why = "its embeddings are factorized already"
            found.append(Rejection("factorized_embeddings", why, "remove embedding"))
        if not self.reuse_input:
            why = "its layers already share parameters"
            found.append(Rejection("shared", why, "set reuse_input: true to merge its groups further"))
        return tuple(found)

    def reads_vocabulary(self) -> bool:
        """Whether the model must have a masked-LM head."""
        return self.level == "general"

    def needs(self) -> frozenset[str]:
        return self.reads | {"corpus" if self.level == "general" else "data"}
