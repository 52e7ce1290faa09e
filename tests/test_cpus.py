"""How many CPUs a process may use, from the files of made-up containers."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compress.cpus import THREADS, Cpus, prepare_threads, read_cpus

V2 = "30 23 0:26 {root} {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "32 31 0:29 {root} {point} rw,relatime - cgroup cgroup rw,cpu,cpuacct"
OTHER = "24 1 8:1 / / rw - ext4 /dev/sda1 rw\n33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def make(top: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": groups, "proc/self/mountinfo": OTHER + mounts, **files}.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return top


def mount(form: str, point: str, root: str = "/") -> str:
    return form.format(root=root, point=point)


CASES = {
    "v2, in a container": ("0::/", mount(V2, "/sys/fs/cgroup"), {"sys/fs/cgroup/cpu.max": "200000 100000"}, 2.0),
    "v2, no limit": ("0::/", mount(V2, "/sys/fs/cgroup"), {"sys/fs/cgroup/cpu.max": "max 100000"}, None),
    "v2, the group above is smaller": (
        "0::/user.slice/job/part",
        mount(V2, "/sys/fs/cgroup"),
        {
            "sys/fs/cgroup/user.slice/cpu.max": "max 100000",
            "sys/fs/cgroup/user.slice/job/cpu.max": "150000 100000",
            "sys/fs/cgroup/user.slice/job/part/cpu.max": "400000 100000",
        },
        1.5,
    ),
    "v2, the host's path, its group mounted": (
        "0::/docker/abc",
        mount(V2, "/sys/fs/cgroup", "/docker/abc"),
        {"sys/fs/cgroup/cpu.max": "50000 100000"},
        0.5,
    ),
    "v2, a group beside the namespace": (
        "0::/../other",
        mount(V2, "/sys/fs/cgroup"),
        {"sys/fs/cgroup/cpu.max": "300000 100000"},
        3.0,
    ),
    "v1": (
        "4:memory:/x\n3:cpu,cpuacct:/docker/abc\n0::/",
        mount(V1, "/sys/fs/cgroup/cpu,cpuacct"),
        {
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "250000",
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
        2.5,
    ),
    "v1, the host's path is not to be seen": (
        "3:cpu,cpuacct:/docker/abc",
        mount(V1, "/sys/fs/cgroup/cpu"),
        {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
        1.0,
    ),
    "v1 and v2 together: the smaller": (
        "3:cpu:/\n0::/",
        mount(V1, "/sys/fs/cgroup/cpu") + "\n" + mount(V2, "/sys/fs/cgroup/unified"),
        {
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/unified/cpu.max": "300000 100000",
        },
        3.0,
    ),
    "a folder with a space": ("0::/", mount(V2, "/my\\040groups"), {"my groups/cpu.max": "200000 100000"}, 2.0),
    "cpuset is not cpu": ("3:cpuset:/", mount(V1, "/x").replace("cpu,", "cpuset,"), {"x/cpu.max": "1 1"}, None),
    "nonsense": ("what\n::\n0::", "- - -\n \n1 - cgroup2", {"sys/fs/cgroup/cpu.max": "1 2 3"}, None),
    "nonsense in the file": ("0::/", mount(V2, "/sys/fs/cgroup"), {"sys/fs/cgroup/cpu.max": "many few"}, None),
    "a period of nothing": ("0::/", mount(V2, "/sys/fs/cgroup"), {"sys/fs/cgroup/cpu.max": "100 0"}, None),
    "an empty file": ("0::/", mount(V2, "/sys/fs/cgroup"), {"sys/fs/cgroup/cpu.max": ""}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_quota_is_read(case: str, tmp_path: Path) -> None:
    groups, mounts, files, quota = CASES[case]
    found = read_cpus(make(tmp_path, groups, mounts, files), affinity=8, total=16)
    assert found == Cpus(16, 8, quota)
    assert found.usable == (8 if quota is None else math.ceil(quota))


def test_a_system_without_such_files_has_no_quota(tmp_path: Path) -> None:
    assert read_cpus(tmp_path, affinity=3, total=4) == Cpus(4, 3, None)


@pytest.mark.parametrize(
    ("cpus", "usable", "text"),
    [
        (Cpus(8, 8, 2.0), 2, "2 of 8 (quota 2.0, affinity 8)"),
        (Cpus(8, 1, 2.0), 1, "1 of 8 (quota 2.0, affinity 1)"),
        (Cpus(8, 4, None), 4, "4 of 8 (quota none, affinity 4)"),
        (Cpus(8, 8, 0.25), 1, "1 of 8 (quota 0.25, affinity 8)"),
        (Cpus(8, 8, 64.0), 8, "8 of 8 (quota 64.0, affinity 8)"),
    ],
)
def test_the_smaller_of_both_counts(cpus: Cpus, usable: int, text: str) -> None:
    assert (cpus.usable, str(cpus)) == (usable, text)


def test_libraries_are_told_of_a_quota_and_what_a_person_set_stays() -> None:
    environ = {"OMP_NUM_THREADS": "7"}
    prepare_threads(environ, Cpus(8, 8, 2.0))
    assert environ == {"OMP_WAIT_POLICY": "PASSIVE", **dict.fromkeys(THREADS, "2"), "OMP_NUM_THREADS": "7"}
    environ = {"OMP_WAIT_POLICY": "ACTIVE"}
    prepare_threads(environ, Cpus(8, 4, None))
    assert environ == {"OMP_WAIT_POLICY": "ACTIVE"}, "without a quota the libraries count right"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux")
def test_the_mask_of_the_process_counts() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); from compress.cpus import read_cpus"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(read_cpus().affinity)"], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
