"""How channels, heads and neurons are chosen when a model is made narrower: see `narrow`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from compress.encoder.infer.statistics import Statistics, refit
from compress.encoder.reshape.basis import (
    Basis,
    Method,
    build_identity_basis,
    compute_principal_basis,
    copy_plain,
    draw_random_basis,
    select_evenly,
)


@dataclass(frozen=True)
class Narrowing:
    """How: the method, its randomness (of projection), and what it knows of real input (needed by svd)."""

    method: Method
    generator: torch.Generator
    statistics: Statistics | None

    def basis(self, old: int, new: int, second: Tensor | None = None, gains: Tensor | None = None) -> Basis:
        """For channels. second: (old, old) second moments of what they hold.  gains: see `compute_principal_basis`."""
        if old == new:
            return build_identity_basis(old)
        if self.method == "selection":
            return select_evenly(old, new)
        if self.method == "projection":
            return draw_random_basis(old, new, self.generator)
        assert second is not None, "svd reads second moments"
        return compute_principal_basis(second, new, gains)

    def input_of(self, part: nn.Module) -> Tensor | None:
        """(n+1, n+1) second moments of a linear layer's input, where the method reads them."""
        return self.statistics.inputs[part] if self.method == "svd" and self.statistics is not None else None

    def refit(self, part: nn.Linear, kept: Tensor, start: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of a layer that reads x B in place of x: see `statistics.refit`."""
        second = self.input_of(part)
        assert second is not None
        assert self.statistics is not None
        begin = torch.zeros(part.out_features).double() if bias is None else bias
        weight, fitted = refit(copy_plain(part.weight), begin, kept, second, start, self.statistics.tokens)
        return weight, None if bias is None else fitted

    def norm(self, basis: Basis, source: nn.LayerNorm) -> dict[str, Tensor]:
        known = None if self.statistics is None else self.statistics.outputs.get(source)
        return basis.norm(source, known if self.method == "svd" else None)
