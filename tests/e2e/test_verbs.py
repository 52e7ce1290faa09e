"""Each command by itself, at toy scale."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from calibratable import make_overconfident
from e2e_toy import DISTILL, PRETRAINED, QUICK, TEACHER, Cli, sha
from long_text import check_in_transformers

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.modelfolder import folder as modelfolder
from compress.storage import atomic
from compress.tracking import Store

TEXTS = ["she said the film was good", "anna said the meal was not bad", "he said the plot was awful"]


def everything(folder: Path) -> dict[str, bytes]:
    """Every file below, with its content."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# --- the stages, one after the other ------------------------------------------------------------------------------


def test_from_a_tokenizer_to_a_student_step_by_step(work: Path, compress: Cli) -> None:
    """What one recipe does in one go, each stage by its own command."""
    done = compress("tokenizer", "--recipe", "smoke-teacher", "--corpus", "corpus.txt", "--output", "runs/tok")
    assert (done.code, "model    runs/tok/model" in done.out) == (0, True), done.err
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained("runs/tok/model")
    ids = tokenizer(TEXTS[0])["input_ids"]
    assert tokenizer.decode(ids) == f"[CLS] {TEXTS[0]} [SEP]"

    done = compress(
        "pretrain", "--recipe", "smoke-teacher", "--corpus", "corpus.txt", "--tokenizer", "runs/tok/model",
        "--output", "runs/pre", "--set", "stages.1.sentence_pairs=nsp",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "use it   compress finetune --model runs/pre/model --data DATA" in done.out
    pretrained = modelfolder.inspect("runs/pre/model")
    assert set(pretrained.heads) == {"mlm", "pair"}
    assert pretrained.vocabulary_tokens == len(tokenizer)
    assert check_in_transformers(transformers, "runs/pre/model") == pretrained.config.max_positions == 64

    done = compress("pretrain", "runs/pre/model", "--corpus", "corpus.txt", "--steps", "2", "--output", "runs/more")
    assert done.code == 0, done.err
    assert re.search(r"masked-LM loss \d\.\d{3} on held-out text, perplexity \d+\.\d; \d\.\d{3} before", done.err)
    further = modelfolder.inspect("runs/more/model")
    assert (set(further.heads), further.meta.lineage[0].role) == ({"mlm"}, "start")
    assert sha(Path("runs/more/model/tokenizer.json")) == sha(Path("runs/pre/model/tokenizer.json"))

    quick = work / "quick.yaml"
    quick.write_text(f"extends: finetune\n{QUICK}", encoding="utf-8")
    done = compress(
        "finetune", "--recipe", quick, "--model", "runs/pre/model", "--data", "data", "--output", "runs/fine"
    )
    assert done.code == 0, done.err
    assert "accuracy" in done.out
    assert modelfolder.inspect("runs/fine/model").label_names == ("negative", "positive")

    done = compress(
        "distill", "--recipe", "./task.yaml", "--teacher", "runs/fine/model", "--data", "data",
        "--output", "runs/small", "--set", "stages.0.control=true",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert modelfolder.inspect("runs/small/student").config.depth == 2
    assert (work / "runs/small/control").is_dir()
    for folder in ("tok/model", "pre/model", "fine/model", "small/student"):
        assert atomic.verify_folder(work / "runs" / folder) == []


@pytest.mark.thorough
def test_pairs_are_learned_and_answered(taught: Path, compress: Cli) -> None:
    (taught / "quick.yaml").write_text(f"extends: finetune\n{QUICK}", encoding="utf-8")
    done = compress(
        "finetune", "--recipe", "./quick.yaml", "--model", PRETRAINED, "--data", "pairs",
        "--text-column", "first", "--text-pair-column", "second", "--output", "runs/pairs",
    )  # fmt: skip
    assert done.code == 0, done.err
    done = compress("predict", "runs/pairs/model", *TEXTS[:2], "--pair", TEXTS[1], "--pair", TEXTS[2], "--json")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["text"] for row in rows] == TEXTS[:2]
    assert all(row["label"] in ("same", "other") for row in rows)
    done = compress("predict", "runs/pairs/model", *TEXTS[:2], "--pair", TEXTS[1])
    assert (done.code, done.line) == (2, "error: --pair: 1 second texts for 2 texts; give --pair once for every text")


# --- the teacher of a recipe --------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_other_data_or_another_recipe_make_another_teacher(work: Path, compress: Cli) -> None:
    """The teacher is a recipe file of one's own; only its tokenizer and few steps of training, to be quick."""
    mine, own = work / "mine.yaml", work / "own.yaml"

    def write_mine(seed: int) -> None:
        mine.write_text(f"extends: smoke-teacher\nseed: {seed}\ncorpus: {{source: corpus.txt}}\n", encoding="utf-8")

    own.write_text((work / "task.yaml").read_text() + "\nteacher: ./mine.yaml\n", encoding="utf-8")
    folder = work / "runs/teachers"

    def new_teachers(*more: str) -> set[str]:
        before = set(folder.iterdir()) if folder.is_dir() else set()
        done = compress("distill", "--recipe", "./own.yaml", "--data", "data", "--quiet", *more)
        assert done.code == 0, done.err
        return {path.name.rpartition("-")[0] for path in set(folder.iterdir()) - before}

    write_mine(seed=5)
    assert new_teachers() == {"mine"}
    assert new_teachers("--seed", "3") == set(), "the student's seed is not the teacher's"
    assert new_teachers("--limit", "40") == {"mine"}
    write_mine(seed=6)
    assert new_teachers() == {"mine"}
    assert len(list(folder.iterdir())) == 3


# --- measuring ----------------------------------------------------------------------------------------------------


def test_a_classifier_is_pretrained_further_as_a_masked_lm(own_model: Path, compress: Cli) -> None:
    loaded = modelfolder.load_model(own_model, keep={"task"})
    start = modelfolder.save_model(Path("c"), loaded.model, tokenizer_files=loaded.tokenizer_files, meta=loaded.meta)
    done = compress(
        "pretrain", start, "--corpus", "corpus.txt", "--steps", "2", "--set", "stages.0.masking.probability=0.3",
        "--output", "more",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "new 'mlm' head" in done.err
    assert " before" not in done.err, "a new head knows nothing"
    info = modelfolder.inspect("more/model")
    assert (set(info.heads), info.label_names, info.stock_class) == ({"mlm"}, (), "BertForMaskedLM")
    weights, made = (
        modelfolder.load_model(folder).model.encoder.state_dict() for folder in (start, Path("more/model"))
    )
    assert set(made) == set(weights)
    assert not any(made[name].equal(weights[name]) for name in made if name.startswith("layers")), "it was trained"
    check_in_transformers(pytest.importorskip("transformers"), "more/model")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--tokenizer", "MODEL"), "--tokenizer: MODEL has its own tokenizer; remove --tokenizer, or MODEL"),
        (("--recipe", "smoke-teacher"), "stages.1.encoder: recipe smoke-teacher pretrains a new encoder, and MODEL "),
        (("--max-length", "5000"), "a maximum length of 5000 tokens is above the model's "),
    ],
)
def test_what_does_not_go_with_a_model_to_pretrain_further(
    own_model: Path, compress: Cli, words: tuple[str, ...], told: str
) -> None:
    words = tuple(str(own_model) if word == "MODEL" else word for word in words)
    done = compress("pretrain", own_model, "--corpus", "corpus.txt", *words, "--output", "more")
    assert (done.code, Path("more").exists()) == (2, False)
    assert told in done.line
    done = compress("pretrain", own_model, "--output", "more")
    assert (done.code, done.line) == (2, "error: --corpus: no text was given; compress pretrain FOLDER --corpus TEXT")


def test_evaluate_gives_the_figures_of_the_run(taught: Path, compress: Cli) -> None:
    done = compress("evaluate", TEACHER, "--data", "data", "--json", "--bootstrap", "100")
    assert done.code == 0, done.err
    (model,) = json.loads(done.out)["models"]
    measured = modelfolder.inspect(TEACHER).meta.measurement
    assert measured is not None
    assert model["values"]["quality/accuracy"] == pytest.approx(measured.values["quality/accuracy"])
    assert model["context"]["rows"] == "32"


def test_speed_is_of_the_texts_of_the_data_or_of_a_length(taught: Path, compress: Cli) -> None:
    done = compress("benchmark", TEACHER, "--data", "data", "--split", "validation", "--repeats", "5", "--json")
    assert done.code == 0, done.err
    context = json.loads(done.out)["models"][0]["context"]
    assert context["latency_shape"].startswith("batch 1 x texts of data/validation (16 rows, digest ")
    assert context["latency_tokens"].startswith("mean ")
    for flags, said in (
        (("--data", "data", "--length", "16"), "--length: cannot be combined with --data"),
        (("--split", "test"), "--split: only applies with --data; add --data DATA, or remove it"),
        (("--label-column", "x"), "--label-column x: only applies with --data"),
    ):
        refused = compress("benchmark", TEACHER, *flags)
        assert (refused.code, said in refused.line) == (2, True), refused.err
    asked = ("evaluate", TEACHER, "--data", "data", "--split", "validation", "--length", "16", "--json")
    fixed = compress(*asked)
    assert fixed.code == 0, fixed.err
    assert json.loads(fixed.out)["models"][0]["context"]["latency_shape"] == "batch 1 x 16 tokens"
    refused = compress("evaluate", TEACHER, "--data", "data", "--robustness", "typos", "--length", "16")
    assert (refused.code, "--length: has no effect with --robustness" in refused.line) == (2, True)


def test_evaluate_against_another_model_compares_row_by_row(taught: Path, compress: Cli) -> None:
    done = compress("evaluate", TEACHER, "--against", TEACHER, "--data", "data", "--split", "validation", "--quiet")
    assert (done.code, done.err) == (0, "")
    line = next(line for line in done.out.splitlines() if line.strip().startswith("agreement with parent"))
    assert "100.0 % [79.4, 100.0]" in line
    assert "quality on 16 rows of data/validation" in done.out


def test_benchmark_times_models_side_by_side(taught: Path, compress: Cli) -> None:
    args = ("benchmark", TEACHER, TEACHER, "--length", "16", "--repeats", "5", "--json")
    done = compress(*args)
    assert done.code == 0, done.err
    one, other = json.loads(done.out)["models"]
    assert other["values"]["vs_teacher/size_ratio"] == 1
    assert "quality/accuracy" not in one["values"]
    assert one["context"]["latency_shape"] == "batch 1 x 16 tokens"
    done = compress("benchmark", TEACHER, "--length", "4000")
    assert (done.code, done.line) == (
        2,
        f"error: --length 4000: {TEACHER} has 64 positions; give at most 64, or remove the option",
    )


@pytest.mark.thorough
def test_benchmark_times_as_many_tokens_as_every_model_reads(
    taught: Path, compress: Cli, toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    _classifier(taught / "long", 160, toy_tokenizer_files, len(toy_vocabulary))
    config = transformers.RobertaConfig(
        vocab_size=len(toy_vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=50, type_vocab_size=1, pad_token_id=1, num_labels=2,
    )  # fmt: skip
    transformers.RobertaForSequenceClassification(config).save_pretrained(taught / "roberta")
    for name, data in toy_tokenizer_files.items():
        (taught / "roberta" / name).write_bytes(data)
    for models, length in (
        (["long"], 128), ([TEACHER], 64), (["long", TEACHER], 64), ([TEACHER, "roberta"], 48), (["roberta"], 48)
    ):  # fmt: skip
        done = compress("benchmark", *models, "--repeats", "5", "--json")
        assert done.code == 0, done.err
        shapes = {model["context"]["latency_shape"] for model in json.loads(done.out)["models"]}
        assert shapes == {f"batch 1 x {length} tokens"}, models
    said = compress("benchmark", TEACHER, "roberta", "--repeats", "5")
    assert "48 tokens" in said.err
    assert "latency: batch 1 x 48 tokens" in said.out
    done = compress("benchmark", TEACHER, "roberta", "--length", "64")
    assert (done.code, done.line) == (
        2,
        "error: --length 64: roberta has 48 positions; give at most 48, or remove the option",
    )


def test_models_of_unlike_positions_are_timed_with_the_same_length(
    taught: Path, compress: Cli, toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str]
) -> None:
    _classifier(taught / "short", 40, toy_tokenizer_files, len(toy_vocabulary))
    done = compress("evaluate", "short", "--against", TEACHER, "--data", "data", "--json")
    assert done.code == 0, done.err
    (shape,) = {found["context"]["latency_shape"] for found in json.loads(done.out)["models"]}
    assert shape.startswith("batch 1 x texts of data/test (32 rows, ")
    done = compress("evaluate", "short", "--against", TEACHER, "--data", "data", "--length", "41")
    assert (done.code, "short has 40 positions; give at most 40" in done.line) == (2, True)


def _classifier(folder: Path, positions: int, tokenizer: dict[str, bytes], vocabulary: int) -> None:
    config = EncoderConfig.uniform(
        vocabulary=vocabulary, hidden=16, layers=1, heads=2, feed_forward=16, max_positions=positions
    )
    model = Model(config, {"task": HeadConfig("classification", labels=2)}).initialize(1)
    meta = modelfolder.FolderMeta(task="classification", label_names=("negative", "positive"))
    modelfolder.save_model(folder, model, tokenizer_files=tokenizer, meta=meta)


# --- predicting ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(), ("--embeddings",)])
def test_tables_are_read_by_their_column_of_text(taught: Path, compress: Cli, flags: tuple[str, ...]) -> None:
    texts = [*TEXTS, 'she said, "never again"']
    plain = compress("predict", TEACHER, *flags, *texts)
    assert plain.code == 0, plain.err
    rows = [{"id": f"r{i}", "stars": "5", "text": text} for i, text in enumerate(texts)]
    (taught / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    with (taught / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    with (taught / "rows.tsv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], dialect="excel-tab")
        writer.writeheader()
        writer.writerows(rows)
    (taught / "rows.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    for name in ("rows.jsonl", "rows.csv", "rows.tsv", "rows.txt"):
        done = compress("predict", TEACHER, *flags, "--file", name)
        assert (done.code, done.out) == (0, plain.out), (name, done.err)
    found = compress("predict", TEACHER, *flags, "--file", "rows.jsonl", "--json")
    assert [json.loads(line)["id"] for line in found.out.splitlines()] == ["r0", "r1", "r2", "r3"]
    assert compress("predict", TEACHER, *flags, "--file", "rows.csv", "--json").out == found.out


@pytest.mark.parametrize("flags", [(), ("--embeddings",)])
def test_predicting_a_file_shows_progress_on_stderr(
    flags: tuple[str, ...], taught: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compress.console.console.SLOW_SECONDS", 0.0)
    (taught / "many.txt").write_text("a good film\n" * 1500, encoding="utf-8")
    done = compress("predict", TEACHER, *flags, "--file", "many.txt")
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 1500
    assert "rows/s" not in done.out
    last = done.err.splitlines()[-1]
    assert re.fullmatch(r"(predict|embed) 1500/1500 100% [\d.,e+]+ rows/s", last), done.err
    for silent in ("--quiet", "--json"):
        done = compress("predict", TEACHER, *flags, "--file", "many.txt", silent)
        assert (done.code, done.err) == (0, "")


def test_evaluating_shows_progress_with_units(taught: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compress.console.console.SLOW_SECONDS", 0.0)
    done = compress("evaluate", TEACHER, "--data", "data")
    assert done.code == 0, done.err
    assert re.search(r"scoring teacher 0/\d+ 0%\n", done.err), done.err
    assert re.search(r"scoring teacher (\d+)/\1 100% [\d.,e+]+ rows/s", done.err), done.err
    assert "timing latency 0 rounds" in done.err
    assert "scoring" not in done.out


def test_a_long_validation_shows_its_progress(taught: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compress.console.console.SLOW_SECONDS", 0.0)
    done = compress("finetune", TEACHER, "--data", "data", "--steps", "2", "--output", "runs/watched")
    assert done.code == 0, done.err
    assert re.search(r"validation (\d+)/\1 100% [\d.,e+]+ batches/s\n", done.err), done.err


@pytest.mark.parametrize("flags", [(), ("--embeddings",)])
def test_tables_that_cannot_be_read(taught: Path, compress: Cli, flags: tuple[str, ...]) -> None:
    cases = {
        "a.jsonl": ('{"txt": "x"}\n', "a.jsonl:1: the row has no text; did you mean 'txt'?"),
        "b.jsonl": ("good\n", "b.jsonl:1: not JSON: good; write one object with text on each line"),
        "c.csv": ("txt,stars\nx,5\n", "c.csv:2: the row has no text; did you mean 'txt'?"),
        "d.csv": ('text\n"open\n', "d.csv:2: a quote is not closed"),
    }
    for name, (content, message) in cases.items():
        (taught / name).write_text(content, encoding="utf-8")
        done = compress("predict", TEACHER, *flags, "--file", name)
        assert (done.code, message in done.err) == (2, True), done.err
    done = compress("predict", TEACHER, *flags, "--file", "none.csv")
    assert done.code == 2
    assert done.line.startswith("error: no such file or folder: 'none.csv': looked in ")
    (taught / "empty.csv").write_text("", encoding="utf-8")
    assert compress("predict", TEACHER, *flags, "--file", "empty.csv").out == ""


def test_predict_answers_words_a_file_and_a_stream_alike(
    taught: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = compress("predict", TEACHER, *TEXTS)
    assert words.code == 0, words.err
    for line, text in zip(words.out.splitlines(), TEXTS, strict=True):
        label, probability, shown = line.split("\t")
        assert label in ("negative", "positive")
        assert 0.5 <= float(probability) <= 1
        assert shown == text
    (taught / "texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    assert compress("predict", TEACHER, "--file", "texts.txt").out == words.out
    stream = io.TextIOWrapper(io.BytesIO("\r\n".join(TEXTS).encode()))
    monkeypatch.setattr(sys, "stdin", stream)
    assert compress("predict", TEACHER, "--file", "-").out == words.out
    rows = [json.loads(line) for line in compress("predict", TEACHER, *TEXTS, "--json").out.splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    assert all(sum(row["probabilities"].values()) == pytest.approx(1) for row in rows)


# --- without running ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        DISTILL,
        ("distill", "--recipe", "smoke", "--data", "data", "--set", "corpus.source=corpus.txt"),
        ("run", "smoke-teacher", "--data", "data", "--corpus", "corpus.txt"),
        ("tokenizer", "--recipe", "smoke-teacher", "--corpus", "corpus.txt"),
        ("finetune", "--model", PRETRAINED, "--data", "data"),
    ],
    ids=["distill", "smoke", "run", "tokenizer", "finetune"],
)
def test_a_dry_run_tells_the_plan_and_writes_nothing(taught: Path, compress: Cli, args: tuple[str, ...]) -> None:
    before = everything(taught)
    done = compress(*args, "--dry-run")
    assert done.code == 0, done.err
    assert "stages:" not in done.out, "the recipe only on request"
    assert re.search(r"^\d-[a-z_]+: ", done.out, re.MULTILINE)
    assert everything(taught) == before
    said = json.loads(compress(*args, "--dry-run", "--json").out)
    assert said["recipe"]["stages"]
    assert re.match(r"\d-[a-z_]+: ", said["plan"][-1])
    both = compress(*args, "--dry-run", "--print-recipe")
    assert both.out.startswith(done.out)
    assert "\nstages:" in both.out


def test_quiet_says_nothing_but_the_result(taught: Path, compress: Cli) -> None:
    done = compress(*DISTILL, "--output", "runs/q", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert "model    runs/q/student" in done.out


@pytest.mark.store
@pytest.mark.thorough
def test_a_finished_run_that_is_resumed_trains_nothing(taught: Path, compress: Cli) -> None:
    assert compress(*DISTILL, "--output", "runs/f").code == 0
    before = sha(taught / "runs/f/student/model.safetensors")
    done = compress(*DISTILL, "--output", "runs/f", "--resume")
    assert done.code == 0
    assert "0-distill: already done" in done.err
    assert sha(taught / "runs/f/student/model.safetensors") == before
    client: Any = Store(f"sqlite:///{taught / 'mlruns/mlflow.db'}").client()
    experiment = client.get_experiment_by_name("compress").experiment_id
    models = [model for model in client.search_logged_models([experiment]) if model.name == "f"]
    assert len(models) == 1, "measured twice, it is the same model still"
    assert len([run for run in client.search_runs([experiment]) if run.info.run_name == "f"]) == 1


def test_runs_get_free_names_and_resume_finds_the_open_one(taught: Path, compress: Cli) -> None:
    done = compress(*DISTILL, "--resume")
    assert (done.code, done.line) == (
        2,
        "error: runs/task: there is no unfinished run of task to resume; "
        "name its folder with --output, or remove --resume",
    )
    assert compress(*DISTILL).code == 0
    assert compress(*DISTILL).code == 0
    assert (taught / "runs/task/student").is_dir()
    assert sha(taught / "runs/task/student/model.safetensors") == sha(taught / "runs/task-2/student/model.safetensors")


# --- calibration and churn ----------------------------------------------------------------------------------------


def test_calibrated_probabilities_and_the_same_answers(taught: Path, compress: Cli) -> None:
    shutil.copytree(TEACHER, "sharp")
    make_overconfident(Path("sharp"), Path("three-of-four"))
    done = compress("calibrate", "sharp", "--data", "three-of-four", "--output", "runs/calibrated", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["before"]["temperature"] == 1.0 < told["after"]["temperature"]
    assert told["after"]["negative_log_likelihood"] < told["before"]["negative_log_likelihood"]
    assert told["plot"] == "runs/calibrated-reliability.svg"
    assert "temperature" in (taught / told["plot"]).read_text(encoding="utf-8")
    kept = modelfolder.inspect("runs/calibrated")
    assert kept.meta.task_settings["temperature"] == pytest.approx(told["after"]["temperature"])
    rows = [
        [json.loads(line) for line in compress("predict", model, *TEXTS, "--json").out.splitlines()]
        for model in ("sharp", "runs/calibrated")
    ]
    assert [a["label"] for a in rows[0]] == [a["label"] for a in rows[1]]
    assert rows[0][0]["probabilities"] != rows[1][0]["probabilities"]
    again = compress("calibrate", TEACHER, "--data", "data", "--output", "runs/calibrated")
    assert (again.code, again.out) == (3, "")
    assert again.err == "error: runs/calibrated: exists already; name another folder\n", "before any work"
    again = compress("calibrate", "runs/calibrated", "--data", "three-of-four", "--output", "runs/twice")
    assert (again.code, again.out) == (3, ""), "nothing is gained twice"
    assert "no temperature improves the probabilities" in again.err
    assert not [*Path("runs").glob("twice*")]
    done = compress("calibrate", TEACHER, "--data", "data")
    assert (done.code, done.line) == (2, "error: --output: an output folder is required; add --output FOLDER")


def test_a_calibrated_model_keeps_its_file(taught: Path, compress: Cli) -> None:
    shutil.copytree(TEACHER, "sharp")
    make_overconfident(Path("sharp"), Path("three-of-four"))
    assert compress("export", "sharp", "--output", "exported").code == 0
    done = compress("calibrate", "exported", "--data", "three-of-four", "--output", "calibrated")
    assert done.code == 0, done.err
    for name in ("model.onnx", "onnx.json", "onnx/model.onnx"):
        assert sha(Path("calibrated", name)) == sha(Path("exported", name)), name
    before, after = (
        json.loads(compress("predict", folder, *TEXTS, "--json", "--runtime", "onnxruntime").out.splitlines()[0])
        for folder in ("exported", "calibrated")
    )
    assert before["label"] == after["label"]
    assert before["probabilities"] != after["probabilities"], "the temperature is applied to the logits of the file"


def test_what_is_published_tells_no_folder_of_this_machine(taught: Path, compress: Cli) -> None:
    """Models, their cards and the page of a comparison, made of data and models by absolute paths."""
    (taught / "quick.yaml").write_text(f"extends: finetune\n{QUICK}", encoding="utf-8")
    data, model = taught / "data", taught / PRETRAINED
    done = compress(
        "finetune", "--recipe", "./quick.yaml", "--model", model, "--data", data, "--output", taught / "runs/one"
    )
    assert done.code == 0, done.err
    make_overconfident(Path("runs/one/model"), taught / "sure")
    for args in (
        ("calibrate", "runs/one/model", "--data", taught / "sure", "--output", "runs/two"),
        ("evaluate", "runs/two", "--data", data, "--robustness", "typos"),
        ("compare", "runs/one/model", "runs/two", "--data", data, "--html", "page.html"),
    ):
        done = compress(*args)
        assert done.code == 0, (args, done.err)
    (robustness,) = (taught / "runs").glob("**/robustness.json")
    files = [Path("page.html"), robustness, *Path("runs/one/model").iterdir(), *Path("runs/two").iterdir()]
    assert [path for path in files if str(taught).encode() in path.read_bytes()] == []
    made = modelfolder.inspect("runs/two").meta
    assert made.data is not None
    assert made.data.name == "data"
    assert "rows of sure/" in made.notes[-1]
    first = modelfolder.inspect("runs/one/model").meta
    assert first.recipe is not None
    assert first.recipe.resolved["data"]["source"] == f"{taught.name}/data"


def test_evaluate_tells_which_rows_changed(taught: Path, compress: Cli) -> None:
    done = compress("evaluate", TEACHER, "--against", TEACHER, "--data", "data")
    assert done.code == 0, done.err
    assert "predictions that differ from the parent" in done.out
    assert "parent's confidence:" in done.out
    assert "KL to parent, nats" in done.out
    done = compress("evaluate", TEACHER, "--against", TEACHER, "--data", "data", "--json")
    groups = json.loads(done.out)["models"][1]["churn"]
    assert groups[0]["by"] == "all"
    assert groups[0]["changed"] == 0


# --- long texts ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_model_that_was_extended_learns_answers_and_teaches(taught: Path, compress: Cli) -> None:
    (taught / "quick.yaml").write_text(f"extends: finetune\n{QUICK}", encoding="utf-8")
    done = compress("extend", PRETRAINED, "--max-positions", "512", "--window", "4", "--output", "runs/long")
    assert done.code == 0, done.err
    done = compress(
        "finetune", "--recipe", "./quick.yaml", "--model", "runs/long", "--data", "data", "--output", "runs/f"
    )
    assert done.code == 0, done.err
    made = modelfolder.inspect("runs/f/model")
    assert (made.config.max_positions, set(made.config.windows or ()), made.config.global_tokens) == (512, {4}, 1)
    done = compress("evaluate", "runs/f/model", "--data", "data", "--max-length", "400")
    assert done.code == 0, done.err
    done = compress(
        "distill", "--recipe", "./task.yaml", "--teacher", "runs/f/model", "--data", "data", "--output", "runs/d"
    )
    assert done.code == 0, done.err
    small = modelfolder.inspect("runs/d/student").config
    assert (small.depth, small.windows) == (2, (4, 4))
    done = compress("predict", "runs/d/student", "good " * 300)
    assert done.code == 0, done.err


@pytest.mark.thorough
def test_long_texts_are_read_in_chunks(taught: Path, compress: Cli) -> None:
    (taught / "quick.yaml").write_text(f"extends: finetune\n{QUICK}", encoding="utf-8")
    done = compress(
        "finetune", "--recipe", "./quick.yaml", "--model", PRETRAINED, "--data", "data", "--max-length", "6",
        "--long-text", "chunk", "--stride", "1", "--output", "runs/chunks",
    )  # fmt: skip
    assert done.code == 0, done.err
    settings = modelfolder.inspect("runs/chunks/model").meta.task_settings
    assert (settings["long_text"], settings["stride"]) == ("chunk", 1)
    done = compress("evaluate", "runs/chunks/model", "--against", "runs/chunks/model", "--data", "data")
    assert done.code == 0, done.err
    done = compress("predict", "runs/chunks/model", *TEXTS, "--json")
    assert (done.code, len(done.out.splitlines())) == (0, 3), done.err
    make_overconfident(Path("runs/chunks/model"), Path("sure"))
    done = compress("calibrate", "runs/chunks/model", "--data", "sure", "--output", "runs/calibrated")
    assert done.code == 0, done.err
    kept = modelfolder.inspect("runs/calibrated").meta.task_settings
    assert kept["long_text"] == "chunk"
    assert "temperature" in kept
