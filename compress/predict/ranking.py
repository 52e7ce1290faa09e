"""The documents of a search, sorted by a reranker or an embedding model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from compress.data.tasks import embedding, reranking
from compress.errors import UserError
from compress.predict.predictor import Predictor


@dataclass(frozen=True)
class RankedDocument:
    """index: place of the document among those that were given.  score: of a reranker as its configuration gives
    it, of an embedding model the similarity."""

    index: int
    score: float
    document: str

    def line(self) -> str:
        """For people."""
        return reranking.Answer(self.score).line(self.document)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {"index": self.index, "score": self.score, "document": self.document}


def check_ranks(predictor: Predictor) -> None:
    """Raises UserError for a model that does not compare a document with a query."""
    if predictor.task.kind not in (reranking.Task.kind, embedding.Task.kind):
        raise UserError(
            "only rerankers and embedding models rank documents", where=str(predictor.folder),
            why=f"the task of the model is {predictor.task.kind}",
        )  # fmt: skip


def rank_documents(
    predictor: Predictor,
    query: str,
    documents: Sequence[str],
    *,
    top: int | None = None,
    max_length: int | None = None,
    told: Callable[[int], None] = lambda _: None,
) -> list[RankedDocument]:
    """The `top` documents for the query, or all, best first; of equal scores, the earlier one. By the scores of a
    reranker, or by the similarity of an embedding model's vectors. told: of how many are done. Raises UserError for
    another model, and where `top` is below 1."""
    check_ranks(predictor)
    if top is not None and top < 1:
        raise UserError("at least one document is ranked", where=f"top {top}", do="give 1 or more, or None for all")
    count, task = len(documents), predictor.task
    if not count:
        return []
    if isinstance(task, embedding.Task):
        tokenizer, length = predictor.tokenizer_for(count), predictor.limit_length(max_length)
        examples = task.encode_search(tokenizer, query, documents, max_length=length)
        vectors = predictor.logits(examples, told=lambda done: told(min(done, count)))
        found, scores = task.search(vectors[:1], vectors[1:], top or count)
        order, values = found[0].tolist(), scores[0].tolist()
    else:
        answers = predictor.predict([query] * count, documents, max_length=max_length, told=told)
        order = sorted(range(count), key=lambda i: -answers[i].score)[:top]
        values = [answers[i].score for i in order]
    return [RankedDocument(i, value, documents[i]) for i, value in zip(order, values, strict=True)]
