"""The kernels of `add_norm` on the CPU, by Triton's interpreter: prints {case: largest differences} to fp64.

In a process of its own: triton reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import json
import os
import warnings
from typing import NamedTuple

os.environ["TRITON_INTERPRET"] = "1"
warnings.simplefilter("error")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

from compress.encoder.kernels import add_norm  # noqa: E402

ROWS, EPS = 19, 1e-5
FP32, BF16 = torch.float32, torch.bfloat16


class Case(NamedTuple):
    """kinds: of x, added, and the result.  narrow: the other result."""

    size: int
    kinds: tuple[torch.dtype, torch.dtype, torch.dtype]
    narrow: torch.dtype | None
    rate: float
    has_bias: bool


CASES = {
    "training in fp32": Case(64, (FP32, FP32, FP32), None, 0.1, True),
    "training in bf16": Case(96, (FP32, BF16, FP32), BF16, 0.1, True),
    "without dropout": Case(24, (FP32, BF16, FP32), BF16, 0.0, False),
    "inference in bf16": Case(70, (BF16, BF16, BF16), None, 0.0, True),
}


def differ(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest number, in units of what the result's kind resolves."""
    assert found.shape == expected.shape
    share = (found.double() - expected).abs().max() / expected.abs().max()
    return float(share / (1 if found.dtype == FP32 else 2**15))


def check(case: Case) -> dict[str, float]:
    """Forward and backward, one or two gradients given."""
    size, kinds, narrow_kind, rate, has_bias = case
    x, added, made = (torch.randn(ROWS, size).to(kind) for kind in kinds)
    weight, bias = torch.randn(size), torch.randn(size) if has_bias else None
    narrow = None if narrow_kind is None else torch.empty(ROWS, size, dtype=narrow_kind)
    seed = torch.tensor(1 << 40) if rate else None
    means, scales = torch.empty(ROWS), torch.empty(ROWS)
    add_norm.launch(x, added, weight, bias, seed, made, narrow, means, scales, rate, EPS)

    gradient = torch.randn(ROWS, size).to(kinds[2])
    narrow_gradient = None if narrow is None else torch.randn(ROWS, size).to(narrow)
    to_x, to_added, sums = torch.empty_like(x), torch.empty_like(added), torch.empty(2, 3, size)
    add_norm.launch_backward(
        gradient, narrow_gradient, x, added, weight, seed, means, scales, to_x, to_added, sums, rate
    )
    # What was dropped is not kept: the gradient tells, which is 0 there.
    factor = (to_added != 0).double() / (1 - rate) if rate else 1.0
    if rate:
        assert 0.8 < float((to_added != 0).float().mean()) < 0.97
    leaves = [part.double().requires_grad_() for part in (x, added, weight)]
    shift = None if bias is None else bias.double().requires_grad_()
    expected = F.layer_norm(leaves[0] + leaves[1] * factor, (size,), leaves[2], shift, EPS)
    expected.backward(sum(g.double() for g in (gradient, narrow_gradient) if g is not None))
    found = {"made": made, "x": to_x, "added": to_added, "weight": sums[0].sum(0)}
    wanted = dict(zip(found, (expected.detach(), *(leaf.grad for leaf in leaves)), strict=True))
    if narrow is not None:
        found["narrow"], wanted["narrow"] = narrow, expected.detach()
    if shift is not None:
        found["bias"], wanted["bias"] = sums[1].sum(0), shift.grad
    return {name: differ(value, wanted[name]) for name, value in found.items()}  # pyright: ignore


def check_parts() -> None:
    """Any number of programs gives the same sums; one gradient is enough, and the sums may be left out."""
    x, added, made, gradient = (torch.randn(ROWS, 32) for _ in range(4))
    weight, means, scales = torch.randn(32), torch.empty(ROWS), torch.empty(ROWS)
    add_norm.launch(x, added, weight, None, None, made, None, means, scales, 0.0, EPS)
    results = []
    for programs, given in ((1, (gradient, None)), (7, (None, gradient)), (None, (gradient, None))):
        to_x, to_added = torch.empty_like(x), torch.empty_like(x)
        sums = None if programs is None else torch.empty(2, programs, 32)
        add_norm.launch_backward(*given, x, added, weight, None, means, scales, to_x, to_added, sums, 0.0)
        assert torch.equal(to_x, to_added)
        results.append((to_x, None if sums is None else sums.sum(1)))
    (first, one), (second, seven), (third, _) = results
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    torch.testing.assert_close(one, seven)


def check_draws() -> None:
    """Another seed drops others; within a row, and from row to row, none hangs on another."""
    x, weight, seen = torch.zeros(64, 128), torch.ones(128), []
    for seed in (1, 2):
        to_x, to_added = torch.empty_like(x), torch.empty_like(x)
        gradient = torch.randn(64, 128)
        add_norm.launch_backward(
            gradient, None, x, x, weight, torch.tensor(seed), torch.zeros(64), torch.ones(64), to_x, to_added, None, 0.5
        )
        seen.append((to_added != 0).double() - 0.5)
    first, second = seen
    pairs = (first, second), (first[1:], first[:-1]), *((first[:, n:], first[:, :-n]) for n in (1, 2, 3, 4, 32))
    for a, b in pairs:
        assert abs(float((a * b).mean())) < 0.25 * 5 / a.numel() ** 0.5


if __name__ == "__main__":
    torch.manual_seed(0)
    check_parts()
    check_draws()
    print(json.dumps({name: check(case) for name, case in CASES.items()}))
