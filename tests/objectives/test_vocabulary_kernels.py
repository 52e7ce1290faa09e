"""The Triton kernels of the vocabulary losses without a GPU: their numbers by the interpreter, their machine code."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from compress import objectives
from compress.objectives import _vocabulary_kernels as kernels

SCRIPT = Path(__file__).with_name("interpreted_kernels.py")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
KERNELS = ("divergence_kernel", "cross_entropy_kernel")


@needs_triton
@pytest.mark.thorough
def test_values_and_gradients_by_the_interpreter() -> None:
    path = os.pathsep.join([str(SCRIPT.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
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
    made = compile_kernel(kernel, kind, capability)
    code = made.asm["ptx"]
    rows = ("ld.global.v4.b32", "st.global.v4.b32")
    assert all(instruction in code for instruction in rows), code
    alone = re.findall(r"(?:ld|st)\.global\S*", code)
    # Beside those of rows: a loss is written; a label, and the number at it, are read.
    assert len([x for x in alone if x not in rows]) == (1 if kernel == "divergence_kernel" else 3), alone
    assert read_stack(made.asm["cubin"], tmp_path) == 0


def compile_kernel(name: str, kind: str, capability: int) -> Any:
    """As it is launched where rows are padded: pointers, distances and widths are multiples of 16."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as build

    from compress.objectives import _triton

    kernel = getattr(_triton, name)
    kinds = {"labels": "*i64", "loss": "*fp32", "sharpness": "fp32", "slope": "fp32", "size": "i32"}
    types = dict.fromkeys(("student", "teacher", "gradient", "logits"), f"*{kind}") | kinds
    signature = {
        x: "constexpr" if x.isupper() else "i32" if x.endswith(("_row", "_width")) else types[x]
        for x in kernel.arg_names
    }
    aligned = [n for n, x in enumerate(signature) if signature[x][0] == "*" or x.endswith(("_row", "_width"))]
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs={"DIFFERENTIATE": True, "BLOCK": _triton.BLOCK},
        attrs={(n,): [["tt.divisibility", 16]] for n in aligned},
    )
    return build(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": _triton.WARPS})


def read_stack(machine_code: bytes, folder: Path) -> int:
    """Bytes of a thread that lie in memory because registers ran out."""
    import triton

    assert triton.__file__
    file = folder / "kernel.cubin"
    file.write_bytes(machine_code)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    said = subprocess.run([tool, "--dump-resource-usage", file], capture_output=True, text=True, check=True).stdout
    stack, local = re.search(r"STACK:(\d+)", said), re.search(r"LOCAL:(\d+)", said)
    assert stack
    assert local
    return int(stack[1]) + int(local[1])


def _fail(*_: Any) -> None:
    raise RuntimeError("no C compiler\nat all")


@pytest.mark.parametrize("missing", [True, False])
def test_without_triton_or_a_compiler_one_line_says_so(
    missing: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if missing:
        monkeypatch.setitem(sys.modules, "triton", None)
        monkeypatch.delitem(sys.modules, "compress.objectives._triton", raising=False)
        monkeypatch.delattr(objectives, "_triton", raising=False)
    else:
        monkeypatch.setattr(kernels, "_import_triton", lambda: None)
        monkeypatch.setattr(torch, "ones", lambda *_, **__: torch.empty(1, 64))
        monkeypatch.setattr(kernels, "launch_divergence", _fail)
    kernels.are_working.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert [kernels.are_working() for _ in range(3)] == [False] * 3
    kernels.are_working.cache_clear()
    (line,) = caplog.messages
    assert ("triton is not installed" if missing else "(no C compiler)") in line
    assert line.endswith("install the triton version of this torch")


def test_a_cpu_never_asks_for_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "are_working", lambda: pytest.fail("triton was tried"))
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
