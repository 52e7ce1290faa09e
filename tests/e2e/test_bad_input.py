"""Bad requests, one line each: what is said, with which code, and that nothing is left behind."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e_toy import PRETRAINED, TASK, TEACHER, Cli, copy_folder, write_rows
from safetensors.torch import load_file, save_file

from compress.errors import ExitCode

Args = tuple[str, ...]
Row = dict[str, Any]

TO = ("--output", "runs/x")
DISTILL: Args = ("distill", "--recipe", "./task.yaml", "--teacher", TEACHER, *TO)
FINETUNE: Args = ("finetune", "--model", PRETRAINED, *TO)
SMOKE: Args = ("distill", "--recipe", "smoke", "--data", "data", "--set", "corpus.source=corpus.txt", *TO)
ENCODER: Args = ("run", "smoke-teacher", "--data", "data", "--corpus", "corpus.txt", *TO)


@pytest.fixture(scope="module")
def shared(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad") / "work"
    copy_folder(made, folder)
    return folder


@pytest.fixture
def here(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with a teacher, shared by all cases: none may leave anything in `runs` or `mlruns`."""
    monkeypatch.chdir(shared)
    before = names(shared)
    yield shared
    assert names(shared) == before, "something was left behind"


def names(folder: Path) -> set[str]:
    found = (p.relative_to(folder) for top in ("runs", "mlruns") for p in (folder / top).rglob("*"))
    return {str(path) for path in found if not path.name.startswith("mlflow.db")}


def check(done: Any, line: str, code: int = ExitCode.INPUT) -> None:
    """One line on stderr with the right code, no traceback, nothing on stdout. `…` in `line` stands for anything."""
    expected = ".*".join(map(re.escape, f"error: {line}".split("…")))
    assert re.fullmatch(expected, done.line), done.line
    assert done.code == code
    assert "Traceback" not in done.err
    assert done.err.count("error:") == 1
    assert done.out == ""


# --- recipes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """The toy recipe with `old` replaced by `new`."""

    old: str
    new: str
    line: str


RECIPES = {
    "key": Recipe(
        "temperature", "temprature",
        "bad.yaml:16:40: stages.0.objectives.0.temprature: unknown key; did you mean 'temperature'?",
    ),
    "objective": Recipe(
        "soft_targets", "soft_target",
        "bad.yaml:16:16: stages.0.objectives.0.kind: unknown kind: found the text 'soft_target'; "
        "did you mean 'soft_targets'?",
    ),
    "stage": Recipe(
        "kind: distill", "kind: distil",
        "bad.yaml:12:11: stages.0.kind: unknown kind: found the text 'distil'; did you mean 'distill'?",
    ),
    "syntax": Recipe(
        "stages:", "stages: [", "bad.yaml:12:3: not valid YAML: expected the node content, but found '-'"
    ),
    "duplicate key": Recipe(
        "evaluation:", "seed: 1\nseed: 2\nevaluation:", "bad.yaml:7:1: duplicate key 'seed': lines 6 and 7; keep one"
    ),
    "type": Recipe(
        "steps: 6", "steps: six",
        "bad.yaml:18:23: stages.0.training.steps: found the text 'six', allowed: a whole number",
    ),
    "range": Recipe("1e-3", "2.5", "bad.yaml:18:56: stages.0.training.learning_rate: found 2.5, allowed: < 1"),
    "nothing": Recipe(
        "batch_rows: 8", "batch_rows:", "bad.yaml:18:…: stages.0.training.batch_rows: found nothing (null)…"
    ),
    "no base": Recipe(
        "distilbert-task", "distilbert-tsk",
        "bad.yaml:2:10: extends: unknown recipe 'distilbert-tsk'; did you mean 'distilbert-task'?",
    ),
    "layers twice": Recipe(
        "[0, 2]", "[2, 2]", "bad.yaml:14:23: stages.0.student.layers: layer 2 is listed twice; remove one"
    ),
    "layers unsorted": Recipe(
        "[0, 2]", "[2, 0]",
        "bad.yaml:14:23: stages.0.student.layers: layer 0 is listed after 2; list layers in ascending order",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RECIPES.values(), ids=RECIPES)
def test_bad_recipe(case: Recipe, here: Path, compress: Cli) -> None:
    assert case.old in TASK
    (here / "bad.yaml").write_text(TASK.replace(case.old, case.new, 1), encoding="utf-8")
    check(compress(*DISTILL, "--data", "data", "--recipe", "./bad.yaml"), case.line)


# --- data -------------------------------------------------------------------------------------------------------


def rows(here: Path, split: str) -> list[Row]:
    return [json.loads(line) for line in (here / "data" / f"{split}.jsonl").read_text().splitlines()]


def labelled(answer: Callable[[int, Row], Any], *splits: str) -> Callable[[Path], dict[str, Any]]:
    """The splits (default: train) with other labels."""

    def change(here: Path) -> dict[str, Any]:
        return {
            split: [{**row, "label": answer(i, row)} for i, row in enumerate(rows(here, split))]
            for split in splits or ("train",)
        }

    return change


def text_of_row_6(text: Any) -> Callable[[Path], dict[str, Any]]:
    def change(here: Path) -> dict[str, Any]:
        train = rows(here, "train")
        train[5]["text"] = text
        return {"train": train}

    return change


ALL = ("train", "validation", "test")
DIFFER = (
    "bad: the labels of the data and of the model differ: the data has {0}, the model 2; only in the data: {1}; "
    "only in the model: negative, positive; use data with the model's labels, name their column with --label-column, "
    "rename the labels, or train a new head (`compress finetune --new-head`)"
)
DATA: dict[str, tuple[Callable[[Path], dict[str, Any]], Args, str]] = {
    "empty file": (lambda _: {"train": b""}, DISTILL, "bad/train.jsonl: the file is empty; …"),
    "no train split": (
        lambda _: {"train": None}, DISTILL,
        "bad: no train split: found validation, test, unlabelled; add train.jsonl …",
    ),
    "no label column": (
        lambda here: {split: [{"text": row["text"]} for row in rows(here, split)] for split in ALL}, DISTILL,
        "bad: has no labels: its only column is 'text'; give labelled rows; …",
    ),
    "not utf-8": (
        lambda _: {"train": b'{"text": "ab\xff", "label": "positive"}\n'}, DISTILL,
        "bad/train.jsonl:1: this is not UTF-8 text: byte 0xff at offset 12, near …",
    ),
    "cut off": (
        lambda here: {"train": (here / "data/train.jsonl").read_bytes()[:-20]}, DISTILL,
        "bad/train.jsonl:64: bad JSON: …",
    ),
    "labels missing": (
        labelled(lambda i, row: None if i % 7 == 0 else row["label"]), DISTILL,
        "bad: train: 10 rows without a label (rows 1, 8, 15 …): column 'label'; fill them in, or drop them "
        "with --bad-rows drop (data.bad_rows: drop)",
    ),
    "label unseen in training": (
        labelled(lambda i, row: "neutral" if i == 3 else row["label"], "test"), DISTILL,
        "bad: test: labels that do not occur in train: 'neutral' in 1 row (row 4); known: negative, positive",
    ),
    "labels of other names": (
        labelled(lambda _, row: "good" if row["label"] == "positive" else "bad", *ALL), DISTILL,
        DIFFER.format(2, "bad, good"),
    ),
    "booleans for names": (
        labelled(lambda _, row: row["label"] == "positive", *ALL), DISTILL, DIFFER.format(2, "false, true")
    ),
    "more labels than the teacher": (
        labelled(lambda i, _: "abc"[i % 3], *ALL), DISTILL, DIFFER.format(3, "a, b, c")
    ),
    "a model's head for other labels": (
        labelled(lambda i, _: "abc"[i % 3], *ALL), ("finetune", "--model", TEACHER, *TO),
        DIFFER.format(3, "a, b, c"),
    ),
    "one class": (
        labelled(lambda *_: "positive", *ALL), FINETUNE,
        "bad: every train row has the same label 'positive'; at least two are needed",
    ),
    "text missing": (
        text_of_row_6(None), DISTILL,
        "bad: train: 1 row without a text (row 6): column 'text'; fill them in, or drop them "
        "with --bad-rows drop (data.bad_rows: drop)",
    ),
    "text a number": (
        text_of_row_6(17), DISTILL,
        "bad: train: column 'text': the text column contains values that are not text: …(row 6)…",
    ),
    "no unlabelled split": (
        lambda _: {"unlabelled": None}, (*DISTILL, "--set", "stages.0.use_unlabelled=true"),
        "bad: there are no texts without labels, which the recipe's use_unlabelled asks for; add some with "
        "--unlabelled, or set use_unlabelled to auto",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DATA.values(), ids=DATA)
def test_bad_data(case: tuple[Callable[[Path], dict[str, Any]], Args, str], here: Path, compress: Cli) -> None:
    change, args, line = case
    write_splits(here, change)
    check(compress(*args, "--data", "bad", "--quiet"), line)


def write_splits(here: Path, change: Callable[[Path], dict[str, Any]]) -> None:
    """The toy data as `bad`, with the given splits changed; None removes one."""
    shutil.rmtree(here / "bad", ignore_errors=True)
    shutil.copytree(here / "data", here / "bad")
    for split, content in change(here).items():
        file = here / "bad" / f"{split}.jsonl"
        if content is None:
            file.unlink()
        elif isinstance(content, bytes):
            file.write_bytes(content)
        else:
            write_rows(file, content)


TAKEN = {
    "empty": (text_of_row_6("  "), "train: 1 row with an empty text (row 6), kept"),
    "NUL": (text_of_row_6("good\0film"), ""),
    "1 MB": (text_of_row_6("good " * 200_000), ""),
    "1 MB word": (text_of_row_6("x" * 1_000_000), ""),
    "no validation": (lambda _: {"validation": None}, "no validation split: "),
    "no test": (lambda _: {"test": None}, "no test split: the validation rows are used instead"),
}


@pytest.mark.parametrize("case", TAKEN.values(), ids=TAKEN)
def test_odd_data_is_taken_aloud(case: tuple[Callable[[Path], dict[str, Any]], str], here: Path, compress: Cli) -> None:
    """What can be worked with is, and said. Told by evaluating and by a dry run, which read all of it."""
    change, note = case
    write_splits(here, change)
    told = compress("evaluate", TEACHER, "--data", "bad", "--bootstrap", "100", "--split", "train")
    assert told.code == 0, told.err
    planned = compress(*DISTILL, "--data", "bad", "--dry-run")
    assert planned.code == 0
    assert note in told.err
    assert note in planned.err


def test_a_file_that_cannot_be_read(here: Path, compress: Cli) -> None:
    if not Path("/proc/self/mem").exists():
        pytest.skip("needs a file whose reading fails")
    shutil.rmtree(here / "bad", ignore_errors=True)
    (here / "bad").mkdir()
    (here / "bad/train.jsonl").symlink_to("/proc/self/mem")
    done = compress(*DISTILL, "--data", "bad")
    check(done, "bad/train.jsonl: …Input/output error…")


# --- models and the rest of the request -------------------------------------------------------------------------

REQUESTS: dict[str, tuple[Args, str]] = {
    "recipe": (("distill", "--recipe", "distilbrt"), "unknown recipe 'distilbrt'; did you mean 'distilbert'?"),
    "command": (("distil",), "no such command 'distil'; did you mean 'distill'?"),
    "option": (("distill", "--reciep", "smoke"), "no such option '--reciep'; did you mean '--recipe'?"),
    "choice": (
        ("evaluate", TEACHER, "--data", "data", "--split", "tset"),
        "invalid value for '--split': 'tset' is not one of 'test', 'validation', 'train'; "
        "see `compress evaluate --help`",
    ),
    "set key": (
        (*DISTILL, "--data", "data", "--set", "stages.0.trainig.steps=3"),
        "--set stages.0.trainig.steps=3: stages.0.trainig: unknown key; did you mean 'training'?",
    ),
    "set value": (
        (*DISTILL, "--data", "data", "--set", "stages.0.training.steps=many"),
        "--set stages.0.training.steps=many: stages.0.training.steps: found the text 'many', allowed: a whole number",
    ),
    "seed": ((*DISTILL, "--data", "data", "--seed", "-1"), "--seed -1: seed: found -1, allowed: >= 0"),
    "stage of another verb": (
        ("pretrain", "--recipe", "./task.yaml"), "recipe task has no pretrain stage: its stages: distill"
    ),
    "no data there": (
        (*DISTILL, "--data", "dat"), "no such file or folder: 'dat': looked in …; did you mean 'data'?…"
    ),
    "no such column": (
        (*DISTILL, "--data", "data", "--text-column", "sentence"),
        "data: text column 'sentence' not found; the columns are: text, label",
    ),
    "no corpus there": (
        ("tokenizer", "--recipe", "smoke-teacher", "--corpus", "corpse.txt", *TO),
        "no such file or folder: 'corpse.txt': looked in …; did you mean 'corpus.txt'?",
    ),
    "too long for the teacher": (
        (*DISTILL, "--data", "data", "--max-length", "100"),
        "data.max_length: a maximum length of 100 tokens is above the model's 64 positions; give 64 or less",
    ),
    "too long for the teacher to be made": (
        (*SMOKE, "--max-length", "100"),
        "corpus.max_length: a maximum length of 100 tokens is above the model's 64 positions; give 64 or less",
    ),
    "corpus too long for the teacher to be made": (
        (*SMOKE, "--set", "corpus.max_length=100"),
        "corpus.max_length: a maximum length of 100 tokens is above the model's 64 positions; give 64 or less",
    ),
    "too short": (
        (*DISTILL, "--data", "data", "--max-length", "2"), "--max-length 2: data.max_length: found 2, allowed: >= 3"
    ),
    "layer the teacher lacks": (
        (*DISTILL, "--data", "data", "--set", "stages.0.student.layers=[0,9]"),
        "--set stages.0.student.layers=[0,9]: student.layers: layer 9 does not exist: allowed: 0..3",
    ),
    "layer the teacher to be made lacks": (
        (*SMOKE, "--set", "stages.0.student.layers=[0,9]"),
        "--set stages.0.student.layers=[0,9]: student.layers: layer 9 does not exist: allowed: 0..3",
    ),
    "more layers than every other": (
        (*DISTILL, "--data", "data", "--set", "stages.0.student={layers: every-other, count: 3}"),
        "student.count: every other layer of 4 gives at most 2: 3 were requested; use uniform",
    ),
    "heads that do not divide": (
        (*ENCODER, "--set", "stages.1.encoder.heads=5"),
        "--set stages.1.encoder.heads=5: stages.1.encoder.heads: hidden 32 is not divisible by 5 heads; "
        "the nearest that fits is 4",
    ),
    "no weight": (
        (*DISTILL, "--data", "data", "--set", "stages.0.objectives.*.weight=0"),
        "task.yaml:16:7: stages.0.objectives: every objective has weight 0; "
        "set a weight above 0 for at least one",
    ),
    "no teacher": (
        ("distill", "--recipe", "./task.yaml", "--set", "teacher=null", "--data", "data"),
        "--teacher: recipe task needs a teacher; name a fine-tuned model's folder, "
        "or a teacher recipe such as 'teacher'",
    ),
    "teacher misspelt": (
        ("distill", "--recipe", "./task.yaml", "--teacher", "smoke-techer", "--data", "data", *TO),
        "--teacher: no such teacher 'smoke-techer'; did you mean 'smoke-teacher'?",
    ),
    "teacher a run's folder": (
        ("distill", "--recipe", "./task.yaml", "--teacher", "runs/teacher", "--data", "data", *TO),
        f"runs/teacher: this is a run folder, not a model folder; use {TEACHER}",
    ),
    "teacher without a task head": (
        ("distill", "--recipe", "./task.yaml", "--teacher", PRETRAINED, "--data", "data", *TO),
        f"--teacher {PRETRAINED}: the teacher has no task head; fine-tune it first: "
        f"compress finetune --model {PRETRAINED}",
    ),
    "corpus recipe, teacher without a masked-LM head": (
        (*SMOKE, "--teacher", TEACHER),
        f"--teacher {TEACHER}: recipe smoke first trains on a corpus, which needs a teacher with a masked-LM head: "
        "this teacher has none; add --general-teacher FOLDER, or use --recipe distilbert-task",
    ),
    "general teacher without one": (
        (*SMOKE, "--teacher", TEACHER, "--general-teacher", TEACHER),
        f"--general-teacher {TEACHER}: the general teacher has no masked-LM head; name another, or train one: "
        f"compress pretrain {TEACHER} --corpus TEXT",
    ),
    "no tokenizer": (
        ("pretrain", "--recipe", "smoke-teacher", "--corpus", "corpus.txt", *TO),
        "--tokenizer: stage pretrain needs a tokenizer; add --tokenizer FOLDER, or use a recipe that creates it",
    ),
    "tokenizer a run's folder": (
        ("pretrain", "--recipe", "smoke-teacher", "--corpus", "corpus.txt", "--tokenizer", "tok", *TO),
        "--tokenizer tok: this is a run folder, not a tokenizer folder; use tok/model",
    ),
    "no model": (
        ("finetune", "--data", "data", *TO),
        "--model: stage finetune needs a model to start from; add --model FOLDER, or use a recipe that creates it",
    ),
    "predict on a run's folder": (
        ("predict", "runs/teacher", "good"), f"runs/teacher: this is a run folder, not a model folder; use {TEACHER}"
    ),
    "predict without a head": (
        ("predict", PRETRAINED, "good"),
        f"{PRETRAINED}: the model has no 'task' head: heads: mlm; fine-tune it first: "
        f"compress finetune --model {PRETRAINED}",
    ),
    "predict nothing": (
        ("predict", TEACHER), 'no input text; give texts, or --file FILE ("-" for standard input)'
    ),
    "predict no file": (
        ("predict", TEACHER, "--file", "no.txt"), "no such file or folder: 'no.txt': looked in …"
    ),
    "predict a pair with a model of single texts": (
        ("predict", TEACHER, "good", "--pair", "bad"),
        "a model for classification needs single texts: found pairs of texts",
    ),
    "evaluate on nothing": (
        ("evaluate", TEACHER), "--data: data is required: labelled rows, or texts for an embedding model; …"
    ),
    "store": (
        (*DISTILL, "--data", "data", "--tracking-uri", "foo://bar"),
        "--tracking-uri: unknown type of store 'foo://bar': …",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REQUESTS.values(), ids=REQUESTS)
def test_bad_request(case: tuple[Args, str], here: Path, compress: Cli) -> None:
    args, line = case
    (here / "tok/model").mkdir(parents=True, exist_ok=True)
    (here / "tok/model/tokenizer.json").touch()
    began = time.process_time()
    check(compress(*args), line)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("data", "--output data: the output folder exists and contains no run of compress; name a new folder"),
        ("corpus.txt", "--output corpus.txt: the output is a file; name a folder"),
        (
            "runs/teacher",
            "--output runs/teacher: the output folder already contains a run: recipe smoke-teacher, finished; "
            "use --resume to continue it, or name a new folder",
        ),
    ],
)
def test_an_output_that_is_taken_is_refused_and_untouched(output: str, line: str, here: Path, compress: Cli) -> None:
    before = {p: p.read_bytes() for p in (here / "data").iterdir()}
    check(compress(*DISTILL, "--data", "data", "--output", output), line, ExitCode.REFUSED)
    assert {p: p.read_bytes() for p in (here / "data").iterdir()} == before


def test_resuming_another_request_is_refused(here: Path, compress: Cli) -> None:
    check(
        compress("run", "smoke-teacher", "--data", "data", "--corpus", "corpus.txt", "--seed", "1",
                 "--output", "runs/teacher", "--resume"),
        "--output runs/teacher: the run in this folder was started with another recipe or other options: "
        "its command was: compress run smoke-teacher --data data --corpus corpus.txt --output runs/teacher; "
        "changed: seed 0 → 1; use that command with --resume, or name a new folder",
        ExitCode.REFUSED,
    )  # fmt: skip


def test_no_cuda(here: Path, compress: Cli) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is CUDA")
    done = compress(*DISTILL, "--data", "data", "--device", "cuda")
    check(done, "--device cuda: CUDA is not available: …; use --device cpu", ExitCode.ENVIRONMENT)


# --- models that do not fit or are not sound --------------------------------------------------------------------


def changed(here: Path, source: str, name: str) -> Path:
    """A copy of a model folder of the teacher's run, without what says that it must not be changed."""
    target = here / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(here / source, target)
    for file in ("manifest.json", "compress.json", "README.md"):
        (target / file).unlink(missing_ok=True)
    return target


def test_a_teacher_that_only_has_pickled_weights(here: Path, compress: Cli) -> None:
    target = changed(here, TEACHER, "pickled")
    (target / "model.safetensors").unlink()
    torch.save({}, target / "pytorch_model.bin")
    done = compress("predict", "pickled", "good")
    check(
        done,
        "pickled/pytorch_model.bin: pickle files are not supported because loading one can run code: only safetensors "
        "files are …",
    )


def test_weights_that_are_not_finite(here: Path, compress: Cli) -> None:
    target = changed(here, TEACHER, "nan")
    tensors = load_file(target / "model.safetensors")
    tensors["classifier.weight"][0, 0] = float("nan")
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    done = compress("distill", "--recipe", "./task.yaml", "--teacher", "nan", "--data", "data", *TO)
    check(done, "nan/model.safetensors: contains NaN or infinity: in classifier.weight; …", ExitCode.DATA)


def other_vocabulary(target: Path) -> None:
    """Exchange two words."""
    file = target / "tokenizer.json"
    content = json.loads(file.read_text())
    words = content["model"]["vocab"]
    words["film"], words["book"] = words["book"], words["film"]
    file.write_text(json.dumps(content))
    (target / "vocab.txt").unlink(missing_ok=True)


def test_a_chain_takes_the_general_teacher_that_its_error_asks_for(here: Path, compress: Cli) -> None:
    words = ("run", "smoke", *SMOKE[3:], "--teacher", TEACHER)
    assert "add --general-teacher FOLDER" in compress(*words).line
    done = compress(*words, "--general-teacher", PRETRAINED, "--dry-run")
    assert done.code == 0, done.err
    done = compress("run", "./task.yaml", "--teacher", TEACHER, "--data", "data", "--general-teacher", PRETRAINED, *TO)
    why = "no stage of recipe task trains on a corpus or replaces words (--augment masked-lm)"
    check(done, f"--general-teacher {PRETRAINED}: has no effect: {why}; remove it")


def test_a_student_and_a_teacher_of_different_vocabularies(here: Path, compress: Cli) -> None:
    """Found before the first of the two stages is trained."""
    other_vocabulary(changed(here, PRETRAINED, "other"))
    maps = ("--set", "stages.1.objectives=[{kind: attention_maps}]")
    done = compress(*SMOKE, "--teacher", TEACHER, "--general-teacher", "other", *maps)
    check(
        done,
        "objective attention_maps: cannot be compared across tokenizers: the tokenizer of the student of the previous "
        "stage is not that of the teacher of this stage; use minilmv2, whose relations are compared on common spans",
    )


def test_models_of_different_labels_are_not_compared(here: Path, compress: Cli) -> None:
    target = changed(here, TEACHER, "names")
    config = json.loads((target / "config.json").read_text())
    config["id2label"] = {"0": "no", "1": "yes"}
    config["label2id"] = {"no": 0, "yes": 1}
    (target / "config.json").write_text(json.dumps(config))
    done = compress("evaluate", TEACHER, "--against", "names", "--data", "data", "--quiet")
    check(
        done,
        f"{TEACHER}: teacher and names predict different labels: negative, positive versus no, yes; "
        "compare models with the same labels",
    )


# --- numbers that go bad ----------------------------------------------------------------------------------------


def test_weights_so_large_that_the_loss_overflows(taught: Path, compress: Cli) -> None:
    """Nothing is trained into the model: every bad step is skipped, and the fourth in a row ends the run."""
    target = changed(taught, TEACHER, "huge")
    tensors = load_file(target / "model.safetensors")
    tensors["classifier.weight"] *= 1e38
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    done = compress("finetune", "--model", "huge", "--data", "data", "--set", "data.max_length=24", *TO)
    check(
        done,
        "step 4: training produced non-finite values: …4 such steps in a row; rows …; lower the learning rate or check "
        "these rows; last good checkpoint: none yet",
        ExitCode.DATA,
    )
    assert "warning: step 1 skipped: " in done.err


@pytest.mark.thorough
def test_a_loss_that_turns_nan_keeps_the_last_good_checkpoint(
    taught: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From step 4 on the loss is NaN; once it is mended, the run goes on and ends as if nothing had been."""
    from compress.objectives.hard_labels import Objective

    args = ("distill", "--recipe", "./task.yaml", "--teacher", TEACHER, "--data", "data", "--set", "seed=2")
    args += ("--set", "stages.0.checks=off")  # which ask the objectives before the first step
    assert compress(*args, "--output", "runs/whole", "--quiet").code == 0
    sound, calls = Objective.forward, iter(range(1, 100))

    def poisoned(self: Objective, *given: Any) -> torch.Tensor:
        return sound(self, *given) * (float("nan") if next(calls) >= 4 else 1.0)

    strict = ("--set", "stages.0.training.max_bad_steps=0", "--output", "runs/x")
    with monkeypatch.context() as patch:
        patch.setattr(Objective, "forward", poisoned)
        done = compress(*args, *strict, "--quiet")
    assert done.code == ExitCode.DATA
    assert re.fullmatch(
        r"error: step 4: training produced non-finite values: .*loss is nan.*; last good checkpoint: .*/step-00000002",
        done.line,
    )
    assert json.loads((taught / "runs/x/compress-run.json").read_text())["status"] == "failed"
    done = compress(*args, *strict, "--resume", "--quiet")
    assert done.code == 0, done.err
    weights = [(taught / "runs" / name / "student/model.safetensors").read_bytes() for name in ("whole", "x")]
    assert weights[0] == weights[1]
