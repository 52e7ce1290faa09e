"""The Triton kernels of the vocabulary losses on the CPU, by Triton's interpreter: prints {case: largest differences}.

In a process of its own: triton reads TRITON_INTERPRET when it is imported. Blocks are small, so that small vocabularies
take several.
"""

from __future__ import annotations

import itertools
import json
import os
import warnings
from typing import Any
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"
warnings.simplefilter("error")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

from compress.contracts import VocabularyOutput  # noqa: E402
from compress.objectives import _triton, _vocabulary  # noqa: E402
from compress.objectives import _vocabulary_kernels as kernels  # noqa: E402

ROWS = 3
SIZES = {2: 0.5, 64: 1.0, 129: 4.0}
"""Vocabulary → temperature: within a block, a block, and more than two, with a tail."""
KINDS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def draw(size: int, kind: torch.dtype, *, padded: bool, scale: float = 3.0) -> Tensor:
    """Logits (ROWS, size); padded: in a buffer with longer rows, whose rest is no number."""
    values = (scale * torch.randn(ROWS, size)).to(kind)
    if not padded:
        return values
    buffer = kernels.new_gradient(values)
    buffer.as_strided((ROWS, buffer.stride(0)), (buffer.stride(0), 1)).fill_(float("nan"))
    return buffer.copy_(values)


def differ(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest number, or of 0.1."""
    assert found.shape == expected.shape
    return float((found.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=0.1))


def check_divergence(size: int, student: str, teacher: str, temperature: float, padded: bool) -> dict[str, float]:
    """Against the plain formula in fp64."""
    s, t = draw(size, KINDS[student], padded=padded), draw(size, KINDS[teacher], padded=padded)
    loss, gradient = torch.empty(ROWS), kernels.new_gradient(s.float())
    kernels.launch_divergence(s, t, loss, gradient, temperature, 0.5)
    log_p, log_q = ((x.double() / temperature).log_softmax(1) for x in (s, t))
    value = F.kl_div(log_p, log_q, log_target=True, reduction="none").sum(1)
    slope = 0.5 * temperature * (log_p.exp() - log_q.exp())
    tail = gradient.as_strided((ROWS, gradient.stride(0)), (gradient.stride(0), 1))[:, size : -(-size // 16) * 16]
    assert not tail.any(), "what lies behind a row of the gradient is 0"
    return {"value": differ(loss, value), "gradient": differ(gradient, slope)}


def check_output() -> dict[str, float]:
    """The loss without its gradient is the same; a gradient in bf16 is rounded once."""
    s, t = draw(70, torch.bfloat16, padded=True), draw(70, torch.float32, padded=False)
    both, alone = torch.empty(ROWS), torch.empty(ROWS)
    rounded, wide = kernels.new_gradient(s), torch.empty(ROWS, 70)
    kernels.launch_divergence(s, t, both, rounded, 1.0, 1.0)
    kernels.launch_divergence(s, t, alone, wide, 1.0, 1.0)
    kernels.launch_divergence(s, t, alone, None, 1.0, 1.0)
    assert torch.equal(both, alone)
    assert ((rounded.float() - wide).abs() <= 2**-7 * wide.abs()).all()  # the interpreter cuts off where a GPU rounds
    return {}


def check_cross_entropy(size: int, kind: str, padded: bool) -> dict[str, float]:
    """Against torch in fp64; a row whose label is below 0 counts nothing."""
    z, labels = draw(size, KINDS[kind], padded=padded), torch.tensor([size - 1, -100, 0])
    loss, gradient = torch.empty(ROWS), kernels.new_gradient(z.float())
    kernels.launch_cross_entropy(z, labels, loss, gradient, 0.5)
    wide = z.double().requires_grad_()
    value = F.cross_entropy(wide, labels, reduction="none")
    (slope,) = torch.autograd.grad(0.5 * value.sum(), wide)
    assert loss[1] == 0
    assert not gradient[1].any()
    return {"value": differ(loss, value.detach()), "gradient": differ(gradient, slope)}


def check_losses(temperature: float) -> dict[str, float]:
    """Both losses of one product of a table, as objectives call them, against those without kernels."""
    size = 70
    parts = [torch.randn(shape) for shape in ((6, 8), (size, 8), (size,))]
    theirs = VocabularyOutput(*(torch.randn(shape) for shape in ((6, 8), (size, 8), (size,))))
    at = torch.tensor([1, 4, 5])
    found: list[list[Tensor]] = []
    for with_kernels in (False, True):
        leaves = [x.clone().requires_grad_() for x in parts]
        output = VocabularyOutput(*leaves)
        with mock.patch.object(kernels, "support", return_value=with_kernels):
            logits = _vocabulary.logits_at(output, None)
            assert logits.stride(0) == (128 if with_kernels else size)
            kl = _vocabulary.divergence(logits, theirs, None, temperature)
            ce = _vocabulary.cross_entropy(_vocabulary.logits_at(output, at), at)
        (0.7 * kl + 0.2 * ce).backward()
        found.append([kl.detach(), ce.detach(), *(x.grad for x in leaves if x.grad is not None)])
    names = ("divergence", "cross entropy", "features", "table", "bias")
    return {name: differ(b, a) for name, a, b in zip(names, *found, strict=True)}


def run_all() -> dict[str, Any]:
    """Every case."""
    found: dict[str, Any] = {"output": check_output()}
    kinds = (("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "bf16"))
    for (number, (student, teacher)), (size, temperature) in itertools.product(enumerate(kinds), SIZES.items()):
        padded = (number + size) % 2 == 0
        case = f"divergence of {student} from {teacher}, {size}, T {temperature}, padded {padded}"
        found[case] = check_divergence(size, student, teacher, temperature, padded)
    for (number, kind), size in itertools.product(enumerate(KINDS), SIZES):
        padded = (number + size) % 2 == 0
        found[f"cross entropy of {kind}, {size}, padded {padded}"] = check_cross_entropy(size, kind, padded)
    for temperature in (1.0, 3.0):
        found[f"losses of one product, T {temperature}"] = check_losses(temperature)
    return found


if __name__ == "__main__":
    torch.manual_seed(0)
    library = torch.library.Library("compress", "IMPL")
    library.impl("divergence_", kernels.launch_divergence, "CPU")
    library.impl("cross_entropy_", kernels.launch_cross_entropy, "CPU")
    library.impl("scale_", kernels.launch_scale, "CPU")
    with mock.patch.object(_triton, "BLOCK", 64), mock.patch.object(_vocabulary, "_CACHED_BYTES", 4 * 70 * 4):
        print(json.dumps(run_all()))
