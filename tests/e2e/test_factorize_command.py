"""`compress factorize` on a toy: split, heal, measure; what cannot be met is told before anything is made."""

from __future__ import annotations

import json
from pathlib import Path

import e2e_toy as toy
import pytest
from e2e_toy import TEACHER, Cli
from example_counts import thorough_but

from compress.modelfolder import folder as modelfolder

RECIPE = f"""
extends: factorize
description: low-rank factors on a toy
data: {{max_length: 24}}
{toy.QUICK}
stages:
  1:
    training: {{epochs: null, steps: 4, batch_rows: 8, learning_rate: 1e-3, checkpoint_every: 2}}
"""
COMMAND = ("factorize", TEACHER, "--recipe", "./thin.yaml", "--data", "data")


@pytest.fixture
def quick(taught: Path) -> Path:
    (taught / "thin.yaml").write_text(RECIPE, encoding="utf-8")
    return taught


@pytest.mark.thorough
def test_split_and_healed(quick: Path, compress: Cli) -> None:
    done = compress(*COMMAND, "--keep", "0.6", "--output", "runs/f", "--json")
    assert done.code == 0, done.err
    roles = {m["role"]: m["values"] for m in json.loads(done.out)["models"]}
    assert roles["teacher"]["size/params_m"] > roles["stage-0"]["size/params_m"] == roles["student"]["size/params_m"]
    made = modelfolder.inspect("runs/f/student")
    assert (made.family, made.stock_class) == ("bert", None)
    assert any(shape.ranks for shape in made.config.layers)
    texts = compress("predict", "runs/f/student", "she said the film was good")
    assert texts.code == 0, texts.err
    again = compress("factorize", "runs/f/student", "--recipe", "./thin.yaml", "--data", "data", "--no-recover")
    assert again.code == 2
    assert "low-rank factors already" in again.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--max-mb", "0.001"), "0.001 MB cannot be met by low rank alone"),
        (("--max-mb", "5000"), "5000 MB is more than the model needs"),
        (("--rank", "60000"), "rank 60000 does not make any matrix smaller"),
        (("--keep", "0.0001"), "with rank 1 everywhere the size is"),
    ],
)
def test_what_cannot_be_met(flags: tuple[str, ...], message: str, quick: Path, compress: Cli) -> None:
    done = compress(*COMMAND, *flags, "--no-recover", "--output", "runs/none")
    assert done.code == 2, done.out
    assert message in done.err
    assert "Traceback" not in done.err
    assert not Path("runs/none/model").exists()


@pytest.mark.parametrize("method", thorough_but(["svd"], ["svd", "fwsvd", "asvd"]))
def test_every_method_from_the_command_line(method: str, quick: Path, compress: Cli) -> None:
    flags = ("--method", method, "--allocation", "uniform", "--no-recover", "--output", f"runs/{method}")
    done = compress(*COMMAND, *flags)
    assert done.code == 0, done.err
    assert "rank of each matrix" in done.out + done.err
