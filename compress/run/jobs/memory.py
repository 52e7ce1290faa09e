"""Memory of jobs: how much one is given on a cluster, and whether the kernel killed one because there was none left."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

LEAST_BYTES = 1 << 30
"""Of a job, beside the weights of its models: libraries, rows and activations. A process of this program takes 0.4 to
2 GB (benchmarks/RESULTS.md)."""
_WEIGHTS = (".safetensors", ".onnx", ".bin")
_COUNTS = Path("/proc/vmstat")


def estimate_bytes(paths: Iterable[str], copies: int) -> int:
    """Memory to ask for: so many copies of all weights in these folders, and LEAST_BYTES."""
    folders = [path for path in map(Path, paths) if path.is_dir()]
    files = {file.resolve() for folder in folders for file in folder.glob("*") if file.suffix in _WEIGHTS}
    return LEAST_BYTES + copies * sum(file.stat().st_size for file in files)


def count_kills() -> int | None:
    """Processes that this machine's kernel has killed because memory ran out; None where it does not say."""
    try:
        lines = _COUNTS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


class KillWatch:
    """Tells whether the kernel has killed a process of this machine since it was last asked."""

    def __init__(self) -> None:
        self._before = count_kills()

    def has_killed(self) -> bool:
        """False also where the kernel does not say."""
        before, self._before = self._before, count_kills()
        return before is not None and self._before is not None and self._before > before
