"""What a recipe may say about training a tokenizer."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from compress.contracts import StageSpec


class Spec(StageSpec):
    """A tokenizer trained on the corpus."""

    reads: ClassVar[frozenset[str]] = frozenset({"corpus"})

    kind: Literal["tokenizer"]
    model: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """wordpiece: as BERT's."""
    vocabulary_size: int = Field(default=8000, ge=100, le=1_000_000)
    """Most pieces, special tokens included; a small corpus may give fewer."""
    lowercase: bool = True
    """Take off case and accents."""
    min_frequency: int = Field(default=2, ge=1)
    """Pieces seen less often are not learned."""
