"""Recipe keys of stage prune_vocab."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from compress.contracts import StageSpec
from compress.contracts.traits import Rejection, rejects_quantized

HOW = ("coverage", "min_count", "size")


class Spec(StageSpec):
    """Prune the vocabulary of the model of the stage before, or of the teacher in the first stage. No training.

    Set exactly one of coverage, min_count and size.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"teacher"})
    timed: ClassVar[bool] = True
    changes_vocabulary: ClassVar[bool] = True
    rejected: ClassVar[tuple[Rejection, ...]] = (rejects_quantized("cutting its vocabulary"),)
    milestone: ClassVar[str | None] = "vocabulary cut"
    embeds: ClassVar[bool] = True

    kind: Literal["prune_vocab"]
    level: Literal["general", "task_specific"] = "task_specific"
    """The model this stage starts from when it is the first one. general: the general teacher, which needs a masked-LM
    head and no labelled data.  task_specific: the teacher."""
    text: Literal["data", "corpus", "both"] = "data"
    """Text in which tokens are counted: the training texts of the labelled data, the corpus, or both."""
    coverage: float | None = Field(default=None, gt=0, le=100)
    """Keep the fewest tokens, most frequent first, that cover this percentage of all tokens of the text."""
    min_count: int | None = Field(default=None, ge=1)
    """Keep the tokens that occur at least this often in the text."""
    size: int | None = Field(default=None, ge=1)
    """Size of the pruned vocabulary; the most frequent tokens stay."""
    characters: Literal["all", "used"] = "all"
    """Single characters that always stay, so that any word can be spelled. all: those of the vocabulary.  used: those
    of the text, and ASCII. Bytes always stay."""

    @model_validator(mode="after")
    def _one_amount(self) -> Spec:
        given = [name for name in HOW if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"set exactly one of {', '.join(HOW)}; found {' and '.join(given) or 'none'}")
        if self.level == "general" and self.text != "corpus":
            raise ValueError("level: general reads no labelled data; set text: corpus")
        return self

    @property
    def amount(self) -> str:
        """How much is kept, for people."""
        if self.coverage is not None:
            return f"coverage {self.coverage:g} %"
        return f"count {self.min_count:,} or more" if self.min_count is not None else f"size {self.size:,}"

    def reads_vocabulary(self) -> bool:
        """Whether the model must have a masked-LM head."""
        return self.level == "general"

    def needs(self) -> frozenset[str]:
        blocks = {"data"} if self.level == "task_specific" else set[str]()
        return self.reads | blocks | ({"corpus"} if self.text != "data" else set())
