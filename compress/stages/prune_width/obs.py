"""What a matrix loses with some of its inputs gone and the others made to make good for it, input after input: optimal
brain surgery of heads and neurons (Kurtic et al., "ZipLM", arXiv 2302.04089), errors weighed by what they do to the
answers (van der Ouderaa et al., "The LLM Surgeon", arXiv 2312.17244: a Fisher matrix in two Kronecker factors).

Shapes: n inputs of the matrix, D outputs, K inputs in a block (those of a head, or one neuron), B blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from compress.contracts import Batch
from compress.encoder.infer.second_moments import compute_gram, compute_second_moments
from compress.encoder.modules.gates import freeze_weights
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import OUTPUTS, unit_modules

DAMPING = 1e-3
"""Of the mean of a factor's diagonal, added to it."""
AT_ONCE = 48
"""One of so many blocks that are left goes at a time, at least one: by ones a minute is spent where seconds do."""
STEP, TINY = 1e-9, 1e-18
"""A rise is above the one before by so much, so that all differ."""


class Moments:
    """second: (n+1, n+1) fp64 sums of [x 1]ᵀ[x 1] over so many tokens of what a matrix reads."""

    def __init__(self) -> None:
        self.second, self.tokens = torch.zeros((), dtype=torch.float64), 0

    def add(self, x: Tensor) -> None:
        """x (T, n)."""
        self.second = self.second + compute_second_moments(x).double().cpu()
        self.tokens += len(x)


@dataclass(frozen=True)
class Factors:
    """Of an output matrix, fp64 on the CPU. moments: of what it reads.  slopes (D, D): second moments of the loss's
    derivative by what it writes, summed over a row's tokens, mean over rows.  biased: whether it adds a bias."""

    moments: Moments
    slopes: Tensor
    biased: bool

    @property
    def inputs(self) -> Tensor:
        """(n, n) covariance of what it reads over tokens; without a bias, second moments."""
        second = self.moments.second / self.moments.tokens
        mean = second[-1, :-1]
        return second[:-1, :-1] - torch.outer(mean, mean) if self.biased else second[:-1, :-1]


def factors(
    model: Model, batches: Sequence[Batch], loss: Callable[[Batch, int], Tensor], stop: Callable[[], None]
) -> dict[tuple[str, int], Factors]:
    """By part and unit. loss: (batch, its place) → summed over the rows, with a graph."""
    moments: dict[tuple[str, int], Moments] = {}
    sums: dict[tuple[str, int], Tensor] = {}
    biased: dict[tuple[str, int], bool] = {}
    seen: list[tuple[tuple[str, int], Tensor, Tensor]] = []
    handles = []

    def watch(key: tuple[str, int]):
        def hook(_: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
            out = out if out.requires_grad else out.requires_grad_()
            seen.append((key, given[0].detach(), out))
            return out

        return hook

    for part, name in OUTPUTS.items():
        for unit, module in unit_modules(model, part):
            matrix = getattr(module, name)
            moments[part, unit], biased[part, unit] = Moments(), matrix.bias is not None
            sums[part, unit] = torch.zeros((), dtype=torch.float64)
            handles.append(matrix.register_forward_hook(watch((part, unit))))
    try:
        for place, batch in enumerate(batches):
            stop()
            seen.clear()
            with freeze_weights(model), torch.enable_grad():
                slopes = torch.autograd.grad(loss(batch, place), [out for *_, out in seen])
            for (key, x, _), slope in zip(seen, slopes, strict=True):
                moments[key].add(x.flatten(0, -2))
                sums[key] = sums[key] + compute_gram(slope.flatten(0, -2).float()).double().cpu()
    finally:
        seen.clear()
        for handle in handles:
            handle.remove()
    rows = sum(batch.rows for batch in batches)
    return {key: Factors(moments[key], sums[key] / rows, biased[key]) for key in moments}


def compute_elimination_losses(weight: Tensor, given: Factors, width: int) -> Tensor:
    """(B,) fp64 of each block of `width` inputs: the rise of the loss to second order when it goes, after all that have
    lower ones, with what is left fitted anew each time. All differ: their order is that of going.

    weight: W (D, n). Block b costs half the trace of (H⁻¹_bb)⁻¹ W_bᵀ S W_b, with S the slopes' factor and H the
    inputs'; then it is eliminated from W and H⁻¹.
    """
    slopes, inputs = _damped(given.slopes), _damped(given.inputs)
    ahead = torch.linalg.cholesky(slopes).T @ weight.detach().double().cpu()  # (D, n)
    inverse = torch.linalg.inv(inputs)
    left = torch.arange(ahead.shape[1] // width)
    rises = torch.zeros(len(left), dtype=torch.float64)
    last = 0.0
    while len(left):
        alone = _alone(ahead, inverse, width)
        out = alone.argsort(stable=True)[: max(1, len(left) // AT_ONCE)]
        columns = (out[:, None] * width + torch.arange(width)).flatten()
        stays = torch.ones(ahead.shape[1], dtype=torch.bool)
        stays[columns] = False
        rest = stays.nonzero()[:, 0]
        gone, across = ahead[:, columns], inverse[columns]
        own = torch.linalg.inv(across[:, columns])
        together = max(0.0, float((gone.T @ gone * own).sum()) / 2)
        for place, share in zip(left[out].tolist(), (alone[out] / alone[out].sum()).tolist(), strict=True):
            last = max(together * share, last * (1 + STEP) + TINY)
            rises[place] = last
        across = across[:, rest]
        moved = own @ across
        ahead = ahead[:, rest] - gone @ moved
        inverse = inverse[rest][:, rest] - across.T @ moved
        left = left[stays.view(-1, width)[:, 0]]
    return rises


def _alone(ahead: Tensor, inverse: Tensor, width: int) -> Tensor:
    """(B,) the rise for each block that is left."""
    if width == 1:
        return ahead.square().sum(0) / inverse.diagonal().clamp_min(TINY) / 2
    blocks = inverse.view(-1, width, len(inverse) // width, width)
    own = torch.stack([blocks[i, :, i] for i in range(len(blocks))])  # (B, K, K)
    written = ahead.view(len(ahead), -1, width).permute(1, 2, 0)  # (B, K, D)
    return (written * torch.linalg.solve(own, written)).sum((1, 2)) / 2


def _damped(factor: Tensor) -> Tensor:
    damping = DAMPING * factor.diagonal().mean().clamp_min(1e-30)
    return factor + damping * torch.eye(len(factor), dtype=factor.dtype)
