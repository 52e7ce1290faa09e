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
            found = [parameter for parameter in group["params"] if parameter.grad is not None]
            if found and found[0].is_cuda:
                self._move_together(found, group)
                continue
            for parameter in found:
                self._move(parameter, group)

    def _find_state(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state

    def _move_together(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """`_move` of all, up to rounding, in a few launches for each operation: for GPUs, where a tensor's own launches
        take longer than what they compute. It holds a few copies of all parameters meanwhile."""
        states = [self._find_state(parameter) for parameter in parameters]
        steps, means, squares = ([state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq"))
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self.grad_scale is not None:
            gradients = torch._foreach_div(gradients, self.grad_scale)
        goes_on = torch.ones((), device=parameters[0].device)
        if self.found_inf is not None:
            is_bad, zero = (self.found_inf > 0).squeeze(), torch.zeros_like(goes_on)
            gradients = [torch.where(is_bad, zero, gradient) for gradient in gradients]
            goes_on = torch.where(is_bad, zero, goes_on)
        torch._foreach_add_(steps, [goes_on] * len(steps))  # of one tensor, torch would ask the device for its value
        news = (gradients, torch._foreach_mul(gradients, gradients))
        for moments, new, beta in zip((means, squares), news, group["betas"], strict=True):
            change = torch._foreach_sub(new, moments)
            torch._foreach_mul_(change, goes_on * (1 - beta))
            torch._foreach_add_(moments, change)
        updates = self._compute_updates(parameters, steps, means, squares, group)
        torch._foreach_mul_(updates, goes_on * -group["lr"])
        torch._foreach_add_(parameters, updates)

    @staticmethod
    def _compute_updates(
        parameters: list[Tensor], steps: list[Tensor], means: list[Tensor], squares: list[Tensor], group: dict[str, Any]
    ) -> Any:
        """What each parameter moves along, in proportion to the learning rate. After no step, nothing."""
        counted = torch._foreach_clamp_min(steps, 1.0)
        corrections = []
        for beta in group["betas"]:
            correction = torch._foreach_neg(torch._foreach_pow(beta, counted))
            torch._foreach_add_(correction, 1.0)
            corrections.append(correction)
        roots = torch._foreach_div(squares, corrections[1])
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(means, corrections[0])
        torch._foreach_div_(updates, roots)
        if group["weight_decay"]:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        if group["adapt"]:
            sizes, changes = (torch.stack(torch._foreach_norm(x)) for x in (parameters, updates))
            ratios = torch.where((sizes > 0) & (changes > 0), sizes / changes, 1.0)
            torch._foreach_mul_(updates, list(ratios.unbind()))
        return updates

    def _move(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, (first, second) = self._find_state(parameter), group["betas"]
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
