"""LAMB: Adam whose step is scaled, tensor by tensor, to the size of what it changes (You et al., arXiv 1904.00962)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of the paper, with bias correction and no bound on the norms.

    r = m / (sqrt(v) + eps) + weight_decay w, and w moves by learning rate times |w| / |r| along r; by the learning rate
    alone where either norm is 0, and in groups without weight decay (biases and norms), as in the reference code.
    Two doors as those of torch's fused AdamW: `grad_scale`, by which gradients are divided, and `found_inf`: where it
    is not 0, nothing changes. Nothing here waits for the device.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "adapt": True})
        self.grad_scale: Tensor | None = None
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step for every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)

    def _move(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        assert parameter.grad is not None
        gradient = parameter.grad if self.grad_scale is None else parameter.grad / self.grad_scale
        step = state["step"] + 1
        mean = torch.lerp(gradient, state["exp_avg"], first)
        square = torch.lerp(gradient.square(), state["exp_avg_sq"], second)
        root = (square / (1 - second**step)).sqrt() + group["eps"]
        update = mean / (1 - first**step) / root
        if group["weight_decay"]:
            update = update + group["weight_decay"] * parameter
        if group["adapt"]:
            size, change = parameter.norm(), update.norm()
            update = update * torch.where((size > 0) & (change > 0), size / change, 1.0)
        moved = parameter - group["lr"] * update
        for target, value in (
            (state["step"], step), (state["exp_avg"], mean), (state["exp_avg_sq"], square), (parameter, moved)
        ):  # fmt: skip
            target.copy_(value if self.found_inf is None else torch.where(self.found_inf > 0, target, value))
