"""Fewer channels for a residual stream or a table: which directions of the old ones the new ones stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

Method = Literal["selection", "svd", "projection"]
METHODS: tuple[Method, ...] = get_args(Method)


def copy_plain(parameter: Tensor) -> Tensor:
    """A copy to compute with, whatever the model's device and precision."""
    return parameter.detach().double().cpu()


def space_evenly(old: int, new: int) -> Tensor:
    """(new,) of 0..old-1, evenly spaced."""
    return torch.div(torch.arange(new) * old, new, rounding_mode="floor")


@dataclass(frozen=True)
class Basis:
    """How channels become fewer. matrix: P (D, d), orthonormal columns.  chosen: (d,) the channels, where each new one
    is an old one."""

    matrix: Tensor
    chosen: Tensor | None = None

    def read(self, weight: Tensor) -> Tensor:
        """(.., D) → (.., d): of what reads the channels."""
        return weight[..., self.chosen] if self.chosen is not None else weight @ self.matrix

    def write(self, weight: Tensor) -> Tensor:
        """(D, ..) → (d, ..): of what writes to them."""
        return weight[self.chosen] if self.chosen is not None else self.matrix.T @ weight

    def norm(self, source: nn.LayerNorm, output: Tensor | None = None) -> dict[str, Tensor]:
        """weight and bias of the norm over the new channels.

        output: (D+1, D+1) second moments of [y 1] of what the norm gives, to match the size of its results; without
        them every direction is taken to carry alike.
        """
        gain = copy_plain(source.weight)
        bias = None if source.bias is None else copy_plain(source.bias)
        if self.chosen is not None:
            made = {"weight": gain[self.chosen]}
        else:
            made = {"weight": self.matrix.square().T @ gain * self._size(gain, bias, output)}
        return made | ({} if bias is None else {"bias": self.write(bias)})

    def _size(self, gain: Tensor, bias: Tensor | None, output: Tensor | None) -> float:
        """√(E‖Pᵀn‖²/d) of the normalised states n = (y − bias)/gain, whose own mean square is 1."""
        if output is None:
            return 1.0
        bias = torch.zeros_like(gain) if bias is None else bias
        inverse = torch.where(gain.abs() > 1e-3 * gain.abs().mean(), 1 / gain, 0.0)
        back = torch.cat([torch.diag(inverse), (-bias * inverse)[:, None]], 1)  # [y 1] → n
        kept = self.matrix.T @ back
        return float((kept @ output @ kept.T).trace() / self.matrix.shape[1]) ** 0.5


def build_identity_basis(width: int) -> Basis:
    """All channels, in their places."""
    return Basis(torch.eye(width, dtype=torch.float64), torch.arange(width))


def select_evenly(old: int, new: int) -> Basis:
    """Evenly spaced channels."""
    return select_channels(old, space_evenly(old, new))


def select_channels(old: int, chosen: Tensor) -> Basis:
    """These channels."""
    return Basis(torch.eye(old, dtype=torch.float64)[:, chosen], chosen)


def draw_random_basis(old: int, new: int, generator: torch.Generator) -> Basis:
    """Random directions."""
    return Basis(torch.linalg.qr(torch.randn(old, new, generator=generator, dtype=torch.float64)).Q)


def compute_principal_basis(second: Tensor, new: int, gains: Tensor | None = None) -> Basis:
    """The leading principal directions of second moments (D, D).

    gains: (norms, D) what the norms multiply the channels by. Among all bases of those directions this one has on its
    axes the channels whose gains stand out: a gain of its own is what a rotated channel cannot have, and few channels
    with outlying gains carry much of a BERT's states.
    """
    vectors = torch.linalg.eigh(second).eigenvectors[:, -new:]
    if gains is not None and len(gains):
        apart = (gains / gains.mean(1, keepdim=True) - 1).square().mean(0)
        vectors = vectors @ torch.linalg.eigh(vectors.T @ (apart[:, None] * vectors)).eigenvectors
    return Basis(vectors)
