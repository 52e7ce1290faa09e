"""`compress run share-sweep` on a toy: a run for each combination, under one parent, and the picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import e2e_toy as toy
import pytest
from e2e_toy import TEACHER, Cli

from compress.tracking import Store

pytestmark = pytest.mark.thorough

SWEEP = f"""
extends: share-sweep
description: a grid on a toy
data: {{max_length: 24}}
{toy.QUICK}
sweep: null
stages:
  0: {{residual_rank: 0}}
  1: {{training: {{epochs: null, steps: 2, batch_rows: 8, learning_rate: 1e-3}}}}
"""
GRID = "sweep={stages.0.pattern.groups: [2, 1], stages.0.embedding.size: [8, 4]}"


@pytest.mark.store
def test_four_runs_under_one_parent(taught: Path, compress: Cli) -> None:
    (taught / "grid.yaml").write_text(SWEEP, encoding="utf-8")
    command = ("run", "./grid.yaml", "--set", f"teacher={TEACHER}", "--data", "data", "--set", GRID)
    done = compress(*command, "--dry-run")
    assert done.out.splitlines() == [
        f"would run groups-{g}_size-{e}" for g in (2, 1) for e in (8, 4)
    ]  # fmt: skip
    done = compress(*command, "--output", "runs/grid", "--json")
    assert done.code == 0, done.err
    combinations = [tuple(run["sweep"].values()) for run in json.loads(done.out)["runs"]]
    assert combinations == [(2, 8), (2, 4), (1, 8), (1, 4)]
    picture = (taught / "runs/grid/summary/sweep.svg").read_text(encoding="utf-8")
    assert "groups 2" in picture
    assert "groups 1" in picture
    client: Any = Store(f"sqlite:///{taught / 'mlruns/mlflow.db'}").client()
    runs = client.search_runs([client.get_experiment_by_name("compress").experiment_id])
    (parent,) = [r for r in runs if r.info.run_name == "grid, 4 runs"]
    children = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(r.info.run_name for r in children) == sorted(
        f"grid/groups-{g}_size-{e}" for g in (2, 1) for e in (8, 4)
    )
    values = {(r.data.params["stages.0.pattern.groups"], r.data.params["stages.0.embedding.size"]) for r in children}
    assert values == {("2", "8"), ("2", "4"), ("1", "8"), ("1", "4")}


def test_a_grid_without_values_is_told(taught: Path, compress: Cli) -> None:
    (taught / "grid.yaml").write_text(SWEEP, encoding="utf-8")
    done = compress("run", "./grid.yaml", "--data", "data", "--set", "sweep={stages.0.pattern.groups: []}")
    assert done.code == 2
    assert "stages.0.pattern.groups has no values" in done.line
