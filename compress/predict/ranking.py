"""The documents of a search, sorted by a reranker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from compress.data.tasks import reranking
from compress.errors import UserError
from compress.predict.predictor import Predictor


@dataclass(frozen=True)
class RankedDocument:
    """index: place of the document among those that were given.  score: as the model's configuration gives it."""

    index: int
    score: float
    document: str

    def line(self) -> str:
        """For people."""
        return reranking.Answer(self.score).line(self.document)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {"index": self.index, "score": self.score, "document": self.document}


def check_reranker(predictor: Predictor) -> None:
    """Raises UserError for a model that does not score a document for a query."""
    kind = predictor.task.kind
    if kind != reranking.Task.kind:
        raise UserError(
            "only rerankers rank documents", where=str(predictor.folder), why=f"the task of the model is {kind}"
        )


def rank_documents(
    predictor: Predictor,
    query: str,
    documents: Sequence[str],
    *,
    top: int | None = None,
    max_length: int | None = None,
    told: Callable[[int], None] = lambda _: None,
) -> list[RankedDocument]:
    """The `top` documents for the query, or all, best first; of equal scores, the earlier one. told: of how many are
    done. Raises UserError for a model that is no reranker."""
    check_reranker(predictor)
    if not documents:
        return []
    answers = predictor.predict([query] * len(documents), documents, max_length=max_length, told=told)
    ranked = [RankedDocument(i, one.score, documents[i]) for i, one in enumerate(answers)]
    return sorted(ranked, key=lambda one: -one.score)[:top]
