"""What a recipe may say about training a tokenizer."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from compress.contracts import StageSpec
from compress.contracts.traits import TOKENIZER


class Spec(StageSpec):
    """A tokenizer trained on the corpus."""

    reads: ClassVar[frozenset[str]] = frozenset({"corpus"})
    makes: ClassVar[Literal["model", "tokenizer"]] = TOKENIZER
    compresses: ClassVar[bool] = False
    for_task: ClassVar[bool] = False

    kind: Literal["tokenizer"]
    model: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """wordpiece: as BERT's."""
    vocabulary_size: int = Field(default=8000, ge=100, le=1_000_000)
    """Most pieces, special tokens included; a small corpus may give fewer."""
    lowercase: bool = True
    """Take off case and accents."""
    tokenize_chinese_chars: bool = True
    """Of wordpiece: every Chinese character is a piece of its own, as in BERT's Chinese models."""
    min_frequency: int = Field(default=2, ge=1)
    """Pieces seen less often are not learned."""

    @model_validator(mode="after")
    def _wordpiece(self) -> Spec:
        if not self.tokenize_chinese_chars and self.model != "wordpiece":
            raise ValueError(f"tokenize_chinese_chars is of wordpiece, this is {self.model}; leave it out")
        return self
