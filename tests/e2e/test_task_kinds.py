"""Every kind of task through the real command line: fine-tuned, distilled, measured, answered."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import e2e_toy as toy
import pytest
from e2e_toy import Cli

from compress.modelfolder.folder import inspect

pytestmark = pytest.mark.thorough

FAST = ("--threads", "1", "--limit", "48", "--max-length", "24", "--set", "evaluation.bootstrap=100")
TUNE = (
    "--set", "stages.0.training.steps=4", "--set", "stages.0.training.epochs=null",
    "--set", "stages.0.training.batch_rows=8", "--set", "evaluation.latency.seconds=1",
    "--set", "evaluation.latency.length=16", "--set", "evaluation.throughput_rows=16",
)  # fmt: skip

# data set → (kind, main metric, class of the folder, how alike two models answer)
KINDS = {
    "opinions-claims": ("multi-label", "f1_micro", "BertForSequenceClassification", "agreement_pct"),
    "opinions-similarity": ("regression", "spearman", "BertForSequenceClassification", "correlation"),
    "opinions-tags": ("token-classification", "entity_f1", "BertForTokenClassification", "agreement_pct"),
    "opinions-pairs": ("pair-classification", "accuracy", "BertForSequenceClassification", "agreement_pct"),
}


def one(line: str) -> dict[str, Any]:
    return json.loads(line)


@pytest.mark.parametrize("data", KINDS)
def test_a_kind_from_pretraining_to_prediction(data: str, taught: Path, compress: Cli) -> None:
    kind, metric, stock, alike = KINDS[data]
    done = compress("finetune", "--model", toy.PRETRAINED, "--data", data, "--output", "runs/own", *FAST, *TUNE)
    assert done.code == 0, done.err
    info = inspect(Path("runs/own/model"))
    assert (info.meta.task, info.stock_class) == (kind, stock)

    teacher = ("--teacher", "runs/own/model", "--data", data, "--output", "runs/small")
    done = compress("distill", "--recipe", "./task.yaml", *teacher, "--threads", "1", "--limit", "48", "--json")
    assert done.code == 0, done.err
    by_role = {m["role"]: m for m in one(done.out)["models"]}
    values = by_role["student"]["values"]
    for name in (f"quality/{metric}", f"vs_teacher/{metric}_difference", f"vs_teacher/{alike}"):
        assert values[f"{name}_low"] <= values[name] <= values[f"{name}_high"], name
    assert by_role["student"]["context"]["metric"] == metric
    assert by_role["teacher"]["context"]["task"] == kind
    assert f"quality/{metric}"[8:] in Path("runs/small/student/README.md").read_text().replace("\\", "")

    against = ("--against", "runs/own/model", "--data", data, "--limit", "48", "--bootstrap", "100")
    done = compress("evaluate", "runs/small/student", *against)
    assert done.code == 0, done.err
    first = done.out.splitlines()[2].strip()
    assert first.startswith(
        {"f1_micro": "micro F1", "spearman": "Spearman", "entity_f1": "entity F1"}.get(metric, metric)
    )

    pair = ("--pair", "the plot was bad") if info.meta.task in ("regression", "pair-classification") else ()
    done = compress("predict", "runs/small/student", "the film was not bad", *pair, "--json")
    assert done.code == 0, done.err
    answer = one(done.out)
    assert answer["text"] == "the film was not bad"
    check = {"multi-label": several, "regression": score, "token-classification": tagged}.get(kind, label)
    check(answer)
    plain = compress("predict", "runs/small/student", "the film was not bad", *pair)
    assert plain.code == 0, plain.err
    assert "film" in plain.out


def several(answer: dict[str, Any]) -> None:
    assert answer["labels"] == [name for name, share in answer["probabilities"].items() if share > 0.5]
    assert list(answer["probabilities"]) == ["praise", "complaint", "aside"]


def score(answer: dict[str, Any]) -> None:
    assert isinstance(answer["score"], float)


def tagged(answer: dict[str, Any]) -> None:
    assert [w["word"] for w in answer["words"]] == answer["text"].split()
    assert all(answer["text"][w["start"] : w["end"]] == w["word"] for w in answer["words"])
    assert all(answer["text"][e["start"] : e["end"]] == e["text"] for e in answer["entities"])


def label(answer: dict[str, Any]) -> None:
    assert sum(answer["probabilities"].values()) == pytest.approx(1)


def test_a_head_for_another_task_is_replaced_only_when_told(taught: Path, compress: Cli) -> None:
    tune = ("finetune", "--model", toy.TEACHER, "--data", "opinions-similarity", *FAST, *TUNE)
    done = compress(*tune, "--output", "runs/a")
    assert done.code == 2
    assert done.line == (
        "error: embedded:opinions-similarity: this data is for regression, and the model's head is for classification; "
        "use data for the same task as the model, set the task of the data with --task, or train a new head "
        "(`compress finetune --new-head`)"
    )
    done = compress(*tune, "--output", "runs/b", "--new-head")
    assert done.code == 0, done.err
    assert "task head (a head for classification with [negative, positive] (2)) is replaced by a new one" in done.err
    assert "new 'task' head, initialized from seed 0" in done.err


@pytest.mark.parametrize("names", [("LABEL_0", "LABEL_1"), ("rotten", "good")])
def test_a_classifier_of_transformers_is_trained_on_and_teaches_in_its_own_order(
    names: tuple[str, str], taught: Path, compress: Cli
) -> None:
    config = json.loads(Path(toy.TEACHER, "config.json").read_text())
    config |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    shutil.copytree(toy.TEACHER, "plain")
    Path("plain/compress.json").unlink()
    Path("plain/config.json").write_text(json.dumps(config))
    said = ("bad", "fine") if names[0] == "LABEL_0" else names
    rows = [{"text": f"the plot was {word} {i}", "label": word} for i in range(30) for word in said]
    toy.write_rows(Path("named.jsonl"), rows)
    done = compress("finetune", "--model", "plain", "--data", "named.jsonl", "--output", "runs/own", *FAST, *TUNE)
    assert done.code == 0, done.err
    assert inspect(Path("runs/own/model")).label_names == said
    assert "is replaced by a new one" not in done.err
    task = ("distill", "--recipe", "./task.yaml", "--teacher", "plain", "--data", "named.jsonl", "--output", "runs/s")
    done = compress(*task, "--threads", "1", "--json")
    assert done.code == 0, done.err
    assert inspect(Path("runs/s/student")).label_names == said


def test_a_teacher_of_another_task_is_refused(taught: Path, compress: Cli) -> None:
    distill = ("distill", "--recipe", "./task.yaml", "--teacher", toy.TEACHER)
    done = compress(*distill, "--data", "opinions-claims", "--limit", "48")
    assert (done.code, done.line) == (
        2,
        "error: embedded:opinions-claims: this data is for multi-label, and the model's head is for classification; "
        "use data for the same task as the model, set the task of the data with --task, or train a new head "
        "(`compress finetune --new-head`)",
    )


def test_bad_tags_are_refused_or_repaired_by_a_flag(taught: Path, compress: Cli) -> None:
    rows = [{"tokens": ["good", "film"], "labels": ["O", "I-x"]}, {"tokens": ["bad"], "labels": ["B-x"]}]
    for split in ("train", "validation", "test"):
        toy.write_rows(taught / "tags" / f"{split}.jsonl", rows * 2)
    plan = ("finetune", "--model", toy.PRETRAINED, "--data", "tags", "--dry-run")
    done = compress(*plan)
    assert (done.code, done.line) == (
        2,
        "error: tags: train: 2 rows with tags that IOB2 does not allow (rows 1, 3): row 1, word 2: 'I-x' follows 'O'; "
        "repair them with --bad-tags repair (data.bad_tags: repair), or correct them",
    )
    done = compress(*plan, "--bad-tags", "repair")
    assert done.code == 0, done.err
    assert "2 rows with tags that IOB2 does not allow (rows 1, 3), repaired" in done.err
    done = compress(*plan, "--task", "multilabel")
    assert done.code == 2
    assert "did you mean 'multi-label'?" in done.line


def test_a_model_is_measured_only_on_its_own_kind_of_data(taught: Path, compress: Cli) -> None:
    done = compress("evaluate", toy.TEACHER, "--data", "opinions-tags")
    assert (done.code, done.line) == (
        2,
        "error: embedded:opinions-tags: this data is for token-classification, and the model's head is for "
        "classification; use data for the same task as the model, set the task of the data with --task, or train a new "
        "head (`compress finetune --new-head`)",
    )
