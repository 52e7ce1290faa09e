"""Builds and loads the shim that lets a build of torch without CUDA name the device cuda:0. Imports no torch."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.cpp")


def find_compiler() -> str | None:
    """g++, or None."""
    return shutil.which("g++")


def build() -> Path:
    """The compiled shim, from the cache where this source was built against this torch before.

    A lock file lets one of several test processes build while the others wait. Raises CalledProcessError.
    """
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations
    root = Path(next(iter(spec.submodule_search_locations)))
    parts = (SOURCE.read_bytes(), importlib.metadata.version("torch").encode(), str(root).encode())
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]
    folder = Path(tempfile.gettempdir()) / f"compress-simcuda-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    built = folder / f"{digest}.so"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            unfinished = built.with_suffix(".part")
            subprocess.run(_command(root, unfinished), check=True, capture_output=True)
            unfinished.rename(built)
    return built


def load() -> None:
    """Load the shim into this process, which must not have imported torch yet."""
    if "torch" in sys.modules:
        raise RuntimeError("the simulated device must be loaded before torch is imported")
    ctypes.CDLL(str(build()), mode=ctypes.RTLD_GLOBAL)


def _command(root: Path, output: Path) -> list[str]:
    compiler = find_compiler()
    assert compiler is not None
    include, lib = root / "include", root / "lib"
    return [
        *(compiler, "-std=c++20", "-O0", "-fPIC", "-shared", str(SOURCE), "-o", str(output)),
        *(f"-I{include}", f"-I{include}/torch/csrc/api/include"),
        *(f"-L{lib}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{lib}"),
    ]
