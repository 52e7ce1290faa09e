"""`compress share` on a toy: convert, heal, measure; every family; what cannot be converted is told."""

from __future__ import annotations

import json
from pathlib import Path

import e2e_toy as toy
import pytest
from e2e_toy import PRETRAINED, TEACHER, Cli

from compress.modelfolder import folder as modelfolder

pytestmark = pytest.mark.thorough

SHARE = f"""
extends: share
description: sharing on a toy
data: {{max_length: 24}}
{toy.QUICK}
stages:
  1:
    training: {{epochs: null, steps: 4, batch_rows: 8, learning_rate: 1e-3, checkpoint_every: 2}}
"""
COMMAND = ("share", TEACHER, "--recipe", "./share.yaml", "--data", "data")


@pytest.fixture
def quick(taught: Path) -> Path:
    (taught / "share.yaml").write_text(SHARE, encoding="utf-8")
    return taught


def test_before_after_conversion_and_after_healing(quick: Path, compress: Cli) -> None:
    flags = ("--groups", "2", "--embedding-size", "8", "--residual-rank", "4", "--output", "runs/s")
    done = compress(*COMMAND, *flags, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert [(m["role"], m["name"]) for m in told["models"]] == [
        ("teacher", "teacher"), ("stage-0", "after conversion"), ("student", "s")
    ]  # fmt: skip
    before, converted, healed = (m["values"] for m in told["models"])
    assert before["size/disk_mb"] > converted["size/disk_mb"] == pytest.approx(healed["size/disk_mb"], rel=0.02)
    assert healed["speed/gflops"] >= before["speed/gflops"]
    assert "groups of layers: 0 1 | 2 3" in done.err
    made = modelfolder.inspect("runs/s/student")
    assert (made.family, made.stock_class, made.config.width) == ("bert", None, 8)
    assert made.config.sharing is not None
    assert made.config.sharing.residual_rank == 4
    texts = compress("predict", "runs/s/student", "she said the film was good")
    assert texts.code == 0, texts.err
    errors = json.loads(Path("runs/s/stages/0-share/embedding-error.json").read_text(encoding="utf-8"))
    assert errors["columns"][0] == "uses in the training text"


def test_without_healing_in_words(quick: Path, compress: Cli) -> None:
    flags = (
        "--pattern",
        "all",
        "--share-norms-and-biases",
        "--embedding-error",
        "0.2",
        "--no-recover",
        "--output",
        "runs/s",
    )
    done = compress(*COMMAND, *flags, "--set", "stages.0.residual_rank=0")
    assert done.code == 0, done.err
    assert "error of the factorized embeddings" in done.out + done.err
    assert modelfolder.inspect("runs/s/model").config.layer_groups == (0, 0, 0, 0)


def test_residuals_that_fade_out_while_healing(quick: Path, compress: Cli) -> None:
    flags = ("--groups", "2", "--residual-rank", "4", "--shrink-residuals", "--output", "runs/s", "--json")
    done = compress(*COMMAND, *flags)
    assert done.code == 0, done.err
    models = {m["role"]: m["values"] for m in json.loads(done.out)["models"]}
    assert models["student"]["size/params_m"] < models["stage-0"]["size/params_m"]
    converted, healed = (modelfolder.inspect(f"runs/s/{name}").config for name in ("stages/0-share/model", "student"))
    assert converted.sharing is not None
    assert converted.sharing.residual_rank == 4
    assert healed.sharing is not None
    assert healed.sharing.residual_rank == 0
    assert healed.sharing.attention == (0, 0, 1, 1)


PULL = f"""
extends: share-pull
description: layers drawn together on a toy
data: {{max_length: 24}}
{toy.QUICK}
stages:
  0:
    pull: {{weight: 1000.0}}
    training: {{epochs: null, steps: 12, batch_rows: 8, learning_rate: 1e-2, warmup: 0.0, schedule: constant}}
  2:
    training: {{epochs: null, steps: 2, batch_rows: 8, learning_rate: 1e-3}}
"""


def test_layers_are_drawn_together_before_they_merge(quick: Path, compress: Cli) -> None:
    (quick / "pull.yaml").write_text(PULL, encoding="utf-8")
    command = ("share", TEACHER, "--recipe", "./pull.yaml", "--data", "data", "--output", "runs/s")
    done = compress(*command, "--groups", "2", "--pattern", "cycle")
    assert done.code == 2
    assert "needs to know the groups before training" in done.line
    done = compress(*command, "--groups", "[[0], [1, 2], [3]]", "--json")
    assert done.code == 0, done.err
    figures = json.loads(done.out)["stages"]["0-distill"]
    assert figures["layers_apart"] < 0.8 * figures["layers_apart_before"]
    assert "distance between the layers to be tied" in done.err
    sharing = modelfolder.inspect("runs/s/student").config.sharing
    assert sharing is not None
    assert sharing.attention == (0, 1, 1, 2)


GENERAL = f"""
extends: share-general
description: healed on text, then on the task, on a toy
data: {{max_length: 24}}
corpus: {{max_length: 24}}
{toy.QUICK}
stages:
  1: {{training: {{steps: 2, batch_rows: 8}}}}
  2: {{training: {{epochs: null, steps: 2, batch_rows: 8}}}}
"""


def test_healed_on_text_and_then_on_the_task(quick: Path, compress: Cli) -> None:
    (quick / "general.yaml").write_text(GENERAL, encoding="utf-8")
    command = ("share", TEACHER, "--recipe", "./general.yaml", "--data", "data", "--corpus", "corpus.txt")
    flags = ("--groups", "2", "--residual-rank", "4", "--embedding-size", "8", "--output", "runs/s")
    done = compress(*command, *flags)
    assert done.code == 2
    assert "this teacher has none; add --general-teacher FOLDER, or use --recipe share" in done.line
    done = compress(*command, *flags, "--general-teacher", PRETRAINED, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    places = ("stages/0-share/model", "stages/1-distill/model", "student")
    found = [modelfolder.inspect(f"runs/s/{place}") for place in places]
    assert [set(info.heads) for info in found] == [{"mlm"}, {"mlm"}, {"task"}]
    assert found[0].config == found[1].config == found[2].config
    assert "the student's task head is copied from the teacher" in done.err
    assert [m["role"] for m in told["models"]] == ["teacher", "student"]  # the converted one has no head for the task
    done = compress(
        *command, *flags[:-1], "runs/t", "--general-teacher", PRETRAINED, "--no-recover", "--init", "fisher"
    )
    assert done.code == 0, done.err
    assert set(modelfolder.inspect("runs/t/model").heads) == {"mlm"}


@pytest.mark.parametrize("start", ["chosen", "fisher", "activation"])
def test_every_start_and_measured_groups(quick: Path, compress: Cli, start: str) -> None:
    flags = ("--pattern", "cka", "--groups", "2", "--init", start, "--no-recover", "--output", "runs/s")
    done = compress(*COMMAND, *flags)
    assert done.code == 0, done.err
    sharing = modelfolder.inspect("runs/s/model").config.sharing
    assert sharing is not None
    assert max(sharing.attention) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--groups", "[[0, 1]]"), "pattern.groups: the groups do not cover layers 2, 3"),
        (("--groups", "[[0, 1], [1, 2, 3]]"), "pattern.groups: the groups overlap: layer 1 is in two"),
        (("--groups", "5"), "5 groups of 4 layers; use 1..4"),
        (("--groups", "many"), "--groups many: neither a number nor a list of groups; e.g. --groups 3"),
        (("--pattern", "cycl"), "--pattern: unknown pattern 'cycl'; did you mean 'cycle'?"),
        (("--pattern", "all", "--groups", "2"), "--groups 2: pattern all has no number of groups; remove --groups"),
        (("--pattern", "cycle"), "--pattern cycle: needs a number of groups; add --groups N"),
        (("--init", "averag"), "--init: unknown start 'averag'"),
        (("--embedding-size", "4096"), "embedding.size: an embedding size of 4096: the product must be smaller"),
        (("--embedding-size", "0"), "--embedding-size 0: stages.0.embedding.size: found 0"),
        (("--embedding-size", "8", "--embedding-max-mb", "1"), "--embedding-size and --embedding-max-mb together"),
        (
            ("--residual-rank", "5000"),
            "--residual-rank 5000: residual rank 5000 is too large: the smallest matrix has rank",
        ),
        (("--residual-rank", "-1"), "--residual-rank -1: stages.0.residual_rank: found -1"),
        (
            ("--shrink-residuals", "--residual-rank", "0"),
            "--shrink-residuals: there are no residuals to shrink",
        ),
        (
            ("--shrink-residuals", "--residual-rank", "4", "--no-recover"),
            "--shrink-residuals: residuals shrink during recovery training; remove --no-recover",
        ),
        (("--recipe", "distilbert-task"), "--recipe: recipe distilbert-task has no share stage"),
    ],
)
def test_bad_input_in_one_line(quick: Path, compress: Cli, flags: tuple[str, ...], message: str) -> None:
    done = compress(*COMMAND, *flags, "--output", "runs/s")
    assert (done.code, done.out) == (2, ""), done.err
    assert message in done.line
    assert "Traceback" not in done.err
    assert not Path("runs/s").exists()


def test_a_model_that_shares_already(quick: Path, compress: Cli) -> None:
    done = compress(*COMMAND, "--groups", "2", "--no-recover", "--output", "runs/s", "--set", "stages.0.embedding=null")
    assert done.code == 0, done.err
    again = ("share", "runs/s/model", "--recipe", "./share.yaml", "--data", "data", "--groups", "1", "--no-recover")
    done = compress(*again, "--output", "runs/t", "--set", "stages.0.embedding=null")
    assert done.code == 2
    assert "this model already shares layers: its groups are 0 1 | 2 3" in done.line
    done = compress(
        *again, "--output", "runs/t", "--set", "stages.0.embedding=null", "--set", "stages.0.reuse_input=true"
    )  # fmt: skip
    assert done.code == 0, done.err
