"""Shared by learned importances: trains weights and gates together on a copy of the model."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor

from compress.contracts import Batch, Teacher, WidthScores, WidthStudy
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.gates import Widths, apply_gates, apply_stream_gates
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import OUTPUTS, inner_axis, unit_modules
from compress.objectives.hard_labels import Objective as HardLabels
from compress.stages.prune_width.study import ANSWERS, Target
from compress.stages.shared.divergence import make_distance, task_answers

On = Literal["labels", "teacher", "both"]
"""What is learned from: the labels; the answers of the model as it was (or of the one that teaches it), at temperature
2; the sum of both."""
CLIP = 1.0
"""Norm that the weights' gradients are clipped to."""


class GateLearning:
    """A copy of the studied model, trained by AdamW without dropout while its parts go through gates.

    stream: gates on the channels of the hidden states, (D,); else on all heads and neurons, unit after unit.  The loss
    is a mean over rows. Everything is a function of the study's text and seed.
    """

    def __init__(self, study: WidthStudy, on: On, learning_rate: float, *, stream: bool) -> None:
        self.study, self.on, self.stream = study, on, stream
        self.model: Model = copy.deepcopy(study.model).requires_grad_(True).eval()
        self.teacher: Teacher = study.teacher or prepare(study.model)
        every = Widths.ones(study.model.config)
        self.heads = len(every.heads)
        self.sizes = [study.model.config.hidden] if stream else [len(x) for x in every.all]
        self.shares, self.groups = self._wanted(study.target())
        self._rule = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, weight_decay=0.0)
        self._rate = learning_rate
        self._hard, self._soft = HardLabels(), make_distance(task_answers(study.model), temperature=2.0)

    def _wanted(self, target: Target) -> tuple[list[float], list[list[int]]]:
        """Of each gated unit what is to be left; and units that are ranked together: those of a kind where layers may
        be uneven, else each alone."""
        if self.stream:
            return [target.hidden], [[0]]
        every = len(self.sizes)
        shares = [target.heads] * self.heads + [target.neurons] * (every - self.heads)
        if target.uneven:
            return shares, [list(range(self.heads)), list(range(self.heads, every))]
        return shares, [[unit] for unit in range(every)]

    def scores(self, found: Sequence[Tensor]) -> WidthScores:
        """Of each gated unit, as an importance tells them."""
        told = [x.detach().double().cpu() for x in found]
        return WidthScores(told[: self.heads], told[self.heads :])

    def train(
        self, steps: int, gates: Callable[[int], Sequence[Tensor]], after: Callable[[int, Tensor], Tensor]
    ) -> None:
        """gates: of a step, of each unit.  after: given the step and the loss through them, the loss that is to fall;
        it may read or step what makes the gates, whose gradients are there when the next gates are asked for."""
        for step, batch in enumerate(itertools.islice(self.study.steps(), steps)):
            self.study.stop()
            self.study.told(step, steps)
            terms = self._hard.count(batch) if self.on == "labels" else self._soft.count(batch)
            if not terms:
                continue
            with torch.enable_grad(), self._through(gates(step)):
                loss = after(step, self._loss(batch))
            self._rule.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            for group in self._rule.param_groups:  # falls in a line; the first tenth rises
                group["lr"] = self._rate * min(10 * (step + 1), steps, 1.1 * (steps - step)) / steps
            self._rule.step()

    def _through(self, gates: Sequence[Tensor]) -> AbstractContextManager[None]:
        if self.stream:
            return apply_stream_gates(self.model, gates[0])
        return apply_gates(self.model, Widths(list(gates[: self.heads]), list(gates[self.heads :])))

    def _loss(self, batch: Batch) -> Tensor:
        output = self.model(batch, ANSWERS)
        parts = []
        if self.on != "teacher" and self._hard.count(batch):
            parts.append(self._hard(output, None, batch))
        if self.on != "labels":
            with torch.no_grad():
                theirs = self.teacher(batch, ANSWERS)
            parts.append(self._soft(output, theirs, batch))
        return torch.stack(parts).sum()

    def fold(self, gates: Sequence[Tensor]) -> None:
        """Multiply gates of heads and neurons into the matrices that read them: the model answers as through them."""
        at, done = 0, set[int]()
        with torch.no_grad():
            for part, last in OUTPUTS.items():
                modules = unit_modules(self.model, part)
                for unit, module in modules:
                    gate = gates[at + unit].detach()
                    linear = getattr(module, last)
                    wide = gate.repeat_interleave(linear.in_features // len(gate))
                    for name in ("weight", "residual_down"):
                        tensor = getattr(linear, name, None)
                        if tensor is not None and inner_axis((part, last), name) == 1 and id(tensor) not in done:
                            done.add(id(tensor))
                            tensor.mul_(wide)
                at += 1 + max(unit for unit, _ in modules)
