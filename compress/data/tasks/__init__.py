"""What a model can be made to answer: one file is one kind of task, the class in it is `Task`.

A task has:
    kind           the name that data, recipes and model folders use ("pair-classification")
    text_roles     the text columns it reads, of "text" and "text_pair"
    head           what the encoder's head is: ("classification", "single_label")
    main_metric    the metric that decides;  metrics: all of them
    encode(tokenizer, rows, max_length=)               rows of a Table → Examples, with labels
    encode_texts(tokenizer, texts, pairs, max_length=) raw texts → Examples, without
    decode(logits, label_names)                        (N, C) → one answer a row
"""

from __future__ import annotations

from typing import Any

from compress import registry


def kinds() -> list[str]:
    """The kinds of task there are."""
    return [name.replace("_", "-") for name in registry.parts(__name__)]


def task_of(kind: str) -> Any:
    """The task called `kind`. Raises UserError with the nearest kind there is."""
    return registry.load(__name__, kind.replace("-", "_"))()
