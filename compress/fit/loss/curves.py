"""What a model loses with so many heads, or neurons, left in one part of a layer: the least needed ones gone, the
output matrix fitted to what is left by least squares, and the answers compared.

Plans are made so: what second derivatives say is off by another factor for every part, with Fisher information of masks
1 to 40 for the parts of a MiniLM on SST-2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from compress.contracts import Batch, EncoderOutput, Needs, WidthScores
from compress.encoder.infer.prepare import PreparedModel
from compress.encoder.infer.statistics import ridge
from compress.encoder.modules.layers import LayerTrace
from compress.encoder.modules.layout import PackedLayout
from compress.encoder.reshape.cut import OUTPUTS, units
from compress.modelfolder.folder import LoadedModel
from compress.stages.prune_width.obs import Factors, Moments
from compress.stages.prune_width.search import curves_of
from compress.stages.prune_width.selection import find_highest

LEVELS = (0.25, 0.5, 0.75)
"""Shares of a part's heads or neurons at which its loss is measured, and with one alone; between them it follows what
the importance says, scaled by what was measured at both ends."""
NOTHING = 1e-9
ANSWERS = Needs(logits=True)


class ComparedModel(Protocol):
    """A model whose outputs on a few batches are known. ready: the model prepared for inference.  compared: the
    batches.  stop: raises Stopped where a signal asked for it.  apart_of: batch identity → outputs, to the mean KL
    divergence (nats) from the known ones."""

    @property
    def loaded(self) -> LoadedModel: ...
    @property
    def ready(self) -> PreparedModel: ...
    @property
    def compared(self) -> Sequence[Batch]: ...
    @property
    def stop(self) -> Callable[[], None]: ...
    def compute_kl_of_answers(self, answers: Mapping[int, EncoderOutput]) -> float: ...


def curves(student: ComparedModel, scores: WidthScores, given: Mapping[tuple[str, int], Factors]) -> list[np.ndarray]:
    """Of each unit, those of heads first: (n+1,) nats lost with 0..n kept, never more with more.

    given: by part and unit, what the studied rows say of its output matrix.
    Where layers share matrices a unit has no one place in the model, and what `scores` says is taken.
    """
    found = curves_of(scores)
    config = student.loaded.config
    if any(len(unit) > 1 for part in OUTPUTS for unit in units(config, part)):
        return found
    every = dict(zip(OUTPUTS, (scores.heads, scores.neurons), strict=True))
    judged = [_Reading(student.ready, batch) for batch in student.compared]
    for layer in range(config.depth):
        with torch.inference_mode():
            for place, part in enumerate(OUTPUTS):
                unit = place * config.depth + layer
                needed = every[part][layer]
                losses = {}
                for count in _levels(len(needed)):
                    student.stop()
                    with _fitted(student, layer, part, given[part, layer].moments, find_highest(needed, count)):
                        losses[count] = student.compute_kl_of_answers({id(r.batch): r.answers(layer) for r in judged})
                found[unit] = through(found[unit], losses)
            for reading in judged:
                reading.step(layer)
    return found


def through(curve: np.ndarray, losses: dict[int, float]) -> np.ndarray:
    """(n+1,) a curve that falls to 0, scaled so that it goes through what was measured at some counts."""
    curve = curve + NOTHING * np.linspace(1, 0, len(curve))  # above 0 wherever something goes
    counts = sorted(losses)
    ratios = [losses[count] / curve[count] for count in counts]
    made = curve * np.interp(np.arange(len(curve)), counts, ratios)
    return np.maximum.accumulate(made[::-1])[::-1].copy()


def _levels(most: int) -> list[int]:
    return sorted({1, *(max(1, round(share * most)) for share in LEVELS)} - {most})


class _Reading:
    """A batch on its way through a model. x: (T, D) what the next layer reads."""

    def __init__(self, ready: PreparedModel, batch: Batch) -> None:
        self.model, self.batch = ready.model, batch
        self.layout = PackedLayout.of(batch)
        with torch.inference_mode():
            self.turns = self.model.encoder.turns(batch.position_ids)
            self.x = self.model.encoder.embed(batch.input_ids, batch.position_ids, batch.segment_ids)

    def step(self, layer: int) -> None:
        """Through one layer."""
        self.x = self._after(self.x, layer)

    def answers(self, layer: int) -> EncoderOutput:
        """Through this layer and all that follow, without going on itself."""
        encoder, x = self.model.encoder, self.x
        for one in range(layer, self.model.config.depth):
            x = self._after(x, one)
        x = x if encoder.final_norm is None else encoder.final_norm(x)
        return self.model.apply_heads(EncoderOutput(last_hidden=x), self.layout, ANSWERS, self.batch.mlm_positions)

    def _after(self, x: Tensor, layer: int) -> Tensor:
        config = self.model.config
        module: Any = self.model.encoder.layers[config.groups[layer]]
        return module(x, self.layout, LayerTrace(False, False), config.patterns[layer], self.turns[layer])


@contextmanager
def _fitted(student: ComparedModel, layer: int, part: str, moments: Moments, kept: Sequence[int]) -> Iterator[None]:
    """The layer's output matrix reads these heads or neurons alone, fitted to what it gave from all of them."""
    place, name = student.loaded.config.groups[layer], OUTPUTS[part]
    owner: Any = getattr(student.ready.model.encoder.layers[place], part)
    plain: Any = getattr(getattr(student.loaded.model.encoder.layers[place], part), name)
    whole = getattr(owner, name)
    width = student.loaded.config.layers[layer].head_width if part == "attention" else 1
    columns = (torch.tensor(kept)[:, None] * width + torch.arange(width)).flatten()
    setattr(owner, name, _refitted(plain, columns, moments))
    try:
        yield
    finally:
        setattr(owner, name, whole)


def _refitted(plain: Any, columns: Tensor, moments: Moments) -> nn.Linear:
    """A matrix of the same shape that reads some columns and is 0 elsewhere."""
    weight = plain.weight.detach().double().cpu()
    second, at = moments.second, columns
    if plain.bias is None:
        second = second[:-1, :-1]
    else:
        weight = torch.cat([weight, plain.bias.detach().double().cpu()[:, None]], 1)
        at = torch.cat([columns, torch.tensor([len(second) - 1])])
    found = ridge(second[at][:, at], weight @ second[:, at], weight[:, at], moments.tokens)
    made = nn.Linear(plain.in_features, plain.out_features, plain.bias is not None, device="cpu")
    with torch.no_grad():
        made.weight.zero_()
        made.weight[:, columns] = found[:, : len(columns)].float()
        if plain.bias is not None:
            made.bias.copy_(found[:, -1])
    return made.to(plain.weight.device).requires_grad_(False)
