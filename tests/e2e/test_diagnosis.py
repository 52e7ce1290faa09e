"""Findings and `compress distill --check` through the real command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_toy import DISTILL, PRETRAINED, TEACHER, Cli, Server, copy_folder, sha

from compress.tracking import Store

RANDOM = "stages.0.student={layers: [0, 2], init: random}"
KNOWS = tuple("runs/knows/model" if word == TEACHER else word for word in DISTILL)
LEARNS = ("--set", "stages.0.training.learning_rate=5e-3", "--set", "stages.0.training.batch_rows=32")


@pytest.fixture(scope="module")
def schooled(made: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a teacher that is right on every row: its last weights, since the best on few validation
    rows may be early ones that are not, by chance of rounding on another processor. Not to be changed."""
    folder = tmp_path_factory.mktemp("schooled") / "work"
    copy_folder(made, folder)
    values = ("epochs=40", "learning_rate=3e-3", "batch_rows=16", "keep_best=false")
    done = server.run(
        folder, "finetune", "--model", PRETRAINED, "--data", "data", "--output", "runs/knows", "--quiet",
        *(word for value in values for word in ("--set", f"stages.0.training.{value}")),
    )  # fmt: skip
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def knowing(schooled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This test's working folder, in which there is a good teacher."""
    folder = tmp_path / "work"
    copy_folder(schooled, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.store
def test_a_finding_is_told_kept_and_shown(taught: Path, compress: Cli) -> None:
    done = compress(*DISTILL, "--set", RANDOM, "--output", "runs/s")
    assert done.code == 0, done.err
    line = "the student starts from random weights in all layers, as the recipe says; student.init: teacher copies"
    assert f"finding: {line}" in done.err
    assert done.err.index("finding:") < done.err.index("0-distill 1/6"), "before the first step"
    assert f"finding  0-distill: {line}" in done.out

    table = json.loads((taught / "runs/s/stages/0-distill/findings.json").read_text(encoding="utf-8"))
    assert table["columns"] == ["step", "check", "finding", "do"]
    assert [row[:2] for row in table["data"] if row[1] == "random_student"] == [[0, "random_student"]]
    client = Store(f"sqlite:///{taught / 'mlruns' / 'mlflow.db'}").client()
    experiment = client.get_experiment_by_name("compress")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], "run_name = 's'")
    assert run.data.tags["compress.finding.random_student"].startswith(line)
    shown = {row["path"] for row in json.loads(run.data.tags["mlflow.loggedArtifacts"])}
    assert shown == {"findings.json", "churn.json", "slices.json"}
    assert shown <= {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    curves = {key for key in run.data.metrics if key.startswith("val/")}
    assert curves >= {"val/agreement", "val/kl", "val/probe_loss", "val/probe/soft_targets", "val/probe/hard_labels"}

    again = compress(*DISTILL, "--set", RANDOM, "--output", "runs/s", "--resume", "--json")
    assert again.code == 0, again.err
    assert "random_student" in {row["check"] for row in json.loads(again.out)["findings"]}


@pytest.mark.thorough
def test_looking_on_changes_no_weight(taught: Path, compress: Cli) -> None:
    assert compress(*DISTILL, "--output", "runs/on").code == 0
    done = compress(*DISTILL, "--set", "stages.0.checks=off", "--output", "runs/off")
    assert done.code == 0, done.err
    assert not (taught / "runs/off/stages/0-distill/findings.json").exists()
    assert sha(taught / "runs/on/student/model.safetensors") == sha(taught / "runs/off/student/model.safetensors")


@pytest.mark.thorough
def test_a_teacher_whose_labels_are_crossed_teaches_nobody(knowing: Path, compress: Cli) -> None:
    """A teacher that knows the task, under the wrong names."""
    for split in ("train", "validation", "test"):
        rows = [json.loads(line) for line in (knowing / f"data/{split}.jsonl").read_text().splitlines()]
        swapped = {"positive": "negative", "negative": "positive"}
        lines = [json.dumps({**row, "label": swapped[row["label"]]}) + "\n" for row in rows]
        (knowing / f"data/{split}.jsonl").write_text("".join(lines))
    done = compress(*KNOWS, "--output", "runs/s")
    assert (done.code, done.out) == (2, ""), done.out
    assert done.line == (
        "error: check label_order: the label orders of teacher and data differ: 'negative' rows get "
        "'positive', 'positive' rows get 'negative'; the teacher is right on 0.0 % of 16 validation rows in the "
        "current order, on 100.0 % in this one; correct id2label in the teacher's config.json to positive, "
        "negative, or continue anyway with "
        "--set 'stages.*.checks=warn'"
    )
    assert not (knowing / "runs/s").exists()
    done = compress(*KNOWS, "--output", "runs/s", "--set", "stages.*.checks=warn")
    assert done.code == 0, done.err
    assert "finding: the label orders of teacher and data differ" in done.err
    done = compress(*KNOWS, "--check")
    assert done.code == 3
    assert "the label orders of teacher and data differ" in done.line


# --- the check ----------------------------------------------------------------------------------------------------


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.thorough
def test_a_student_that_learns(knowing: Path, compress: Cli) -> None:
    before = everything(knowing)
    done = compress(*KNOWS, *LEARNS, "--check")
    assert done.code == 0, done.out + done.err
    assert done.out.rstrip().endswith("healthy: the student learns the examples")
    assert "agreement with the teacher" in done.out
    assert "6 steps of the whole stage take about" in done.out
    assert everything(knowing) == before, "nothing is left behind"
    told = json.loads(compress(*KNOWS, *LEARNS, "--check", "--json").out)
    assert told["healthy"] is True
    (stage,) = told["stages"]
    assert stage["steps_of_the_run"] == 6
    assert stage["end"]["agreement"] >= 62 / 64
    assert stage["end"]["probe_loss"] < stage["start"]["probe_loss"]


@pytest.mark.thorough
def test_a_student_that_does_not_learn(knowing: Path, compress: Cli) -> None:
    done = compress(*KNOWS, "--set", RANDOM, "--set", "stages.0.training.learning_rate=1e-7", "--check")
    assert done.code == 3
    assert done.line.startswith("error: --check: the student does not learn: 0-distill: ")
    assert "soft_targets did not fall by 2 %: " in done.line
    assert "on rows that it was trained on repeatedly" in done.line
    assert "finding  the student starts from random weights" in done.out


@pytest.mark.thorough
def test_a_teacher_that_guesses_is_why(taught: Path, compress: Cli) -> None:
    """Six steps have taught it nothing, and its student learns that well."""
    done = compress(*DISTILL, *LEARNS, "--check")
    assert done.code == 3
    assert done.line.startswith("error: --check: the teacher is not usable: 0-distill: the teacher is no better")
    assert "the teacher is no better than chance on 64 training rows of this data: accuracy 0.5" in done.line


@pytest.mark.thorough
def test_a_stage_on_a_corpus_is_checked_and_hands_its_student_on(knowing: Path, compress: Cli) -> None:
    before = everything(knowing)
    done = compress(
        "distill", "--recipe", "smoke", "--data", "data", "--set", "corpus.source=corpus.txt",
        "--teacher", "runs/knows/model", "--general-teacher", PRETRAINED, "--check", "--json",
        "--set", "stages.*.training.learning_rate=3e-3",
        "--set", "stages.0.objectives=[{kind: soft_targets, on: vocabulary}, {kind: masked_lm}]",
    )  # fmt: skip
    told = json.loads(done.out)
    assert [stage["stage"] for stage in told["stages"]] == ["0-distill", "1-distill"]
    assert told["stages"][0]["healthy"], told["stages"][0]["reasons"]
    assert everything(knowing) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--output", "runs/x"), "--output: --check saves no model; remove it, or remove --check"),
        (("--resume",), "--resume: --check saves no model; remove it, or remove --check"),
        (("--dry-run",), "--dry-run: --check saves no model; remove it, or remove --check"),
        (("--seeds", "2"), "--seeds: cannot be combined with --check; remove one of the two"),
    ],
)
def test_flags_that_make_no_sense_beside_a_check(
    words: tuple[str, ...], message: str, taught: Path, compress: Cli
) -> None:
    done = compress(*DISTILL, "--check", *words)
    assert (done.code, done.line) == (2, f"error: {message}")
