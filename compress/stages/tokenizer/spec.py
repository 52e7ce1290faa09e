"""Recipe keys of stage tokenizer."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from compress.contracts import StageSpec
from compress.contracts.traits import TOKENIZER


class Spec(StageSpec):
    """Train a tokenizer on the corpus."""

    reads: ClassVar[frozenset[str]] = frozenset({"corpus"})
    makes: ClassVar[Literal["model", "tokenizer"]] = TOKENIZER
    compresses: ClassVar[bool] = False
    for_task: ClassVar[bool] = False

    kind: Literal["tokenizer"]
    model: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """Tokenizer model. wordpiece: as in BERT."""
    vocabulary_size: int = Field(default=8000, ge=100, le=1_000_000)
    """Maximum vocabulary size in tokens, including special tokens; a small corpus may give fewer."""
    lowercase: bool = True
    """Lowercase the text and strip accents."""
    tokenize_chinese_chars: bool = True
    """WordPiece: make every Chinese character its own token, as in BERT's Chinese models."""
    min_frequency: int = Field(default=2, ge=1)
    """Minimum count of a token in the corpus."""

    @model_validator(mode="after")
    def _wordpiece(self) -> Spec:
        if not self.tokenize_chinese_chars and self.model != "wordpiece":
            raise ValueError(f"tokenize_chinese_chars requires model: wordpiece, found {self.model}; remove it")
        return self
