"""How the teacher distributes relevance over the documents of a query."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.objectives._common import Base, field, make_zero_loss, positive, same_shape, teacher_of, widen
from compress.objectives._queries import number_on_host, number_queries, sum_by_query

_KIND = "listwise_kl"


class Objective(Base):
    """T²·KL divergence, teacher to student, of the softmax over the logits of a query's documents, softened by a
    temperature T (ListNet, Cao et al. 2007, with the teacher's scores as the target, as in Lin et al., arXiv
    2010.11386).

    temperature: T; higher values give more weight to documents that the teacher ranks low.
    Mean over queries with at least two documents, which are in one micro-batch.
    """

    coupled = True
    by_query = True

    def __init__(self, *, temperature: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0) -> None:
        super().__init__()
        self.temperature = positive(temperature, "temperature", _KIND)
        self.student_needs = Needs(logits=True)
        self.teacher_needs: Needs | None = Needs(logits=True)

    def count(self, batch: Batch) -> int:
        return int((number_on_host(batch, _KIND)[1] > 1).sum())

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """logits (B, 1) of both → scalar."""
        theirs = widen(field(teacher_of(teacher, _KIND), "logits", _KIND, "teacher"))
        ours = widen(field(student, "logits", _KIND))
        same_shape(ours, theirs, "outputs", _KIND)
        terms = self.count(batch.on_host)
        if not terms:
            return make_zero_loss(ours)
        numbers, counts = number_queries(batch, _KIND)
        p, q = (_log_shares(x[:, 0] / self.temperature, numbers, len(counts)) for x in (ours, theirs))
        return self.temperature**2 * (q.exp() * (q - p)).sum() / terms


def _log_shares(logits: Tensor, numbers: Tensor, queries: int) -> Tensor:
    """(B,) log-softmax over the rows of each query."""
    most = logits.new_full((queries,), -torch.inf).scatter_reduce(0, numbers, logits.detach(), "amax")
    apart = logits - most[numbers]
    return apart - sum_by_query(apart.exp(), numbers, queries).log()[numbers]
