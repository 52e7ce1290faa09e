"""How much code of products torch and oneDNN keep: with their own 1024, rows of all lengths fill hundreds of MB."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NAMES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


@pytest.mark.parametrize(("given", "kept"), [(None, "64"), ("7", "7")])
def test_few_are_kept_unless_somebody_says_otherwise(given: str | None, kept: str) -> None:
    env = {name: value for name, value in os.environ.items() if name not in NAMES}
    env |= {} if given is None else dict.fromkeys(NAMES, given)
    code = f"import compress, os; print(*[os.environ[name] for name in {NAMES}])"
    done = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == [kept, kept]
