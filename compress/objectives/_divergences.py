"""How far apart two distributions are, each way that distillation measures it."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Kind = Literal["forward", "reverse", "symmetric", "jensen_shannon"]


def compute_divergence(ours: Tensor, theirs: Tensor, temperature: float, kind: Kind = "forward") -> Tensor:
    """T² times the divergence over the last axis of logits (.., C), softened by the temperature T → (..).

    forward: KL(teacher ‖ student).  reverse: KL(student ‖ teacher).  symmetric: the mean of both.  jensen_shannon: the
    mean of both KL to the even mixture.
    """
    log_p, log_q = F.log_softmax(ours / temperature, dim=-1), F.log_softmax(theirs / temperature, dim=-1)
    if kind == "forward":
        value = _kl(log_p, log_q)
    elif kind == "reverse":
        value = _kl(log_q, log_p)
    elif kind == "symmetric":
        value = (_kl(log_p, log_q) + _kl(log_q, log_p)) / 2
    else:
        mixture = torch.logaddexp(log_p, log_q) - torch.log(torch.full_like(log_p[..., :1], 2))
        value = (_kl(mixture, log_p) + _kl(mixture, log_q)) / 2
    return value * temperature**2


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(q ‖ p) over the last axis."""
    return F.kl_div(log_p, log_q, log_target=True, reduction="none").sum(-1)


def standardize(logits: Tensor, real: Tensor | None = None) -> Tensor:
    """(.., C) logits, each row less its mean and by its own standard deviation, of at least 1e-6.

    real: (.., C) bool, the logits that count; the others stay as they are. None: all.
    """
    if real is None:
        return _by_spread(logits - logits.mean(-1, keepdim=True), logits.shape[-1])
    count = real.sum(-1, keepdim=True).clamp_min(1)
    mean = torch.where(real, logits, 0.0).sum(-1, keepdim=True) / count
    return torch.where(real, _by_spread(torch.where(real, logits - mean, 0.0), count), logits)


def _by_spread(centred: Tensor, count: Tensor | int) -> Tensor:
    """Rows with a mean of 0, by their standard deviation, of at least 1e-6. count: numbers of each."""
    # The bound stands before the root, whose gradient at 0 is infinite: a head of zeros gives equal logits.
    return centred / (centred.square().sum(-1, keepdim=True) / count).clamp_min(1e-12).sqrt()
