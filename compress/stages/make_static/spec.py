"""Recipe keys of stage make_static."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from compress.contracts import StageSpec
from compress.contracts.traits import Form, Rejection


class Spec(StageSpec):
    """A static model from the embedding model of the stage before, or from the teacher in the first stage: one vector
    for each token, no attention (model2vec). A vector of a text is the mean of its tokens' vectors, of length 1."""

    reads: ClassVar[frozenset[str]] = frozenset({"teacher", "data"})
    milestone: ClassVar[str | None] = "after token vectors"
    embeds: ClassVar[bool] = True
    own_pooling: ClassVar[bool] = True
    forms: ClassVar[tuple[Form, ...]] = ("static",)
    rejected: ClassVar[tuple[Rejection, ...]] = (
        Rejection("static", "the model is a static model already", "start from a model with layers"),
    )

    kind: Literal["make_static"]
    dimensions: int | None = Field(default=256, gt=0, le=65_536)
    """Width of the vectors: the leading principal components of the parent's token vectors. Each costs 2 bytes per
    token of the vocabulary. null: the width of the parent's vectors, on the parent's axes."""
    sif: float | None = Field(default=1e-4, gt=0, lt=1)
    """Smooth inverse frequency a: a token's vector is multiplied by a / (a + p), p its share of the tokens in the
    training texts. null: all tokens have equal weight."""

    def turns_vectors(self) -> bool:
        """Unless it keeps the parent's axes."""
        return self.dimensions is not None
