"""How far a model's answers are from another's, on a few batches: of classes, of a score, of hidden pieces, of vectors.

All that stages score by answers is scored here, and by the same distance for each kind of head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs, Teacher
from compress.data.batches.evaluation_batches import copy_to_host
from compress.encoder.modules.model import Model
from compress.objectives._common import Base, field
from compress.objectives.soft_targets import Objective as SoftTargets
from compress.objectives.vectors import Objective as Vectors

On = Literal["task", "vectors", "vocabulary"]
"""Which answers are compared: those of a task head; those of one that gives the vector of a text; hidden pieces."""


def task_answers(model: Model) -> Literal["task", "vectors"]:
    """What the task head of `model` gives."""
    return "vectors" if model.head_configs["task"].kind == "embedding" else "task"


def make_distance(on: On, temperature: float = 1.0) -> SoftTargets | Vectors:
    """The objective that says how far answers are apart. temperature: of classes and pieces; vectors have none."""
    return Vectors() if on == "vectors" else SoftTargets(on=on, temperature=temperature)


class DistanceName(NamedTuple):
    """What a distance of answers is called. name: in tables.  unit: after a number.  key: in names of metrics."""

    name: str
    unit: str
    key: str

    def describe(self, value: float, other: str) -> str:
        """A sentence's part: how far answers are from those of `other`."""
        return f"{self.name} to {other}: {value:.3g}{self.unit and f' {self.unit}'}"


OF_CLASSES = DistanceName("KL divergence", "nats", "kl")
OF_SCORES = DistanceName("squared difference", "", "squared_difference")
OF_VECTORS = DistanceName("1 - cosine", "", "one_minus_cosine")


def name_distance(model: Model) -> DistanceName:
    """Of the answers of the task head of `model`."""
    head = model.head_configs["task"]
    if task_answers(model) == "vectors":
        return OF_VECTORS
    return OF_SCORES if head.labels == 1 and head.problem != "multi_label" else OF_CLASSES


class ReferenceAnswers:
    """Of `model` on `batches`."""

    def __init__(self, model: Teacher, batches: Sequence[Batch], on: On = "task") -> None:
        self.batches = batches
        self.measure = make_distance(on)
        self.needs = self.measure.student_needs
        with torch.inference_mode():
            self.known = [model(batch, self.needs) for batch in batches]

    def divergence(self, model: Teacher) -> float:
        """Mean KL(known ‖ model) of the answers, in nats; of a score the squared difference, of vectors 1 minus the
        cosine."""
        means, counts = [], []
        with torch.inference_mode():
            for batch, known in zip(self.batches, self.known, strict=True):
                counts.append(self.measure.count(batch.on_host))
                means.append(self.measure(model(batch, self.needs), known, batch))
            found = copy_to_host(means)
        total = sum(float(mean) * count for mean, count in zip(found, counts, strict=True))
        return max(0.0, total / max(1.0, sum(counts)))


def divergence(model: Teacher, reference: Teacher, batches: Sequence[Batch], on: On = "task") -> float:
    """The distance of the answers of `model` from those of `reference`: see `ReferenceAnswers.divergence`."""
    return ReferenceAnswers(reference, batches, on).divergence(model)


class DrawnVectors(Base):
    """Half the squared distance of a text's unit vector from a vector drawn around it, of variance 1 in each dimension.

    At the model as it is, the mean square of this loss's slope is the second derivative of 1 minus the cosine to the
    vectors as they are: what drawn labels are for classes (Kunstner et al., arXiv 1905.12558). Mean over texts.
    """

    softens: ClassVar[bool] = False
    of_vectors: ClassVar[bool] = True

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator
        self.student_needs = Needs(logits=True)
        self.teacher_needs: Needs | None = None

    def count(self, batch: Batch) -> int:
        return batch.rows

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """logits (B, D), the vectors → scalar."""
        units = F.normalize(field(student, "logits", "vectors").float(), dim=1)
        noise = torch.randn(units.shape, generator=self.generator).to(units.device)
        return (units - (units.detach() + noise)).square().sum() / 2 / max(1, batch.rows)
