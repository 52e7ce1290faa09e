"""Several teachers as one: each answers with its own head, and the weighted mean of the answers teaches.

The mean is of logits (Ba and Caruana, arXiv 1312.6184; after softmax the geometric mean of the probabilities) or of
probabilities (the arithmetic mean); both are Hinton et al.'s (arXiv 1503.02531). What looks inside a teacher, its
layers and attention, reads one of them, the lead.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compress.contracts import Batch, EncoderOutput, Needs, Teacher
from compress.data.tables.label_order import outputs_in_order
from compress.encoder.config.encoder import HeadConfig
from compress.encoder.modules.model import Model
from compress.encoder.modules.operations import count_operations
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder

Combine = Literal["logits", "probabilities"]
LOGITS_ALONE = Needs(logits=True)


@dataclass(frozen=True)
class Member:
    """One of several teachers. name: what a person calls it.  weight: its share; all members' add up to 1."""

    name: str
    folder: Path
    weight: float


@dataclass(frozen=True)
class Ensemble:
    """Who teaches together. combine: what the mean is of.  lead: place of the member whose labels' order, layers and
    weights count. Members with one vocabulary, one kind of task and the same label names: `check`."""

    members: tuple[Member, ...]
    combine: Combine = "logits"
    lead: int = 0

    @property
    def leader(self) -> Member:
        return self.members[self.lead]

    @property
    def fingerprint(self) -> str:
        """sha256 of all that decides what they answer together."""
        told = [f"ensemble-1 {self.combine} {self.lead}"]
        told += [f"{modelfolder.fingerprint(m.folder)} {m.weight!r}" for m in self.members]
        return hashlib.sha256("\n".join(told).encode()).hexdigest()

    def parents(self) -> dict[str, Path]:
        """Role in a student's lineage → folder."""
        count = len(self.members)
        return {f"teacher {i} of {count}, weight {m.weight:.3g}": m.folder for i, m in enumerate(self.members, 1)}

    def sentence(self) -> str:
        """As people read it."""
        shares = ", ".join(
            f"{m.name} x {m.weight:.3g}" + (" (its layers are compared)" if i == self.lead else "")
            for i, m in enumerate(self.members)
        )
        return f"{len(self.members)} teachers, mean of {self.combine}: {shares}"

    def check(self, max_length: int) -> None:
        """Raise UserError unless all members read the same pieces, up to `max_length` of them, and answer the same
        labels of one kind of task; and when one is another one over again."""
        first = modelfolder.inspect(self.leader.folder)
        seen: dict[str, Member] = {}
        for m in self.members:
            again = seen.setdefault(modelfolder.fingerprint(m.folder), m)
            if again is not m:
                raise UserError(
                    f"teachers {again.name} and {m.name} are the same model",
                    where=_where(m),
                    do="use another teacher, or give this one a larger weight",
                )
            info = modelfolder.inspect(m.folder)
            if "task" not in info.heads:
                raise UserError("the teacher has no task head", where=_where(m), do="fine-tune it first")
            ours, theirs = _kind(info.heads["task"]), _kind(first.heads["task"])
            if ours != theirs:
                raise UserError(
                    "the teachers are for different tasks",
                    where=_where(m),
                    why=f"{' '.join(ours)} and {' '.join(theirs)} of {self.leader.name}",
                    do="remove one of them",
                )
            outputs_in_order(info.label_names, first.label_names, where=_where(m))
            if not modelfolder.same_vocabulary(m.folder, self.leader.folder):
                raise UserError(
                    "the teachers have different tokenizers",
                    where=_where(m),
                    why=f"its vocabulary differs from that of {self.leader.name}",
                    do="distil from one of them, or use teachers with the same tokenizer",
                )
            if info.config.max_positions < max_length:
                raise UserError(
                    f"a maximum length of {max_length} tokens is above the teacher's {info.config.max_positions} "
                    "positions",
                    where=_where(m),
                    do=f"give --max-length {info.config.max_positions} or less",
                )


def normalize_weights(weights: Sequence[float]) -> list[float]:
    """Weights that add up to 1. Raises UserError unless all are numbers above 0."""
    for weight in weights:
        if not (math.isfinite(weight) and weight > 0):
            raise UserError("a teacher's weight must be above 0", where="teachers", why=f"found {weight}")
    return [weight / sum(weights) for weight in weights]


def combine_logits(
    logits: Sequence[Tensor], weights: Sequence[float], combine: Combine, head: HeadConfig, batch: Batch
):
    """Answers of several models to one batch as one: tensors (B, C) or (T, C) of logits → the same shape, fp32.

    logits: in one order of the labels.  weights: add up to 1. Of probabilities: the logits whose softmax (sigmoid,
    where any number of labels applies; over the tokens of a row, of answer spans) is the weighted mean. Scores have no
    probabilities: their mean in both cases.
    """
    wide = [x.float() for x in logits]
    if combine == "logits" or head.problem == "regression":
        return torch.stack([w * x for w, x in zip(weights, wide, strict=True)]).sum(0)
    shares = torch.tensor(weights, dtype=torch.float32, device=wide[0].device).log()

    def mean(log_p: list[Tensor]) -> Tensor:
        return torch.logsumexp(torch.stack(log_p) + shares.view(-1, *[1] * log_p[0].dim()), 0)

    if head.problem in ("multi_label", "ranking"):
        return mean([F.logsigmoid(x) for x in wide]) - mean([F.logsigmoid(-x) for x in wide])
    if head.kind == "question_answering":
        lengths = batch.cu_seqlens.diff().tolist()
        return mean([torch.cat([row.log_softmax(0) for row in x.split(lengths)]) for x in wide])
    return mean([x.log_softmax(1) for x in wide])


class EnsembleTeacher:
    """Prepared teachers, called as one. Is a `Teacher`: logits are those of all together, all else is the lead's.

    others: (prepared member, places of the lead's labels among its outputs), in the ensemble's order without the lead.
    """

    def __init__(
        self, ensemble: Ensemble, head: HeadConfig, lead: Teacher, others: Sequence[tuple[Teacher, list[int]]]
    ) -> None:
        self.ensemble, self.head, self.lead, self.others = ensemble, head, lead, list(others)

    def __call__(self, batch: Batch, needs: Needs) -> EncoderOutput:
        """What the lead gives, with the logits of all where they are asked for."""
        output = self.lead(batch, needs)
        if not needs.logits:
            return output
        assert output.logits is not None
        parts = [_picked(teacher(batch, LOGITS_ALONE).logits, places) for teacher, places in self.others]
        parts.insert(self.ensemble.lead, output.logits)
        weights = [m.weight for m in self.ensemble.members]
        with torch.inference_mode():
            output.logits = combine_logits(parts, weights, self.ensemble.combine, self.head, batch)
        return output

    def count_operations(self, batch: Batch, needs: Needs) -> int | None:
        """Of the products of all that answer; None where they are not known."""
        found = [count_operations(self.lead, batch, needs)]
        found += [count_operations(teacher, batch, LOGITS_ALONE) for teacher, _ in self.others if needs.logits]
        known = [count for count in found if count is not None]
        return sum(known) if len(known) == len(found) else None

    def list_members(self) -> list[Teacher]:
        """Each of the teachers alone, its logits in the order of the lead's labels."""
        return [self.lead, *(_InOrder(teacher, places) for teacher, places in self.others)]


class _InOrder:
    """A teacher whose logits are put in another order."""

    def __init__(self, teacher: Teacher, places: list[int]) -> None:
        self.teacher, self.places = teacher, places

    def __call__(self, batch: Batch, needs: Needs) -> EncoderOutput:
        output = self.teacher(batch, needs)
        output.logits = _picked(output.logits, self.places)
        return output


def _picked(logits: Tensor | None, places: list[int]) -> Tensor:
    assert logits is not None
    return logits if places == list(range(logits.shape[1])) else logits[:, places]


class JointModel(nn.Module):
    """The members side by side, so that what all of them cost is counted like what one does.

    models: in the ensemble's order, the labels of each in an order of its own, `places` those of the lead among them.
    """

    def __init__(self, ensemble: Ensemble, models: Sequence[Model], places: Sequence[list[int]]) -> None:
        super().__init__()
        self.members = nn.ModuleList(models)
        self._ensemble, self._places = ensemble, list(places)
        self.head = models[ensemble.lead].head_configs["task"]

    def embedding_parameter_names(self) -> list[str]:
        """Of all members."""
        models = [m for m in self.members if isinstance(m, Model)]
        return [f"members.{i}.{name}" for i, m in enumerate(models) for name in m.embedding_parameter_names()]

    def forward(self, batch: Batch, needs: Needs) -> EncoderOutput:
        """The lead's output with the logits of all."""
        first, *others = self._in_turn()
        return EnsembleTeacher(self._ensemble, self.head, first, others)(batch, needs)

    def _in_turn(self):
        members = list(zip(self.members, self._places, strict=True))
        lead, _ = members.pop(self._ensemble.lead)
        return [lead, *members]


def members_in_order(ensemble: Ensemble) -> list[list[int]]:
    """For each member the places of the lead's labels among its outputs."""
    wanted = modelfolder.inspect(ensemble.leader.folder).label_names
    return [
        outputs_in_order(modelfolder.inspect(m.folder).label_names, wanted, where=_where(m)) for m in ensemble.members
    ]


def _kind(head: HeadConfig) -> tuple[str, str]:
    return head.kind.replace("_", " "), head.problem.replace("_", " ")


def _where(member: Member) -> str:
    return f"teacher {member.name}"
