"""Losses over the vocabulary as Triton kernels: one program reads a row, and writes its loss and its gradient.

A row is read twice: for the maximum and the sums, and for the gradient. The second time it should come from the cache
of the GPU: programs are large (16 warps), so that few rows are under way at once, on an H100 264, which are 32 of its
50 MB at BERT's vocabulary in bf16. Registers have no room for a row: ptxas spills 800 bytes a thread.

Rows begin `*_row` numbers apart, and `*_width` of each may be read or written (`size`, or more where the memory behind
it is known to be there): with both multiples of 16, loads and stores are of 16 bytes, whatever the vocabulary's size.
Imports triton, which a torch for CUDA brings: `_vocabulary_kernels` imports this where it is used.
"""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

BLOCK = 8192
"""Numbers of a row that a program reads at once."""
WARPS = 16


@triton.jit
def _read(pointer, at, width, size, factor):
    """Numbers `at` of a row times a factor, in fp32; past its end what has no weight, and is finite: two such differ by
    0."""
    found = tl.load(pointer + at, mask=at < width, other=0.0).to(tl.float32)
    return tl.where(at < size, found * factor, -1e38)


@triton.jit
def divergence_kernel(
    student,
    teacher,
    gradient,
    loss,
    student_row,
    teacher_row,
    gradient_row,
    student_width,
    teacher_width,
    gradient_width,
    size,
    sharpness,
    slope,
    DIFFERENTIATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """loss: KL(q ‖ p) of the softmaxes q of teacher·sharpness and p of student·sharpness. gradient: (p − q)·slope."""
    row = tl.program_id(0).to(tl.int64)
    student += row * student_row
    teacher += row * teacher_row
    columns = tl.arange(0, BLOCK)
    # Of what was read so far: maxima, sums of exponentials less the maximum, and Σ exp(t)·(t − s), likewise.
    s_max = float("-inf")
    t_max = float("-inf")
    s_sum = 0.0
    t_sum = 0.0
    product = 0.0
    for start in range(0, size, BLOCK):
        at = start + columns
        s = _read(student, at, student_width, size, sharpness)
        t = _read(teacher, at, teacher_width, size, sharpness)
        s_new = tl.maximum(s_max, tl.max(s, 0))
        t_new = tl.maximum(t_max, tl.max(t, 0))
        weights = tl.exp(t - t_new)
        shrink = tl.exp(t_max - t_new)
        s_sum = s_sum * tl.exp(s_max - s_new) + tl.sum(tl.exp(s - s_new), 0)
        t_sum = t_sum * shrink + tl.sum(weights, 0)
        product = product * shrink + tl.sum(weights * (t - s), 0)
        s_max = s_new
        t_max = t_new
    s_log = s_max + tl.log(s_sum)
    t_log = t_max + tl.log(t_sum)
    tl.store(loss + row, product / t_sum + s_log - t_log)
    if DIFFERENTIATE:
        gradient += row * gradient_row
        for start in range(0, gradient_width, BLOCK):
            at = start + columns
            s = _read(student, at, student_width, size, sharpness)
            t = _read(teacher, at, teacher_width, size, sharpness)
            moved = (tl.exp(s - s_log) - tl.exp(t - t_log)) * slope
            tl.store(gradient + at, moved.to(gradient.dtype.element_ty), mask=at < gradient_width)


@triton.jit
def cross_entropy_kernel(
    logits,
    labels,
    gradient,
    loss,
    logits_row,
    gradient_row,
    logits_width,
    gradient_width,
    size,
    slope,
    DIFFERENTIATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """loss: −log p[label], p the softmax of the logits. gradient: (p − 1 at the label)·slope. A row whose label is
    below 0 has neither."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_row
    label = tl.load(labels + row)
    counts = label >= 0
    columns = tl.arange(0, BLOCK)
    largest = float("-inf")
    total = 0.0
    for start in range(0, size, BLOCK):
        z = _read(logits, start + columns, logits_width, size, 1.0)
        new = tl.maximum(largest, tl.max(z, 0))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(z - new), 0)
        largest = new
    log_sum = largest + tl.log(total)
    chosen = tl.load(logits + label, mask=counts, other=0.0).to(tl.float32)
    tl.store(loss + row, tl.where(counts, log_sum - chosen, 0.0))
    if DIFFERENTIATE:
        gradient += row * gradient_row
        for start in range(0, gradient_width, BLOCK):
            at = start + columns
            p = tl.exp(_read(logits, at, logits_width, size, 1.0) - log_sum)
            moved = tl.where(counts, (p - tl.where(at == label, 1.0, 0.0)) * slope, 0.0)
            tl.store(gradient + at, moved.to(gradient.dtype.element_ty), mask=at < gradient_width)


@triton.jit
def scale_kernel(numbers, factor, size, BLOCK: tl.constexpr):
    """numbers times a factor, in place: multiplied in fp32, and rounded once."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(numbers + at, mask=at < size, other=0.0).to(tl.float32) * tl.load(factor)
    tl.store(numbers + at, found.to(numbers.dtype.element_ty), mask=at < size)
