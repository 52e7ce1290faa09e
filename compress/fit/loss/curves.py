"""What a model loses with so many heads, or neurons, left in one part of a layer: the least needed ones gone, the
output matrix fitted to what is left by least squares, and the answers compared.

Plans are made so: what second derivatives say is off by another factor for every part, with Fisher information of masks
1 to 40 for the parts of a MiniLM on SST-2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from compress.contracts import Batch, EncoderOutput, WidthScores
from compress.encoder.infer.layer_walk import without_output
from compress.encoder.infer.prepare import PreparedModel
from compress.encoder.infer.statistics import ridge
from compress.encoder.reshape.cut import OUTPUTS, units
from compress.encoder.reshape.students import part_of_layer
from compress.fit.loss.reading import Reading
from compress.modelfolder.folder import LoadedModel
from compress.stages.prune_width.obs import Factors, Moments
from compress.stages.prune_width.search import curves_of
from compress.stages.prune_width.selection import find_highest

LEVELS = (0.25, 0.5, 0.75)
"""Shares of a part's heads or neurons at which its loss is measured, and with one alone; between them it follows what
the importance says, scaled by what was measured at both ends."""
NOTHING = 1e-9


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
    judged = [Reading(student.ready.model, batch) for batch in student.compared]
    for layer in range(config.depth):
        for place, part in enumerate(OUTPUTS):
            unit = place * config.depth + layer
            losses = _measure(student, judged, layer, part, every[part][layer], given[part, layer].moments)
            found[unit] = through(found[unit], losses)
        for reading in judged:
            reading.step()
    return found


@torch.inference_mode()
def _measure(
    student: ComparedModel, judged: Sequence[Reading], layer: int, part: str, needed: Tensor, moments: Moments
) -> dict[int, float]:
    """How many heads or neurons are left → nats that are lost. needed: (n,) their scores."""
    plain = part_of_layer(student.loaded.model, layer, (part, OUTPUTS[part]))
    width = student.loaded.config.layers[layer].head_width if part == "attention" else 1
    made = {}
    for count in _levels(len(needed)):
        student.stop()
        kept = torch.tensor(find_highest(needed, count))
        made[count] = _refitted(plain, (kept[:, None] * width + torch.arange(width)).flatten(), moments)
    answers: dict[int, dict[int, EncoderOutput]] = {count: {} for count in made}
    for reading in judged:
        student.stop()
        seen = _read(reading, part)  # once for all matrices
        for count, matrix in made.items():
            answers[count][id(reading.batch)] = reading.answer(part, matrix(seen))
    return {count: student.compute_kl_of_answers(outputs) for count, outputs in answers.items()}


def through(curve: np.ndarray, losses: dict[int, float]) -> np.ndarray:
    """(n+1,) a curve that falls to 0, scaled so that it goes through what was measured at some counts."""
    curve = curve + NOTHING * np.linspace(1, 0, len(curve))  # above 0 wherever something goes
    counts = sorted(losses)
    ratios = [losses[count] / curve[count] for count in counts]
    made = curve * np.interp(np.arange(len(curve)), counts, ratios)
    return np.maximum.accumulate(made[::-1])[::-1].copy()


def _levels(most: int) -> list[int]:
    return sorted({1, *(max(1, round(share * most)) for share in LEVELS)} - {most})


def _read(reading: Reading, part: str) -> Tensor:
    """(T, n) what the output matrix of a part of the next layer reads."""
    if part == "attention":
        with without_output(reading.layer, part):
            return reading.attend()
    middle = reading.middle
    with without_output(reading.layer, part):
        return reading.layer.feed(middle)


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
