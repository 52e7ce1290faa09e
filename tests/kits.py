"""A kit in a process of its own, in which neither torch nor mlflow can be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ABSENT = ("torch", "mlflow", "click", "pydantic", "rich", "tokenizers", "safetensors", "onnx", "yaml", "scipy")
"""Nor these."""
PROGRAM = """
import runpy, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ImportError(f"{{name}} is not installed", name=name)

sys.meta_path.insert(0, Hidden())
sys.path[:] = [path for path in sys.path if path != {root!r}]
sys.argv = {argv!r}
sys.path.insert(0, sys.argv[0])
from evaluation.cost import least
least.PATIENCE = 0.2
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_kit(kit: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run it in its folder; it waits for a quiet machine no longer than commands do in tests."""
    root = str(Path(__file__).parents[1])
    text = PROGRAM.format(hidden=ABSENT, root=root, argv=[str(kit), *args])
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=kit.parent, timeout=300)
