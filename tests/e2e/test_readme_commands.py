"""The README's commands for a model and data of one's own, as they stand there, on a toy model and toy data."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from e2e_toy import ROOT, Cli

BLOCK = next(
    text
    for text in re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    if "compress evaluate" in text
)
COMMANDS = [line.partition(" #")[0].strip() for line in BLOCK.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.thorough
def test_they_work_one_after_the_other(own_model: Path, compress: Cli) -> None:
    assert len(COMMANDS) >= 3
    assert "--unlabelled TEXT" in COMMANDS[0]
    Path("more.txt").write_text("she said the film was very good\nnobody said the meal was bad\n")
    for line in COMMANDS:
        words = shlex.split(line.replace("FOLDER", "mine").replace("DATA", "data").replace("TEXT", "more.txt"))
        assert words[0] == "compress"
        done = compress(*words[1:])
        assert done.code == 0, f"{line}\n{done.err}"
        assert done.out
