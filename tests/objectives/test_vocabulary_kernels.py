"""The Triton kernels of the vocabulary losses without a GPU: their numbers by the interpreter, their machine code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from triton_code import compile_kernel, list_single_accesses, needs_triton, read_stack, run_interpreted

from compress.encoder.kernels import working
from compress.objectives import _vocabulary_kernels as kernels

SCRIPT = Path(__file__).with_name("interpreted_kernels.py")
KERNELS = ("divergence_kernel", "cross_entropy_kernel")


@needs_triton
@pytest.mark.thorough
def test_values_and_gradients_by_the_interpreter() -> None:
    found = run_interpreted(SCRIPT)
    assert len(found) == 18
    for case, differences in found.items():
        for what, difference in differences.items():
            assert difference < 1e-5, (case, what)


CODE = [(kernel, kind, capability) for kernel in KERNELS for kind in ("bf16", "fp32") for capability in (80, 90)]


@needs_triton
@pytest.mark.parametrize(
    ("kernel", "kind", "capability"),
    [pytest.param(*one, marks=[] if number == 1 else pytest.mark.thorough) for number, one in enumerate(CODE)],
)
def test_machine_code_spills_nothing_and_loads_16_bytes_at_once(
    kernel: str, kind: str, capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = build(kernel, kind, capability)
    # Beside those of rows: a loss is written; a label, and the number at it, are read.
    assert len(list_single_accesses(made)) == (1 if kernel == "divergence_kernel" else 3)
    assert read_stack(made, tmp_path) == 0


def build(name: str, kind: str, capability: int) -> Any:
    """As it is launched where rows are padded: distances and widths are multiples of 16."""
    from compress.objectives import _triton

    kernel = getattr(_triton, name)
    aligned = [x for x in kernel.arg_names if x.endswith(("_row", "_width"))]
    types: dict[str, str] = dict.fromkeys(("student", "teacher", "gradient", "logits"), f"*{kind}")
    types |= dict.fromkeys(aligned, "i32") | {
        "labels": "*i64",
        "loss": "*fp32",
        "sharpness": "fp32",
        "slope": "fp32",
        "size": "i32",
    }
    constants = {"DIFFERENTIATE": True, "BLOCK": _triton.BLOCK}
    return compile_kernel(kernel, types, constants, aligned, warps=_triton.WARPS, capability=capability)


def test_a_cpu_never_asks_for_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "are_working", lambda: pytest.fail("triton was tried"))
    assert not kernels.support(torch.zeros(2, 64))


def test_rows_are_read_as_far_as_memory_is_theirs() -> None:
    padded = kernels.new_gradient(torch.empty(3, 70))
    assert padded.stride() == (128, 1)
    assert kernels._find_width(padded) == 80
    assert kernels._find_width(torch.empty(3, 70)) == 70
    assert kernels._find_width(torch.empty(3, 80)) == 80
    whole = torch.empty(3, 100)
    assert kernels._find_width(whole[:, 30:]) == 70  # the last row ends with the memory
    assert kernels._find_width(whole[:2, 10:80]) == 80
