"""Similarities of the texts of a batch, as the teacher's vectors have them."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.objectives._common import Base, field, make_zero_loss, positive, take_others, teacher_of, widen

_KIND = "vector_similarity"


class Objective(Base):
    """KL divergence, teacher to student, of each text's similarities to the others of the micro-batch.

    Softmax over the cosines of a text's vector with those of all other texts, divided by a temperature (SEED, Fang et
    al., arXiv 2101.04731, within the batch). The widths of the vectors may differ. Mean over texts; a micro-batch of
    one or two texts has no effect.
    temperature: divides the cosines of both; lower values compare the nearest texts only.
    halvings: also the student's first half, quarter, … of its dimensions, so many of them, are compared with all of the
        teacher's; the loss is the mean (Matryoshka, Kusupati et al., arXiv 2205.13147).
    """

    coupled = True
    softens = False  # its temperature divides cosines
    of_vectors: ClassVar[bool] = True
    any_width: ClassVar[bool] = True

    def __init__(
        self,
        *,
        temperature: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] = 0.05,
        halvings: Annotated[int, Field(ge=0, le=10)] = 0,
    ) -> None:
        super().__init__()
        self.halvings = halvings
        self.temperature = positive(temperature, "temperature", _KIND)
        self.student_needs = Needs(logits=True)
        self.teacher_needs: Needs | None = Needs(logits=True)

    def count(self, batch: Batch) -> int:
        return batch.rows

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """logits (B, D) and (B, E), the vectors → scalar."""
        theirs = field(teacher_of(teacher, _KIND), "logits", _KIND, "teacher")
        ours = field(student, "logits", _KIND)
        if batch.rows < 3:
            return make_zero_loss(ours)
        wanted = self._log_shares(widen(theirs))
        found = [
            F.kl_div(self._log_shares(widen(part)), wanted, log_target=True, reduction="sum")
            for part in (ours, *(ours[:, : max(1, ours.shape[1] >> times)] for times in range(1, self.halvings + 1)))
        ]
        return (torch.stack(found).mean() if self.halvings else found[0]) / batch.rows

    def _log_shares(self, vectors: Tensor) -> Tensor:
        """(B, D) → (B, B-1): log-softmax of each text's similarities to the others."""
        units = F.normalize(vectors, dim=1)
        own = torch.arange(len(units), device=units.device)[:, None]
        cosines = take_others(units @ units.T, own)
        return (cosines / self.temperature).log_softmax(1)
