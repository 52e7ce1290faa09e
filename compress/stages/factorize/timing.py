"""Measures on this device whether low-rank factors are faster than the full matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from compress.encoder.infer.prepare import PackedLinear, can_pack
from compress.encoder.modules.layers import LowRankLinear, linear
from compress.recipe.schema import LatencySpec
from compress.stages.factorize.allocation import Candidate
from compress.stages.shared.timing import measure_calls


def find_slower_matrices(
    ranks: Mapping[str, int], known: Mapping[str, Candidate], tokens: int, device: str, plan: LatencySpec
) -> frozenset[str]:
    """Names of matrices whose products of `tokens` tokens take as long as the whole one's or longer; fp32.

    Matrices of one shape and rank are timed once, whole and thin in turn.
    """
    shapes = {name: (known[name].out, known[name].inputs, rank) for name, rank in ranks.items()}
    found = {shape: _is_slower(*shape, tokens, device, plan) for shape in dict.fromkeys(shapes.values())}
    return frozenset(name for name, shape in shapes.items() if found[shape])


def _is_slower(out: int, inputs: int, rank: int, tokens: int, device: str, plan: LatencySpec) -> bool:
    x = torch.ones(tokens, inputs, device=device)
    with torch.device(device), torch.inference_mode():
        whole, thin = linear(inputs, out), LowRankLinear(inputs, out, rank)
        for parameter in (*whole.parameters(), *thin.parameters()):
            parameter.fill_(0.01)  # no subnormal numbers, which would be slow
        calls: list[Callable[[], Any]] = [lambda: whole(x), lambda: thin(x)]
        if device == "cpu" and can_pack("fp32"):
            one, first, second = (PackedLinear(p.weight, p.bias) for p in (whole, thin.inner, thin.outer))
            calls = [lambda: one(x), lambda: second(first(x))]
        times = measure_calls(calls, plan, device)
    return times[1].p50 >= times[0].p50
