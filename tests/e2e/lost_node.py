"""A command on a simulated Ray cluster: a head without CPUs, and two nodes of one CPU, all on this machine."""

from __future__ import annotations

import os
import subprocess
import sys

_SCRIPT = """
import os, subprocess, sys, time
from pathlib import Path
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
command = subprocess.Popen([sys.executable, "-m", "compress", *sys.argv[2:], "--on", "ray"],
                           env={**os.environ, "RAY_ADDRESS": cluster.address})
while command.poll() is None and not list(Path().glob(sys.argv[1])):
    time.sleep(0.05)
assert command.poll() is None, "it ended before the node was lost"
cluster.remove_node(nodes[0], allow_graceful=False)
code = command.wait()
cluster.shutdown()
sys.exit(code)
"""


def run_losing_a_node(sign: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`compress WORDS --on ray`, of which one node is lost as soon as a file matches the pattern `sign`."""
    return subprocess.run(
        [sys.executable, "-c", _SCRIPT, sign, *words], capture_output=True, text=True,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **environ},
    )  # fmt: skip
