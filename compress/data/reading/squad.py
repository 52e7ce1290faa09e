"""SQuAD's own files: one JSON object that holds articles, their paragraphs, and the questions about each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def rows_of(document: Any) -> list[dict[str, Any]] | None:
    """A row a question, with id, title, context, question and answers; None: the document is something else.

    Version 2 marks questions without an answer as `is_impossible`; their list of answers is empty.
    """
    articles = document.get("data") if isinstance(document, Mapping) else None
    if not isinstance(articles, list) or not articles or not all(_has(article, "paragraphs") for article in articles):
        return None
    rows = []
    for article in articles:
        for paragraph in article["paragraphs"]:
            if not _has(paragraph, "qas"):
                return None
            for asked in paragraph["qas"]:
                answers = [] if asked.get("is_impossible") else asked.get("answers")
                rows.append(
                    {
                        "id": asked.get("id"),
                        "title": article.get("title"),
                        "context": paragraph.get("context"),
                        "question": asked.get("question"),
                        "answers": answers if answers is None else _columns(answers),
                    }
                )
    return rows


def _has(value: Any, key: str) -> bool:
    """Whether `value` is an object with a list of objects under `key`."""
    items = value.get(key) if isinstance(value, Mapping) else None
    return isinstance(items, list) and all(isinstance(item, Mapping) for item in items)


def _columns(answers: Any) -> Any:
    """As the `datasets` library lays them out, which suits an empty list too; anything else is told with its row."""
    if not isinstance(answers, list) or not all(isinstance(answer, Mapping) for answer in answers):
        return answers
    return {name: [answer.get(name) for answer in answers] for name in ("text", "answer_start")}
