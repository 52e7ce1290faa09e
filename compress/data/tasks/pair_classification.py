"""Two texts, one label: entailment, paraphrase, question and answer."""

from __future__ import annotations

from typing import ClassVar

from compress.data.reading.columns import RequestedColumns, has_pair
from compress.data.reading.frame import Frame
from compress.data.task import PAIR_EXAMPLE
from compress.data.tasks import classification


class Task(classification.Task):
    """As classification, with a second text in segment 1."""

    kind: ClassVar[str] = "pair-classification"
    example: ClassVar[str] = PAIR_EXAMPLE
    text_roles: ClassVar[tuple[str, ...]] = ("text", "text_pair")

    def claims(self, frame: Frame, asked: RequestedColumns) -> int:
        """Two texts are named, or columns of usual names come as a pair."""
        return 2 if has_pair(frame, asked) else 0
