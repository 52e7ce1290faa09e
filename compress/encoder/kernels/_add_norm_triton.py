"""The kernels of `add_norm`: a program reads whole rows. `size` numbers of each count, BLOCK is a power of 2.

Which numbers are dropped is drawn from a seed and their places (Philox), anew in the backward pass: no mask is kept.
"""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


@triton.jit
def _add(x, added, seed, row, size, rate, DROPS: tl.constexpr, BLOCK: tl.constexpr):
    """A row of x + dropout(added), and by what each number of `added` was multiplied; 0 past the end."""
    at = tl.arange(0, BLOCK)
    place = (tl.zeros([BLOCK], tl.int64) + row) * size + at
    given = tl.load(x + place, mask=at < size, other=0.0).to(tl.float32)
    more = tl.load(added + place, mask=at < size, other=0.0).to(tl.float32)
    factor = tl.full([BLOCK], 1.0, tl.float32)
    if DROPS:  # a draw is four numbers
        a, b, c, d = tl.randint4x(tl.load(seed), row * (BLOCK // 4) + tl.arange(0, BLOCK // 4))
        words = tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), [BLOCK]).to(tl.uint32, bitcast=True)
        kept = (words >> 8).to(tl.float32) >= rate * 16777216.0  # 24 bits: what fp32 can tell apart
        factor = tl.where(kept, 1.0 / (1.0 - rate), 0.0)
    return given + more * factor, factor


@triton.jit
def add_norm_kernel(
    x,
    added,
    weight,
    bias,
    seed,
    made,
    narrow,
    means,
    scales,
    size,
    rate,
    eps,
    DROPS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NARROWS: tl.constexpr,
    KEEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """made: the norm of a row. narrow: the same in another precision.  means, scales: what the backward pass needs."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    total, _ = _add(x, added, seed, row, size, rate, DROPS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    mean = tl.sum(total, 0) / size
    moved = tl.where(at < size, total - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(moved * moved, 0) / size + eps)
    found = moved * scale * tl.load(weight + at, mask=at < size, other=0.0).to(tl.float32)
    if HAS_BIAS:
        found += tl.load(bias + at, mask=at < size, other=0.0).to(tl.float32)
    place = (tl.zeros([BLOCK], tl.int64) + row) * size + at
    tl.store(made + place, found.to(made.dtype.element_ty), mask=at < size)
    if NARROWS:
        tl.store(narrow + place, found.to(narrow.dtype.element_ty), mask=at < size)
    if KEEPS:
        tl.store(means + row, mean)
        tl.store(scales + row, scale)


@triton.jit
def add_norm_backward_kernel(
    gradient,
    narrow_gradient,
    x,
    added,
    weight,
    seed,
    means,
    scales,
    to_x,
    to_added,
    to_weight,
    to_bias,
    rows,
    size,
    rate,
    WIDE: tl.constexpr,
    NARROW: tl.constexpr,
    DROPS: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Of every so many rows. WIDE, NARROW: which of the two results has a gradient.  SUMS: the program's row of
    to_weight and to_bias is the sum over its rows."""
    first = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    w = tl.load(weight + at, mask=at < size, other=0.0).to(tl.float32)
    weight_sum = tl.zeros([BLOCK], tl.float32)
    bias_sum = tl.zeros([BLOCK], tl.float32)
    for row in range(first, rows, tl.num_programs(0)):
        place = (tl.zeros([BLOCK], tl.int64) + row) * size + at
        g = tl.zeros([BLOCK], tl.float32)
        if WIDE:
            g += tl.load(gradient + place, mask=at < size, other=0.0).to(tl.float32)
        if NARROW:
            g += tl.load(narrow_gradient + place, mask=at < size, other=0.0).to(tl.float32)
        total, factor = _add(x, added, seed, row, size, rate, DROPS, BLOCK)
        scale = tl.load(scales + row)
        normed = tl.where(at < size, (total - tl.load(means + row)) * scale, 0.0)
        if SUMS:
            weight_sum += g * normed
            bias_sum += g
        g *= w
        along = tl.sum(g * normed, 0) / size
        g = (g - tl.sum(g, 0) / size - normed * along) * scale
        tl.store(to_x + place, g.to(to_x.dtype.element_ty), mask=at < size)
        tl.store(to_added + place, (g * factor).to(to_added.dtype.element_ty), mask=at < size)
    if SUMS:
        own = first * size + at
        tl.store(to_weight + own, weight_sum, mask=at < size)
        tl.store(to_bias + own, bias_sum, mask=at < size)
