"""How much more relevant the teacher finds one document of a query than another."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.objectives._common import Base, field, get_required, make_zero_loss, same_shape, teacher_of, widen
from compress.objectives._queries import number_on_host, number_queries, sum_by_query

_KIND = "margin_mse"


class Objective(Base):
    """Squared difference between the student's and the teacher's margins, the differences of two documents' logits, for
    documents of the same query (margin-MSE, Hofstätter et al., arXiv 2010.02666).

    pairs: "labelled" compares each relevant document with each that is not, as published; "all" every two documents,
        which needs no labels.
    Mean over pairs of documents; those of a query are in one micro-batch.
    """

    coupled = True
    by_query = True
    softens = False

    def __init__(self, *, pairs: Literal["labelled", "all"] = "labelled") -> None:
        super().__init__()
        self.pairs: Literal["labelled", "all"] = pairs
        self.student_needs = Needs(logits=True)
        self.teacher_needs: Needs | None = Needs(logits=True)

    def count(self, batch: Batch) -> int:
        numbers, counts = number_on_host(batch, _KIND)
        if self.pairs == "all":
            return int((counts * (counts - 1)).sum()) // 2
        relevant = np.bincount(numbers[self._is_relevant(batch)], minlength=len(counts))
        return int((relevant * (counts - relevant)).sum())

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """logits (B, 1) of both → scalar."""
        theirs = widen(field(teacher_of(teacher, _KIND), "logits", _KIND, "teacher"))
        ours = widen(field(student, "logits", _KIND))
        same_shape(ours, theirs, "outputs", _KIND)
        terms = self.count(batch.on_host)
        if not terms:
            return make_zero_loss(ours)
        numbers, counts = number_queries(batch, _KIND)
        apart = (ours - theirs)[:, 0]
        # A difference of margins is a difference of `apart`: sums and squares give all pairs of a query at once.
        if self.pairs == "all":
            sums, squares = (sum_by_query(x, numbers, len(counts)) for x in (apart, apart.square()))
            return (counts * squares - sums.square()).sum() / terms
        is_relevant = torch.from_numpy(self._is_relevant(batch))
        relevant = is_relevant.to(apart.device, non_blocking=True).to(apart.dtype)
        count, total, square = [], [], []
        for share in (relevant, 1 - relevant):
            count.append(sum_by_query(share, numbers, len(counts)))
            total.append(sum_by_query(share * apart, numbers, len(counts)))
            square.append(sum_by_query(share * apart.square(), numbers, len(counts)))
        return (count[1] * square[0] + count[0] * square[1] - 2 * total[0] * total[1]).sum() / terms

    def _is_relevant(self, batch: Batch) -> np.ndarray:
        """(B,) bool, of documents."""
        get_required(batch.labels, "labels", _KIND)
        labels = batch.on_host.values["labels"]
        return (labels[:, 0] if labels.ndim == 2 else labels) > 0  # false of NaN, where there is no label
