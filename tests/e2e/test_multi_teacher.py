"""Several teachers through the real command line: told, measured, kept in lineage and store; wrong ones in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from e2e_toy import TASK, Cli, Server, sha

from compress.storage import safe
from compress.tracking import Store

TOY = TASK.replace("data:", "teacher: null\nteachers: [{model: mine, weight: 2}, {model: other}]\ndata:")
BOTH = ("--teacher", "mine", "--teacher", "other")
RUN = ("distill", "--recipe", "./task.yaml", "--data", "data", "--output", "runs/s")


@pytest.fixture
def two(own_model: Path, other_model: Path, work: Path) -> Path:
    """A working folder with two teachers whose labels stand in different orders."""
    (work / "several.yaml").write_text(TOY, encoding="utf-8")
    return work


@pytest.mark.store
def test_each_and_all_together_are_measured_and_remembered(two: Path, compress: Cli) -> None:
    before = {name: sha(two / name / "compress.json") for name in ("mine", "other")}
    done = compress(*RUN, "--recipe", "./several.yaml", "--set", "stages.0.control=true", "--json")
    assert done.code == 0, done.err
    assert "2 teachers, mean of logits: mine x 0.667 (its layers are compared), other x 0.333" in done.err
    notes = json.loads(done.out)["notes"]
    assert notes[0].startswith("teacher ensemble: 2 teachers, mean of logits: mine x 0.667 (its layers are compared)")
    told = {m["role"]: m for m in json.loads(done.out)["models"]}
    assert list(told) == ["teacher", "teacher-1", "teacher-2", "student", "control"]
    together, first, second, student = list(told.values())[:4]
    assert together["folder"] is None
    assert [m["name"] for m in together["members"]] == ["mine", "other"]
    assert [m["weight"] for m in together["members"]] == pytest.approx([2 / 3, 1 / 3])
    for name in ("size/params_m", "size/disk_mb", "speed/gflops"):
        assert together["values"][name] == pytest.approx(first["values"][name] + second["values"][name])
    assert "vs_teacher/accuracy_difference" in student["values"]
    assert "vs_teacher/accuracy_difference" in second["values"], "each is compared with all together"

    meta = safe.read_json(two / "runs/s/student/compress.json")
    roles = ["teacher 1 of 2, weight 0.667", "teacher 2 of 2, weight 0.333"]
    assert [(p["role"], p["name"]) for p in meta["lineage"]] == list(zip(roles, ("mine", "other")))
    assert {name: sha(two / name / "compress.json") for name in before} == before, "nothing is written into a teacher"

    client = Store(f"sqlite:///{two / 'mlruns' / 'mlflow.db'}").client()
    experiment = client.get_experiment_by_name("compress")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    main = next(r for r in runs if r.data.tags["compress.role"] == "student")
    assert main.data.params["teachers"].startswith("2 teachers, mean of logits: mine x 0.667")
    teachers = [r for r in runs if r.data.tags["compress.role"] == "teacher"]
    assert len(teachers) == 3
    assert sum("quality/accuracy" in r.data.metrics for r in teachers) == 3


@pytest.mark.thorough
def test_the_order_of_a_teachers_labels_changes_nothing(two: Path, compress: Cli) -> None:
    """`other` alone in its own order, and beside `mine`: as one teacher of weight nearly 1 it teaches the same."""
    alone = compress(*RUN, "--teacher", "other", "--set", "stages.0.student.layers=[0, 2]", "--json")
    assert alone.code == 0, alone.err
    words = ("--set", "teachers=[{model: other, weight: 1e9}, {model: mine}]", "--set", "teacher=null")
    both = compress(*RUN, *words, "--set", "stages.0.student.layers=[0, 2]", "--json", "--output", "runs/t")
    assert both.code == 0, both.err
    scores = [
        next(m for m in json.loads(d.out)["models"] if m["role"] == "student")["values"]["quality/accuracy"]
        for d in (alone, both)
    ]
    assert scores[0] == scores[1]


@pytest.mark.thorough
def test_the_named_teachers_layers_and_labels_count(two: Path, compress: Cli) -> None:
    words = ("--set", "teacher=null", "--set", "teachers=[{model: mine}, {model: other, layers: true}]")
    objectives = ("--set", "stages.0.objectives=[{kind: hidden_mse}, {kind: soft_targets}]")
    done = compress(*RUN, *words, *objectives, "--set", "combine=probabilities")
    assert done.code == 0, done.err
    assert "2 teachers, mean of probabilities: mine x 0.5, other x 0.5 (its layers are compared)" in done.err
    assert "compared layers (uniform): 0 with 1, 1 with 2" in done.err, "of the three layers of `other`"
    meta = safe.read_json(two / "runs/s/student/compress.json")
    assert meta["label_names"] == ["positive", "negative"]


@pytest.mark.thorough
def test_a_stopped_run_goes_on_and_another_teacher_is_refused(two: Path, server: Server, compress: Cli) -> None:
    words = ("distill", "--recipe", "./several.yaml", "--data", "data", "--quiet", "--output")
    assert server.run(two, *words, "runs/whole").code == 0
    assert server.run(two, *words, "runs/cut", signal_at=(4, "SIGTERM")).code == 75
    shutil.move(two / "other", two / "kept")
    shutil.copytree(two / "mine", two / "other")
    done = compress(*words, "runs/cut", "--resume")
    assert (done.code, "teachers mine and other are the same model" in done.err) == (2, True)
    shutil.rmtree(two / "other")
    shutil.move(two / "kept", two / "other")
    assert server.run(two, *words, "runs/cut", "--resume").code == 0
    assert sha(two / "runs/cut/student/model.safetensors") == sha(two / "runs/whole/student/model.safetensors")


def test_a_dry_run_tells_who_teaches(two: Path, compress: Cli) -> None:
    done = compress(*RUN, *BOTH, "--set", "teachers.1.weight=3", "--dry-run")
    assert done.code == 0, done.err
    assert "mine x 0.25 (its layers are compared), other x 0.75" in done.out
    done = compress("distill", "--recipe", "multi-teacher", "--dry-run")
    assert done.code == 0, done.err
    assert "loss 1 soft_targets + 0.5 hard_labels; until validation accuracy stops rising (" in done.out
    assert done.out.endswith(
        "32 rows a step, learning rate by the hidden size of the encoder, texts of up to 64 tokens\n"
    )
    assert "teacher: recipe teacher\nteacher: recipe teacher, seed 1\n" in done.out


BAD = {
    "one for several": (
        ("--recipe", "multi-teacher", "--teacher", "mine"),
        "error: --teacher mine: teacher: teacher ('mine') and teachers are both set; give --teacher twice or more, "
        "or set teachers to null",
    ),
    "one in a list": (
        ("--set", "teachers=[{model: mine}]", "--set", "teacher=null"),
        "error: --set teachers=[{model: mine}]: teachers: found 1; list two or more teachers, or set "
        "`teacher` for a single one",
    ),
    "none in a list": (
        ("--set", "teachers=[]", "--set", "teacher=null"),
        "error: --set teachers=[]: teachers: found 0; list two or more teachers, or set `teacher` for a single one",
    ),
    "twice": (
        ("--teacher", "mine", "--teacher", "mine"),
        "error: --teacher mine --teacher mine: teachers: 'mine' is listed twice; give it a larger weight instead",
    ),
    "twice by two names": (
        ("--teacher", "mine", "--teacher", "./mine"),
        "error: teacher ./mine: teachers mine and ./mine are the same model; use another teacher, or give this one a "
        "larger weight",
    ),
    "no weight": (
        (*BOTH, "--set", "teachers.0.weight=0"),
        "error: --set teachers.0.weight=0: teachers.0.weight: found 0, allowed: > 0",
    ),
    "a weight below 0": (
        (*BOTH, "--set", "teachers.1.weight=-1"),
        "error: --set teachers.1.weight=-1: teachers.1.weight: found -1, allowed: > 0",
    ),
    "two leads": (
        ("--set", "teacher=null", "--set", "teachers=[{model: mine, layers: true}, {model: other, layers: true}]"),
        "teachers: layers: true is set for several teachers; set it for one of them",
    ),
    "combine": (
        ("--teacher", "mine", "--set", "combine=logits"),
        "error: --set combine=logits: combine: combine needs several teachers; remove it, or set `teachers`",
    ),
    "another combine": ((*BOTH, "--set", "combine=logit"), "did you mean 'logits'?"),
    "not there": (("--teacher", "mine", "--teacher", "othr"), "model folder 'othr' not found; did you mean 'other'?"),
    "a key": (
        ("--set", "teacher=null", "--set", "teachers=[{model: mine, wieght: 1}, {model: other}]"),
        "teachers.0.wieght: unknown key; did you mean 'weight'?",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_wrong_teachers_are_told_in_one_line(case: tuple[tuple[str, ...], str], two: Path, compress: Cli) -> None:
    words, line = case
    done = compress(*RUN, *words)
    assert (done.code, done.out) == (2, ""), done.err
    assert done.line.endswith(line), done.line
    assert not (two / "runs/s").exists()
