"""Commands that compute with a model end well on the simulated device, where tensors of two devices do not mix."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import run_script


@pytest.mark.thorough
def test_commands_end_well(tmp_path: Path) -> None:
    found = run_script("commands.py", str(tmp_path))
    assert {command: said for command, (code, said) in found.items() if code != 0} == {}
    assert len(found) > 10
    (distilled,) = (said for command, (_, said) in found.items() if command.startswith("distill"))
    assert "distill: 3 of 6 steps were replayed as CUDA graphs" in distilled
