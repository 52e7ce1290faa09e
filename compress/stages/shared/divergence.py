"""What a model answered on a few batches, kept to say how far another model's answers are from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from compress.contracts import Batch, Teacher
from compress.objectives.soft_targets import Objective as SoftTargets
from compress.objectives.vectors import Objective as Vectors


class ReferenceAnswers:
    """Of `model` on `batches`. on: the head that answers, the task's, which may give vectors, or the masked-LM head."""

    def __init__(
        self, model: Teacher, batches: Sequence[Batch], on: Literal["task", "vectors", "vocabulary"] = "task"
    ) -> None:
        self.batches = batches
        self.measure = Vectors() if on == "vectors" else SoftTargets(on=on, temperature=1.0)
        self.needs = self.measure.student_needs
        with torch.inference_mode():
            self.known = [model(batch, self.needs) for batch in batches]

    def divergence(self, model: Teacher) -> float:
        """Mean KL(known ‖ model) of the answers, in nats; of a score the squared difference, of vectors 1 minus the
        cosine."""
        total = count = 0.0
        with torch.inference_mode():
            for batch, known in zip(self.batches, self.known, strict=True):
                terms = self.measure.count(batch)
                total += float(self.measure(model(batch, self.needs), known, batch)) * terms
                count += terms
        return max(0.0, total / max(1.0, count))


def divergence(
    model: Teacher, reference: Teacher, batches: Sequence[Batch], on: Literal["task", "vocabulary"] = "task"
) -> float:
    """Mean KL(reference ‖ model) of the answers, in nats; of a score the squared difference."""
    return ReferenceAnswers(reference, batches, on).divergence(model)
