"""AdamW in one fused pass, or LAMB; their moments in and out by parameter name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from compress.contracts import TrainingPlan
from compress.encoder.modules.masks import masks
from compress.errors import ExitCode, UserError, list_some
from compress.quantizers._base import Base
from compress.training.lamb import Lamb

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Optimizer:
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) or LAMB over the parameters of `module` that ask for a gradient.

    Weights decay; biases and norms, which are the vectors, and learned step sizes of quantizers do not. A tensor shared
    by several modules is one parameter. What is zero in a 2:4 sparse matrix of a model in `module` stays zero: its
    gradient is, and so are its moments, and decay takes nothing from it. Raises UserError when nothing is left to
    train.
    """

    def __init__(self, module: nn.Module, plan: TrainingPlan) -> None:
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise UserError("nothing to train: every weight is frozen")
        self.clip_norm = plan.clip_norm
        self._rate: Tensor | None = None
        self.masks = masks(module)
        steps = {id(p) for part in module.modules() if isinstance(part, Base) for p in part.parameters()}
        weights = [p for p in self.parameters.values() if p.ndim >= 2 and id(p) not in steps]
        others = [p for p in self.parameters.values() if p.ndim < 2 or id(p) in steps]
        groups = [
            {"params": weights, "weight_decay": plan.weight_decay, "adapt": True},
            {"params": others, "weight_decay": 0.0, "adapt": False},
        ]
        groups = [group for group in groups if group["params"]]
        how: dict[str, Any] = {"lr": plan.rate, "betas": plan.betas, "eps": plan.eps}
        if plan.optimizer == "lamb":
            self.rule: torch.optim.Optimizer = Lamb(groups, **how)
        else:
            self.rule = torch.optim.AdamW(groups, **how, fused=True)

    def clear(self) -> None:
        """Forget the gradients."""
        self.rule.zero_grad(set_to_none=True)

    def keep_rate_on(self, device: torch.device) -> None:
        """From now on the kernels read the learning rate from the device: a CUDA graph replays what they are given."""
        self._rate = torch.zeros((), device=device)
        for group in self.rule.param_groups:
            group["lr"] = self._rate

    def set_rate(self, learning_rate: float) -> None:
        """Of the next steps."""
        if self._rate is not None:
            self._rate.fill_(learning_rate)
            return
        for group in self.rule.param_groups:
            group["lr"] = learning_rate

    def step(self, loss: Tensor) -> Tensor:
        """Clip and step at the rate that was set, unless `loss` or the gradient norm is not finite; returns the norm
        before clipping, a scalar.

        The decision is made where the tensors are: the fused kernel leaves weights, moments and step counts alone
        when it is told that an infinity was found. So an accelerator is not waited for.
        """
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        if not gradients:  # a batch in which no objective had anything to count
            return torch.zeros_like(loss)
        for parameter, mask in self.masks:
            if parameter.grad is not None:
                parameter.grad.mul_(mask)
        norm = get_total_norm(gradients)
        if self._rate is not None:  # torch warns of this flag in steps that are not captured
            for group in self.rule.param_groups:
                group["capturable"] = torch.cuda.is_current_stream_capturing()
        # The two doors that torch's GradScaler uses. Dividing inside the kernel saves a pass over all gradients.
        bad = ~(torch.isfinite(norm) & torch.isfinite(loss))
        self.rule.found_inf = bad.float()  # pyright: ignore[reportAttributeAccessIssue]
        if self.clip_norm is not None:
            scale = (norm / self.clip_norm).clamp(min=1.0)
            self.rule.grad_scale = scale.float()  # pyright: ignore[reportAttributeAccessIssue]
        self.rule.step()
        return norm

    def forget(self) -> None:
        """Become as new: no gradients and no moments."""
        self.clear()
        self.rule.state.clear()

    def state(self) -> dict[str, Tensor]:
        """`<parameter>.<moment>` → tensor, of every parameter that was ever stepped."""
        tensors = {}
        for name, parameter in self.parameters.items():
            for moment, value in self.rule.state.get(parameter, {}).items():
                tensors[f"{name}.{moment}"] = value
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """What `state` gave. Raises UserError when the tensors belong to other parameters."""
        rest = dict(tensors)
        for name, parameter in self.parameters.items():
            found = {moment: rest.pop(f"{name}.{moment}") for moment in _MOMENTS if f"{name}.{moment}" in rest}
            if found:
                _check(name, parameter, found)
                self.rule.state[parameter] = {key: value.to(parameter.device) for key, value in found.items()}
        if rest:
            raise _foreign(f"unexpected {list_some(sorted(rest), 3)}")


def _check(name: str, parameter: Tensor, found: Mapping[str, Tensor]) -> None:
    if set(found) != set(_MOMENTS):
        raise _foreign(f"{name} is missing {list_some(sorted(set(_MOMENTS) - set(found)), 3)}")
    if any(found[moment].shape != parameter.shape for moment in ("exp_avg", "exp_avg_sq")):
        raise _foreign(
            f"{name} has shape {tuple(found['exp_avg'].shape)} in the checkpoint, {tuple(parameter.shape)} in the model"
        )


def _foreign(why: str) -> UserError:
    return UserError("the checkpoint's optimizer state does not match this model", why=why, code=ExitCode.REFUSED)
