"""Copies of the training texts with other words in them, through the real command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from e2e_toy import DISTILL, PRETRAINED, SPLITS, TEACHER, Cli, Server, sha, write_data, write_rows

from compress.stages.distill import augmentation, candidates
from compress.stages.shared.task_data import TaskData
from compress.storage import safe

pytestmark = pytest.mark.thorough

NEAR = ("--set", "stages.0.augmentation={method: neighbours, copies: 3, rate: 0.5}")
MASKED = ("--set", f"stages.0.augmentation={{model: {PRETRAINED}, copies: 3, rate: 0.5}}")
NARROW = ("--set", "stages.0.student.hidden=16")
CONTROL = ("--set", "stages.0.control=true")


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[TaskData]:
    """The data of each stage, control included, in order."""
    found: list[TaskData] = []

    def encode(*args: Any, make: Callable[..., TaskData] = TaskData.encode, **how: Any) -> TaskData:
        found.append(make(*args, **how))
        return found[-1]

    monkeypatch.setattr(TaskData, "encode", encode)
    return found


@pytest.mark.parametrize("how", [NEAR, MASKED], ids=["neighbours", "masked-lm"])
def test_the_student_learns_from_copies_and_nobody_is_measured_on_them(
    how: tuple[str, ...], taught: Path, compress: Cli, learned: list[TaskData]
) -> None:
    done = compress(*DISTILL, *how, *CONTROL, "--output", "runs/a")
    assert done.code == 0, done.err
    assert "augmentation: " in done.err
    assert " copies of 64 texts, " in done.err
    student, control = learned
    assert SPLITS["train"] < len(student.train) <= 4 * SPLITS["train"]
    assert (student.train.labels[: SPLITS["train"]] >= 0).all()
    assert (student.train.labels[SPLITS["train"] :] == -100).all(), "only the teacher says what copies are"
    assert len(control.train) == SPLITS["train"], "hard labels alone"
    assert len(student.validation) == len(control.validation) == SPLITS["validation"]
    lineage = safe.read_json(taught / "runs/a/student/compress.json")["lineage"]
    assert [p["role"] for p in lineage] == ["teacher", "words of the augmentation"]


def test_copies_may_keep_their_labels_and_the_control_learns_from_them_too(
    taught: Path, compress: Cli, learned: list[TaskData]
) -> None:
    done = compress(*DISTILL, *NEAR, "--set", "stages.0.augmentation.keep_labels=true", *CONTROL, "--output", "runs/a")
    assert done.code == 0, done.err
    student, control = learned
    assert (student.train.labels >= 0).all()
    assert student.train.fingerprint == control.train.fingerprint


def test_words_are_predicted_once_for_all_runs(taught: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(self: Any, found: Any, of: Callable[..., Any] = candidates.Predictions.of) -> Any:
        asked.append(len(found))
        return of(self, found)

    monkeypatch.setattr(augmentation.Predictions, "of", counted)
    assert compress(*DISTILL, *MASKED, "--output", "runs/a").code == 0
    assert sum(asked) == SPLITS["train"]
    assert compress(*DISTILL, *MASKED, "--seed", "7", "--set", "stages.0.augmentation.rate=0.3").code == 0
    assert sum(asked) == SPLITS["train"], "other copies of the same candidates"


def test_a_stopped_run_goes_on_with_the_same_copies(taught: Path, server: Server) -> None:
    words = (*DISTILL, *MASKED, "--quiet", "--output")
    assert server.run(taught, *words, "runs/whole").code == 0
    assert server.run(taught, *words, "runs/cut", signal_at=(4, "SIGTERM")).code == 75
    assert server.run(taught, *words, "runs/cut", "--resume").code == 0
    assert sha(taught / "runs/cut/student/model.safetensors") == sha(taught / "runs/whole/student/model.safetensors")


def test_words_of_lists_become_others_one_by_one(taught: Path, compress: Cli, learned: list[TaskData]) -> None:
    """So tags stay with their words."""
    rows = [{"tokens": ["she", "saw", "anna", "."], "ner_tags": ["O", "O", "B-PER", "O"]}] * 12
    for split in ("train", "validation", "test"):
        write_rows(
            Path("tags") / f"{split}.jsonl",
            [{**r, "tokens": [*r["tokens"], str(i)], "ner_tags": [*r["ner_tags"], "O"]} for i, r in enumerate(rows)],
        )
    steps = ("--set", "stages.0.training.steps=2", "--set", "stages.0.training.epochs=null")
    made = compress("finetune", "--model", PRETRAINED, "--data", "tags", *steps, "--output", "runs/tagger")
    assert made.code == 0, made.err
    learned.clear()
    done = compress(*DISTILL, "--set", "teacher=runs/tagger/model", "--data", "tags", *NEAR, "--output", "runs/a")
    assert done.code == 0, done.err
    train = learned[0].train
    assert train.words is not None
    assert len(train) > 12


def test_few_rows_get_copies_by_default(taught: Path, compress: Cli, learned: list[TaskData]) -> None:
    """Unless there is text without labels, a person turns them off, or counts epochs."""
    write_data(Path("few"))
    Path("few/unlabelled.jsonl").rename("more.jsonl")
    task = ("distill", "--recipe", "distilbert-task", "--teacher", TEACHER, "--data", "few", "--no-control")
    steps = ("--steps", "2", "--set", "evaluation.latency.seconds=1")
    planned = compress(*task, "--dry-run")
    assert "; up to 5 copies of each text, 40% of the words by mix" in planned.out
    assert "copies by mix, at most 5 of each text: 320" in compress(*task, "--plan-data").out
    for more, added in {
        (): True, ("--augment", "none"): False, ("--unlabelled", "more.jsonl"): False, ("--augment-copies", "1"): True,
    }.items():  # fmt: skip
        learned.clear()
        done = compress(*task, *steps, *more, "--output", f"runs/{'-'.join(more)}x".replace("--", ""))
        assert done.code == 0, done.err
        assert ("augmentation: " in done.err) == added, more
        counts = learned[0].count_rows(SimpleNamespace(task="classification", settings={}))  # pyright: ignore
        assert counts["labelled"] == SPLITS["train"]
        assert (counts["teacher_labelled"] > 0) == (added or "--unlabelled" in more)
    for split in ("train", "validation", "test"):  # texts that no other row changes
        write_rows(
            Path("same") / f"{split}.jsonl",
            [{"text": "good", "label": label} for label in ("negative", "positive") * 4],
        )
    same = (*task[:-2], "same", "--no-control", *steps)
    assert compress(*same, "--output", "runs/same").code == 0
    assert "no copy differs from its text" in compress(*same, "--augment", "mix").line
    epochs = compress(*task, "--epochs", "1", "--dry-run")
    assert " copies of each text" not in epochs.out, epochs.err


def test_a_dry_run_tells_it(taught: Path, compress: Cli) -> None:
    done = compress(*DISTILL, *NEAR, "--dry-run", "--output", "runs/a")
    assert done.code == 0, done.err
    assert "8 rows a step, learning rate 0.001, texts of up to " in done.out
    assert " tokens; up to 3 copies of each text, 50% of the words by neighbours" in done.out


def test_a_general_stage_without_a_masked_lm_head(taught: Path, compress: Cli) -> None:
    """TinyBERT's compares layers alone: a bare encoder can be its teacher, and the student is one."""
    quick = [word for i in range(3) for word in ("--set", f"stages.{i}.training.steps=2")]
    words = (
        "distill", "--recipe", "tinybert", "--data", "data", "--set", "corpus.source=corpus.txt", *quick,
        "--set", "data.max_length=24", "--set", "corpus.max_length=24", "--set", "stages.0.student.layers=[0,2]",
        "--set", "evaluation.latency.seconds=1", "--set", "data.unlabelled_split=null",
    )  # fmt: skip
    near = [word for i in (1, 2) for word in ("--set", f"stages.{i}.augmentation.method=neighbours")]
    done = compress(*words, "--teacher", TEACHER, "--output", "runs/a")
    assert (done.code, done.line) == (
        2,
        f"error: --teacher {TEACHER}: recipe tinybert first trains on a corpus, which needs the teacher's "
        "pretrained encoder: this teacher is fine-tuned; add --general-teacher FOLDER, or use --recipe tinybert-task",
    )
    both = (*words, "--teacher", TEACHER, "--general-teacher", TEACHER)
    done = compress(*both, "--output", "runs/a")
    assert (done.code, done.line) == (
        2,
        "error: augmentation.model: that of the teacher: words are replaced by predictions of a masked language model, "
        "and this model has no masked-LM head; name a pretrained encoder as augmentation.model, give this one such a "
        "head with compress pretrain, or set augmentation.method to neighbours",
    )
    assert not (taught / "runs/a").exists()
    done = compress(*both, *near, "--output", "runs/a", "--json")
    assert done.code == 0, done.err
    figures = json.loads((taught / "runs/a/stages/0-distill/steps.json").read_text())["figures"]
    assert 0 < figures["hidden_cosine"] <= 1, "there is no masked-LM loss to select the weights by"
    shapes = {model["context"]["latency_shape"] for model in json.loads(done.out)["models"]}
    assert [shape.partition(" (")[0] for shape in shapes] == ["batch 1 x texts of data/test"], "as `compress evaluate`"
    config = json.loads((taught / "runs/a/stages/0-distill/model/config.json").read_text())
    assert config["architectures"] == ["BertModel"]

    done = compress(*words, "--teacher", TEACHER, "--general-teacher", PRETRAINED, *NARROW, "--output", "runs/b")
    assert done.code == 0, done.err
    config = json.loads((taught / "runs/b/student/config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"]) == (2, 16), "as the paper's: shallower and narrower"


BAD = {
    "no head": (
        ("--set", f"stages.0.augmentation={{model: {TEACHER}}}"),
        f"error: augmentation.model: {TEACHER}: words are replaced by predictions of a masked language model, and this "
        "model has no masked-LM head; name a pretrained encoder as augmentation.model, give this one such a head with "
        "compress pretrain, or set augmentation.method to "
        "neighbours",
    ),
    "no model": (
        ("--set", "stages.0.augmentation={copies: 2}"),
        "error: augmentation.model: that of the teacher: words are replaced by predictions of a masked language model, "
        "and this model has no masked-LM head; name a pretrained encoder as augmentation.model, give this one such a "
        "head with compress pretrain, or set augmentation.method to neighbours",
    ),
    "not there": (
        ("--set", "stages.0.augmentation={method: neighbours, model: runs/teachr/model}"),
        "error: model folder 'runs/teachr/model' not found",
    ),
    "method": (
        ("--set", "stages.0.augmentation={method: neighbors}"),
        "error: --set stages.0.augmentation={method: neighbors}: stages.0.augmentation.method: found the text "
        "'neighbors', allowed: auto, none, masked-lm, neighbours, mix; did you mean 'neighbours'?",
    ),
    "rate": (
        (*NEAR, "--set", "stages.0.augmentation.rate=0"),
        "error: --set stages.0.augmentation.rate=0: stages.0.augmentation.rate: found 0, allowed: > 0",
    ),
    "copies": (
        (*NEAR, "--set", "stages.0.augmentation.copies=0"),
        "error: --set stages.0.augmentation.copies=0: stages.0.augmentation.copies: found 0, allowed: > 0",
    ),
    "nothing to replace": (
        (*NEAR, "--set", "stages.0.augmentation.rate=1e-9"),
        "augmentation: no copy differs from its text: 0 of …words were selected; raise copies and rate, or "
        "remove the augmentation",
    ),
    "level": (
        (*NEAR, "--set", "stages.0.level=general", "--set", "corpus.source=corpus.txt"),
        "augmentation requires level: task_specific, found general",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_a_wrong_augmentation_is_told_in_one_line(
    case: tuple[tuple[str, ...], str], taught: Path, compress: Cli
) -> None:
    words, line = case
    done = compress(*DISTILL, *words, "--output", "runs/a")
    assert (done.code, done.out) == (2, ""), done.err
    begin, _, end = line.partition("…")
    assert begin in done.line, done.line
    assert end in done.line
    assert not (taught / "runs/a").exists()


def test_seeds_share_a_teacher_cache_of_rows_and_copies(taught: Path, compress: Cli) -> None:
    """Copies are drawn once for it: the answers are kept by row."""
    write_data(Path("few"))
    Path("few/unlabelled.jsonl").unlink()
    task = ("distill", "--recipe", "distilbert-task", "--teacher", TEACHER, "--data", "few", "--no-control")
    steps = ("--steps", "2", "--set", "evaluation.latency.seconds=1", "--teacher-cache", "answers")
    for seed in ("0", "1"):
        done = compress(*task, *steps, "--seed", seed, "--output", f"runs/{seed}")
        assert done.code == 0, done.err
        assert "augmentation: " in done.err
