"""What a recipe may say about sharing the layers of a trained encoder and factorizing its embeddings."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from compress.contracts import Frozen, StageSpec
from compress.contracts.traits import Form, Rejection, rejects_low_rank, rejects_quantized, rejects_sparse
from compress.registry import RowOf

SIZES = ("size", "error", "megabytes")


class EmbeddingSpec(Frozen):
    """The embedding tables as a product V x E, E x D of two smaller ones. Say once how large E is."""

    size: int | None = Field(default=None, ge=1, le=65_536)
    """E, below the hidden size D."""
    error: float | None = Field(default=None, gt=0, lt=1)
    """The smallest E whose relative squared error, weighted as `weighting` says, is at most this."""
    megabytes: float | None = Field(default=None, gt=0)
    """The largest E whose tables and projection take at most so many 10^6 bytes in fp32."""
    weighting: Literal["frequency", "none"] = "frequency"
    """frequency: a row counts as often as the training text uses it, plus once.  none: every row alike."""

    @model_validator(mode="after")
    def _one_size(self) -> EmbeddingSpec:
        given = [name for name in SIZES if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(SIZES)}; found {' and '.join(given) or 'none'}")
        return self


class Spec(StageSpec):
    """Share layers of the model before this stage, or of the teacher when it is the first, and factorize its tables."""

    reads: ClassVar[frozenset[str]] = frozenset({"teacher"})
    task_recipe: ClassVar[str | None] = "share"
    rejected: ClassVar[tuple[Rejection, ...]] = (rejects_quantized("sharing its layers"),)
    milestone: ClassVar[str | None] = "after conversion"

    kind: Literal["share"]
    level: Literal["corpus", "task"] = "task"
    """Whose layers, where no stage is before this one, and which text it reads: corpus: the general teacher and the
    corpus.  task: the teacher and the labelled rows."""
    pattern: Annotated[Any, RowOf("compress.stages.share.patterns")]
    """Which layers share: a file of compress/stages/share/patterns."""
    start: Annotated[Any, RowOf("compress.stages.share.starts")] = Field(
        default={"kind": "mean"}, validate_default=True
    )
    """What the shared weights start from: a file of compress/stages/share/starts."""
    own_vectors: bool = True
    """Layers keep norms and biases of their own: 0.1 % of the bytes. false: those are shared as well, as in ALBERT."""
    residual_rank: int = Field(default=0, ge=0, le=65_536)
    """Of the residual that each layer adds to each matrix that it shares, from the truncated SVD of the difference;
    with a start that reads inputs, fitted together with what is shared. 0: none."""
    embedding: EmbeddingSpec | None = None
    """null: the tables stay as they are."""
    again: bool = False
    """The model shares layers already: join its groups further, or drop its residuals, taking up what they say."""

    def makes_forms(self) -> tuple[Form, ...]:
        shares = self.pattern.kind != "none"
        found: list[Form] = ["shared"] if shares else []
        if shares and (self.own_vectors or self.residual_rank > 0):
            found.append("partly_shared")
        return (*found, *(() if self.embedding is None else ("factorized_embeddings",)))

    def rejects(self) -> tuple[Rejection, ...]:
        found, doing = list(self.rejected), "sharing its layers"
        if self.pattern.kind != "none":
            found += [rejects_sparse(doing), rejects_low_rank(doing)]
        if self.embedding is not None:
            why = "its embeddings are factorized already"
            found.append(Rejection("factorized_embeddings", why, "leave embedding out"))
        if not self.again:
            why = "its layers share already"
            found.append(Rejection("shared", why, "say again: true, to join its groups further"))
        return tuple(found)

    def reads_vocabulary(self) -> bool:
        """Whether the model must have a masked-LM head."""
        return self.level == "corpus"

    def needs(self) -> frozenset[str]:
        return self.reads | {"corpus" if self.level == "corpus" else "data"}
