"""Recipe keys of data augmentation: copies of the training texts with replaced words."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from compress.contracts import Frozen


class AugmentationSpec(Frozen):
    """Data augmentation: copies of the labelled training texts with some words replaced, labelled by the teacher
    (TinyBERT, arXiv 1909.10351)."""

    method: Literal["auto", "none", "masked-lm", "neighbours", "mix"] = "masked-lm"
    """Source of replacement words. auto: mix if there are at most 5,000 training rows and no text without labels, and
    `epochs` is not set; else none. It adds no copies to questions about a context, rankings and embeddings.  none: no
    copies.  masked-lm: predictions of a masked language model, one masked word at a time; a word of several tokens is
    replaced by its nearest neighbours.  neighbours: the nearest words in a model's embedding table, no masked-LM head
    needed.  mix: no single words, but a span of another training row, no model needed."""
    model: Annotated[str, Field(min_length=1)] | None = None
    """Model whose masked-LM head or embedding table is used. Default: the general teacher; for neighbours, the
    teacher."""
    copies: int = Field(default=5, gt=0, le=100)
    """Maximum number of copies of each text; duplicates are dropped. The paper uses 20."""
    rate: float = Field(default=0.4, gt=0, le=1)
    """Fraction of the words to replace."""
    candidates: int = Field(default=15, gt=0, le=1000)
    """Number of replacement candidates for each word, drawn with equal probability."""
    keep_labels: bool = False
    """Also give each copy the label of its original. false: only the teacher labels copies. Not with mix."""

    @model_validator(mode="after")
    def _labels(self) -> AugmentationSpec:
        named = "keep_labels" if self.keep_labels else "model" if self.model is not None else None
        if named is None or self.method in ("masked-lm", "neighbours"):
            return self
        if self.method == "mix":
            why = "changes what a text says" if self.keep_labels else "needs no model"
            raise ValueError(f"method: mix {why}; remove {named}")
        raise ValueError(f"{named} needs method: masked-lm or neighbours, found {self.method}")
