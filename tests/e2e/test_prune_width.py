"""`compress prune-width` through the real command line, at toy scale."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from e2e_toy import QUICK, Cli

from compress.modelfolder.folder import inspect
from compress.storage import atomic

RECIPE = f"""
extends: prune-width
description: cut a toy
data: {{max_length: 24}}
{QUICK}
stages:
  0: {{rows: 48}}
  1: {{training: {{epochs: null, steps: 2, batch_rows: 8, learning_rate: 1e-3}}}}
"""


@pytest.fixture
def prune(own_model: Path, compress: Cli) -> Cli:
    """`compress prune-width mine …` on the toy data."""
    Path("cut.yaml").write_text(RECIPE, encoding="utf-8")

    def run(*args: str | Path):
        return compress("prune-width", "mine", "--recipe", "./cut.yaml", "--data", "data", "--threads", "1", *args)

    return run


def test_cut_recover_and_measure(prune: Cli) -> None:
    whole = inspect("mine").config
    done = prune("--keep", "0.5", "--non-uniform")
    assert done.code == 0, done.err
    header = next(line for line in done.out.splitlines() if "after cutting" in line)
    assert header.split() == ["teacher", "after", "cutting", "cut"]
    assert re.search(
        r"before recovery training: KL divergence to the parent: [\d.e-]+ nats, on 16 validation", done.err
    )
    student, middle = Path("runs/cut/student"), Path("runs/cut/stages/0-prune_width")
    config = inspect(student).config
    assert config == inspect(middle / "model").config
    assert config.count_parameters() < whole.count_parameters()
    assert len(set(config.layers)) > 1, "each layer has its own numbers"
    assert atomic.verify_folder(student) == []
    rows = json.loads((middle / "widths.json").read_text(encoding="utf-8"))
    assert len(rows["data"]) == whole.depth
    kept = json.loads((middle / "kept.json").read_text(encoding="utf-8"))
    assert [len(x) for x in kept["heads"]] == [s.heads for s in config.layers]
    assert {p.role for p in inspect(middle / "model").meta.lineage} == {"parent"}
