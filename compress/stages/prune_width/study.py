"""Statistics of a model's heads and neurons on calibration text, computed once and shared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from compress.contracts import Batch, BatchSource, EncoderOutput, Needs, Teacher
from compress.encoder.modules.gates import Widths, apply_gates, apply_stream_gates, freeze_weights
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.objectives.hard_labels import Objective as HardLabels
from compress.stages.prune_width.moments import Moments, collect
from compress.stages.prune_width.obs import Factors, factors
from compress.stages.prune_width.sampled_labels import draw_labels, list_labelled_batches
from compress.stages.shared.divergence import DrawnVectors, make_distance, task_answers

On = Literal["labels", "answers", "teacher"]
"""What a loss is on: the data's labels; answers drawn from the model's own probabilities (of vectors: around them); the
teacher's answers (KL divergence, of vectors 1 minus the cosine)."""
ANSWERS = Needs(logits=True)
DRAWS = 8
"""Of the answers to a text, where they are too many to go through."""
STUDY_TOKENS = 1024
"""Real tokens of a pass with gradients. Of 12 x 768, 4,096 hold 4 GB of activations and 1,024 one, in the same time."""


@dataclass(frozen=True)
class Target:
    """What a cut is to leave, for importances that train towards it: shares of the heads, the neurons and the channels
    of the hidden states. uneven: of all layers together; else of each layer."""

    heads: float = 0.5
    neurons: float = 0.5
    hidden: float = 0.5
    uneven: bool = False


class WidthStudy:
    """What importances may ask of a model and its text.

    batches: encoded text, with labels where there are any.  seed: of what is drawn.  name: of the model, for messages.
    stop: called between passes; raises where a signal asked for it.  teacher: who recovers it, where that is another
    model than this one.  training: the text in steps of a few rows; None: the batches.  target: what is to be left, for
    those that train towards it.

    trained: the model with weights that an importance trained along; None: nothing was trained, `model` is cut.
    told: takes steps done and steps in all from those that train.
    """

    def __init__(
        self,
        model: Model,
        batches: Sequence[Batch],
        *,
        seed: int = 0,
        name: str = "the model",
        stop: Callable[[], None] = lambda: None,
        teacher: Teacher | None = None,
        training: BatchSource | None = None,
        target: Callable[[], Target] = Target,
    ) -> None:
        if not batches:
            raise UserError("no text to score heads and neurons on", where=name, do="give --data")
        self.model, self.batches, self.seed, self.name = model, batches, seed, name
        self.stop, self.teacher, self.target = stop, teacher, target
        self.trained: Model | None = None
        self.told: Callable[[int, int], None] = lambda done, steps: None
        self._training = training
        self.answers = task_answers(model)
        self._hard, self._soft = HardLabels(), make_distance(self.answers)
        self._gradients: dict[On, Widths] = {}
        self._factors: dict[On, Mapping[tuple[str, int], Factors]] = {}
        self._moments: Moments | None = None

    @property
    def labelled(self) -> bool:
        """Whether any row has a label of the kind that the model answers with: no vector is one."""
        return self.answers != "vectors" and any(
            batch.labels is not None and self._hard.count(batch) for batch in self.batches
        )

    @property
    def moments(self) -> Moments:
        """Of what flows through the model; collected on first use."""
        if self._moments is None:
            self._moments = collect(self.model, self.batches, self.stop)
        return self._moments

    def steps(self) -> Iterator[Batch]:
        """Text to train on, without an end."""
        device = self.batches[0].input_ids.device
        for epoch in itertools.count():
            if self._training is None:
                yield from self.batches
                continue
            for index in range(self._training.steps(epoch)):
                yield from (batch.to(device) for batch in self._training.step(epoch, index))

    # --- by the gates of heads and neurons --------------------------------------------------------------------

    def gradients(self, on: On = "labels") -> Widths:
        """(rows, H) and (rows, F) of each unit: derivatives of each row's loss by the gates of heads and neurons."""
        if on not in self._gradients:
            parts = []
            for place, batch in enumerate(self.batches):
                gates = self._gates(batch)
                with apply_gates(self.model, gates, batch):
                    parts.append(self._slopes(gates.all, batch, on, place))
            self._gradients[on] = self._of_units([torch.cat(x) for x in zip(*parts, strict=True)])
        return self._gradients[on]

    def curvatures(self) -> Widths:
        """(H,) and (F,) of each unit: second derivatives of the mean KL divergence from the answers as they are.

        By Gauss and Newton: the mean, over answers as likely as the model has them, of their squared slopes; exact
        where a text has one of a few classes, else over DRAWS draws.
        """
        sums = []
        for place, batch in enumerate(self.batches):
            gates = self._gates(batch)
            with apply_gates(self.model, gates, batch):
                sums.append(self._squares(gates.all, batch, place))
        return self._of_units(self._mean(sums))

    # --- by the inputs of output matrices ---------------------------------------------------------------------

    def factors(self, on: On = "answers") -> Mapping[tuple[str, int], Factors]:
        """By part and unit: the Fisher information of the matrix that heads or neurons enter, in two factors."""
        if on not in self._factors:
            self._factors[on] = factors(
                self.model, self.batches, lambda batch, place: self._loss(batch, on, place), self.stop
            )
        return self._factors[on]

    # --- by the gates of channels of the hidden states --------------------------------------------------------

    def stream_gradients(self, on: On = "labels") -> Tensor:
        """(rows, D): the same by gates of the channels of the hidden states."""
        parts = []
        for place, batch in enumerate(self.batches):
            gate = self._stream_gate(batch)
            with apply_stream_gates(self.model, gate, batch):
                parts.append(self._slopes([gate], batch, on, place)[0])
        return torch.cat(parts)

    def stream_curvatures(self) -> Tensor:
        """(D,): as `curvatures`, of the channels of the hidden states."""
        sums = []
        for place, batch in enumerate(self.batches):
            gate = self._stream_gate(batch)
            with apply_stream_gates(self.model, gate, batch):
                sums.append(self._squares([gate], batch, place))
        return self._mean(sums)[0]

    # --- slopes -----------------------------------------------------------------------------------------------

    def _gates(self, batch: Batch) -> Widths:
        gates = Widths.ones(self.model.config, batch.rows, batch.input_ids.device)
        for gate in gates.all:
            gate.requires_grad_(True)
        return gates

    def _stream_gate(self, batch: Batch) -> Tensor:
        return torch.ones(batch.rows, self.model.config.hidden, device=batch.input_ids.device, requires_grad=True)

    def _of_units(self, tensors: list[Tensor]) -> Widths:
        heads = len(Widths.ones(self.model.config).heads)
        return Widths(tensors[:heads], tensors[heads:])

    def _mean(self, sums: list[list[Tensor]]) -> list[Tensor]:
        rows = sum(batch.rows for batch in self.batches)
        return [torch.stack(x).sum(0) / rows for x in zip(*sums, strict=True)]

    def _slopes(self, gates: list[Tensor], batch: Batch, on: On, place: int) -> list[Tensor]:
        """(rows, n) fp64 of each gate, which must be on."""
        self.stop()
        with freeze_weights(self.model), torch.enable_grad():
            found = torch.autograd.grad(self._loss(batch, on, place), gates)
        return [x.double().cpu() for x in found]

    def _squares(self, gates: list[Tensor], batch: Batch, place: int) -> list[Tensor]:
        """(n,) fp64 sums over rows, of the mean over answers of their squared slopes."""
        self.stop()
        totals = [torch.zeros(gate.shape[1], dtype=torch.float64) for gate in gates]
        with freeze_weights(self.model), torch.enable_grad():
            output = self.model(batch, ANSWERS)
            assert output.logits is not None
            losses = self._drawn_losses(output, batch, place)
            for index, (loss, chance) in enumerate(losses):
                found = torch.autograd.grad(loss, gates, retain_graph=index + 1 < len(losses))
                for total, slope in zip(totals, found, strict=True):
                    total += (slope.square() * chance[:, None]).sum(0).double().cpu()
        return totals

    def _drawn_losses(self, output: EncoderOutput, batch: Batch, place: int) -> list[tuple[Tensor, Tensor]]:
        """Losses on answers as likely as the model has them, each summed over the rows, and how likely each row's are
        (rows,)."""
        assert output.logits is not None
        generator = self._generator(place)
        if self.answers == "vectors":
            drawn = DrawnVectors(generator)
            even = torch.full((batch.rows,), 1 / DRAWS, device=output.logits.device)
            return [(drawn(output, None, batch) * batch.rows, even) for _ in range(DRAWS)]
        answers = list_labelled_batches(batch, output.logits.detach(), generator, DRAWS)
        return [(self._hard(output, None, one) * self._hard.count(one), chance) for one, chance in answers]

    def _generator(self, place: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed * 1_000_003 + place)

    def _loss(self, batch: Batch, on: On, place: int) -> Tensor:
        """Summed over the rows."""
        output = self.model(batch, ANSWERS)
        if on == "teacher":
            return self._divergence(output, batch)
        if on == "answers" and self.answers == "vectors":
            return DrawnVectors(self._generator(place))(output, None, batch) * batch.rows
        if on == "answers":
            assert output.logits is not None
            batch = draw_labels(batch, output.logits.detach(), self._generator(place))
        return self._hard(output, None, batch) * self._hard.count(batch)

    def _divergence(self, output: EncoderOutput, batch: Batch) -> Tensor:
        if self.teacher is None:
            raise UserError(
                "the model is its own teacher",
                where=self.name,
                why="at the start its outputs equal the teacher's, so the divergence has no gradient",
                do="use on: labels here; on: teacher is for the later steps of a schedule",
            )
        return self._soft(output, self.teacher(batch, ANSWERS), batch) * self._soft.count(batch)
