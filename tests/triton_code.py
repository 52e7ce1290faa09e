"""Triton kernels without a GPU: their numbers by the interpreter, their machine code."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from compress.encoder.kernels.working import OPTIONS

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
VECTORS = ("ld.global.v4.b32", "st.global.v4.b32")
"""Of 16 bytes."""


def run_interpreted(script: Path) -> Any:
    """What a script of kernels by the interpreter prints last, as JSON."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def compile_kernel(
    kernel: Any, types: Mapping[str, str], constants: Mapping[str, Any], aligned: Sequence[str], *, warps: int,
    capability: int,
) -> Any:  # fmt: skip
    """aligned: arguments that are multiples of 16, beside all pointers."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as build

    signature = {x: "constexpr" if x.isupper() else types[x] for x in kernel.arg_names}
    multiples = [n for n, x in enumerate(signature) if signature[x][0] == "*" or x in aligned]
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs=dict(constants),
        attrs={(n,): [["tt.divisibility", 16]] for n in multiples},
    )
    return build(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps, **OPTIONS})


def list_single_accesses(made: Any) -> list[str]:
    """Loads and stores of less than 16 bytes, of a kernel that has some of 16."""
    code = made.asm["ptx"]
    assert all(instruction in code for instruction in VECTORS), code
    return [x for x in re.findall(r"(?:ld|st)\.global\S*", code) if x not in VECTORS]


def read_stack(made: Any, folder: Path) -> int:
    """Bytes of a thread that lie in memory because registers ran out."""
    import triton

    assert triton.__file__
    file = folder / "kernel.cubin"
    file.write_bytes(made.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    said = subprocess.run([tool, "--dump-resource-usage", file], capture_output=True, text=True, check=True).stdout
    stack, local = re.search(r"STACK:(\d+)", said), re.search(r"LOCAL:(\d+)", said)
    assert stack
    assert local
    return int(stack[1]) + int(local[1])
