"""Two texts, one label: entailment, paraphrase, question and answer."""

from __future__ import annotations

from typing import ClassVar

from compress.data.tasks import classification


class Task(classification.Task):
    """As classification, with a second text in segment 1."""

    kind: ClassVar[str] = "pair-classification"
    text_roles: ClassVar[tuple[str, ...]] = ("text", "text_pair")
