"""What a recipe may say about sharing the layers of a trained encoder and factorizing its embeddings."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from compress.contracts import Frozen, StageSpec
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
    milestone: ClassVar[str | None] = "after conversion"

    kind: Literal["share"]
    level: Literal["general", "task_specific"] = "task_specific"
    """The model this stage starts from when it is the first one, and the text it reads. general: the general teacher
    and the corpus.  task_specific: the teacher and the labelled rows."""
    pattern: Annotated[Any, RowOf("compress.stages.share.patterns")]
    """Which layers share: a file of compress/stages/share/patterns."""
    start: Annotated[Any, RowOf("compress.stages.share.starts")] = Field(
        default={"kind": "mean"}, validate_default=True
    )
    """What the shared weights start from: a file of compress/stages/share/starts."""
    share_norms_and_biases: bool = False
    """Also share LayerNorm parameters and biases, as in ALBERT. Default: each layer keeps its own, 0.1 % of
    the bytes."""
    residual_rank: int = Field(default=0, ge=0, le=65_536)
    """Of the residual that each layer adds to each matrix that it shares, from the truncated SVD of the difference;
    with a start that reads inputs, fitted together with what is shared. 0: none."""
    embedding: EmbeddingSpec | None = None
    """null: the tables stay as they are."""
    again: bool = False
    """The model shares layers already: join its groups further, or drop its residuals, taking up what they say."""

    def reads_vocabulary(self) -> bool:
        """Whether the model must have a masked-LM head."""
        return self.level == "general"

    def needs(self) -> frozenset[str]:
        return self.reads | {"corpus" if self.level == "general" else "data"}
