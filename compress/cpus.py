"""How many CPUs this process may use: its affinity mask and the CPU quota of its container (cgroup v1 and v2).

The libraries below us count the machine's processors, or the mask's, and know no quota: in a container with two CPUs of
sixty-four they would start 64 threads that the quota then stops in turn.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

THREADS = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "POLARS_MAX_THREADS")
"""Variables that give the number of threads of torch, numpy and pyarrow; of the tokenizers; of polars."""


@dataclass(frozen=True)
class Cpus:
    """total: of the machine.  affinity: on which this process may run.  quota: CPUs' worth of time; None: no limit."""

    total: int
    affinity: int
    quota: float | None

    @property
    def usable(self) -> int:
        """Threads that can compute at once; a part of a CPU counts as one, since its time would be lost otherwise."""
        return self.affinity if self.quota is None else max(1, min(self.affinity, math.ceil(self.quota)))

    def __str__(self) -> str:
        quota = "none" if self.quota is None else f"{round(self.quota, 2)}"
        return f"{self.usable} of {self.total} (quota {quota}, affinity {self.affinity})"


def read_cpus(root: Path = Path("/"), *, affinity: int | None = None, total: int | None = None) -> Cpus:
    """What the system allows. root: where /proc and /sys are.  affinity, total: in place of what Python reports."""
    total = total or os.cpu_count() or 1
    return Cpus(total, affinity or _count_affinity() or total, min(_quotas(root), default=None))


def prepare_threads(environ: MutableMapping[str, str], cpus: Cpus) -> None:
    """Tell the libraries that are loaded from now on: no more threads than `cpus` allow, and threads that wait for
    others sleep, where nothing else is set."""
    # By default they spin: beside one busy process, two threads then mostly keep each other from the processors.
    environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if cpus.usable < cpus.affinity:
        for name in THREADS:
            environ.setdefault(name, str(cpus.usable))


def share_cpus(workers: int, cpus: Cpus) -> int:
    """Threads of each of so many processes that compute at once."""
    return max(1, cpus.usable // workers)


def _count_affinity() -> int | None:
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on; knows -X cpu_count and PYTHON_CPU_COUNT too
        return os.process_cpu_count()  # pyright: ignore[reportAttributeAccessIssue]
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _quotas(root: Path) -> Iterator[float]:
    """Of the process's groups and all groups above them that can be seen from here."""
    own = dict(_groups(root))
    for kind, mounted, point in _mounts(root):
        if kind not in own:
            continue
        group = PurePosixPath(own[kind])
        # A container sees its own group as the mount's root, whatever path the host has for it.
        inside = group.relative_to(mounted).parts if group.is_relative_to(mounted) else ()
        if ".." in inside:
            inside = ()
        top = root / point.lstrip("/")
        for depth in range(len(inside) + 1):
            quota = _read_quota(top.joinpath(*inside[:depth]), kind)
            if quota is not None:
                yield quota


def _groups(root: Path) -> Iterator[tuple[str, str]]:
    """(kind, path) of the process's groups that may hold a CPU quota. kind: `cgroup` is v1, `cgroup2` v2."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, found, path = rest.partition(":")
        if found and number == "0" and not controllers:
            yield "cgroup2", path
        elif found and "cpu" in controllers.split(","):
            yield "cgroup", path


def _mounts(root: Path) -> Iterator[tuple[str, str, str]]:
    """(kind, the group that is mounted, where) of mounted hierarchies with CPU quotas."""
    for line in _lines(root / "proc/self/mountinfo"):
        left, found, right = line.partition(" - ")
        place, system = left.split(), right.split()
        if not found or len(place) < 5 or len(system) < 3:
            continue
        if system[0] == "cgroup2" or (system[0] == "cgroup" and "cpu" in system[2].split(",")):
            yield system[0], _unescape(place[3]), _unescape(place[4])


def _read_quota(folder: Path, kind: str) -> float | None:
    if kind == "cgroup2":
        words = " ".join(_lines(folder / "cpu.max")).split()
    else:
        words = [*_lines(folder / "cpu.cfs_quota_us"), *_lines(folder / "cpu.cfs_period_us")]
    with contextlib.suppress(ValueError):  # "max", or what we do not know
        quota, period = map(int, words)
        if quota > 0 and period > 0:
            return quota / period
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _unescape(word: str) -> str:
    """A path of mountinfo, where spaces, tabs, line ends and backslashes are octal numbers."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(code, char)
    return word
