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
from compress.encoder.cutting import unit_modules
from compress.encoder.gates import frozen
from compress.encoder.model import Model

OUTPUTS = {"attention": "output", "feed_forward": "down"}
"""The matrices that heads and neurons are the inputs of."""
DAMPING = 1e-3
"""Of the mean of a factor's diagonal, added to it."""
AT_ONCE = 48
"""One of so many blocks that are left goes at a time, at least one: by ones a minute is spent where seconds do."""
STEP, TINY = 1e-9, 1e-18
"""A rise is above the one before by so much, so that all differ."""


@dataclass(frozen=True)
class Factors:
    """Of an output matrix, fp64 on the CPU: inputs (n, n), covariance of what it reads over tokens; where it has no
    bias, second moments.  slopes (D, D): second moments of the loss's derivative by what it writes, summed over a row's
    tokens, mean over rows."""

    inputs: Tensor
    slopes: Tensor


class _Sums:
    """Running sums of one unit."""

    def __init__(self) -> None:
        self.second = self.first = self.slopes = torch.zeros((), dtype=torch.float64)
        self.tokens = 0

    def add(self, x: Tensor, slope: Tensor) -> None:
        """x (T, n), slope (T, D)."""
        x, slope = x.float(), slope.float()
        self.second = self.second + (x.T @ x).double().cpu()
        self.first = self.first + x.sum(0).double().cpu()
        self.slopes = self.slopes + (slope.T @ slope).double().cpu()
        self.tokens += len(x)

    def factors(self, rows: int, *, centred: bool) -> Factors:
        mean = self.first / self.tokens
        inputs = self.second / self.tokens - (torch.outer(mean, mean) if centred else 0)
        return Factors(inputs, self.slopes / rows)


def factors(
    model: Model, batches: Sequence[Batch], loss: Callable[[Batch, int], Tensor], stop: Callable[[], None]
) -> dict[tuple[str, int], Factors]:
    """By part and unit. loss: (batch, its place) → summed over the rows, with a graph."""
    found: dict[tuple[str, int], _Sums] = {}
    centred: dict[tuple[str, int], bool] = {}
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
            found[part, unit], centred[part, unit] = _Sums(), matrix.bias is not None
            handles.append(matrix.register_forward_hook(watch((part, unit))))
    try:
        for place, batch in enumerate(batches):
            stop()
            seen.clear()
            with frozen(model), torch.enable_grad():
                slopes = torch.autograd.grad(loss(batch, place), [out for *_, out in seen])
            for (key, x, _), slope in zip(seen, slopes, strict=True):
                found[key].add(x.flatten(0, -2), slope.flatten(0, -2))
    finally:
        seen.clear()
        for handle in handles:
            handle.remove()
    rows = sum(batch.rows for batch in batches)
    return {key: sums.factors(rows, centred=centred[key]) for key, sums in found.items()}


def eliminated(weight: Tensor, given: Factors, width: int) -> Tensor:
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
        gone = ahead[:, columns]
        own = torch.linalg.inv(inverse[columns][:, columns])
        together = max(0.0, float((gone.T @ gone * own).sum()) / 2)
        for place, share in zip(left[out].tolist(), (alone[out] / alone[out].sum()).tolist(), strict=True):
            last = max(together * share, last * (1 + STEP) + TINY)
            rises[place] = last
        across = inverse[columns][:, rest]
        ahead = ahead[:, rest] - gone @ (own @ across)
        inverse = inverse[rest][:, rest] - across.T @ (own @ across)
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
