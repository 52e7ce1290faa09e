"""Question answering through the real command line: fine-tuned, distilled, measured, answered, and loaded elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import e2e_toy as toy
import pytest
from e2e_toy import Cli, Server

from compress.modelfolder.folder import inspect

CONTEXT = "Ann found the new film very dull , but Bob disagreed ."
FAST = (
    "--threads", "1", "--limit", "40", "--max-length", "40", "--set", "data.stride=6",
    "--set", "evaluation.bootstrap=100", "--set", "evaluation.latency.seconds=1",
    "--set", "evaluation.latency.length=16", "--set", "evaluation.throughput_rows=16",
)  # fmt: skip
TUNE = ("--set", "stages.0.training.steps=4", "--set", "stages.0.training.epochs=null")


@pytest.fixture(scope="module")
def tuned(made: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a model that answers questions, badly. Not to be changed."""
    folder = tmp_path_factory.mktemp("questions") / "work"
    toy.copy_folder(made, folder)
    tune = ("finetune", "--model", toy.PRETRAINED, "--data", "opinions-qa", "--output", "runs/own", *FAST, *TUNE)
    done = server.run(folder, *tune)
    assert done.code == 0, done.err
    assert "contexts are longer than 40 tokens and are split into windows that overlap by 6" in done.err
    assert 'use it   compress predict runs/own/model --question "a question" --context' in done.out
    return folder


@pytest.fixture
def answering(tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model, in this test's working folder."""
    toy.copy_folder(tuned, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return Path("runs/own/model")


def test_from_finetuning_to_prediction(answering: Path, compress: Cli) -> None:
    info = inspect(answering)
    assert (info.meta.task, info.stock_class) == ("question-answering", "BertForQuestionAnswering")
    assert info.meta.task_settings == {"stride": 6, "no_answer": False}

    distill = ("distill", "--recipe", "./task.yaml", "--teacher", str(answering), "--data", "opinions-qa")
    done = compress(*distill, "--output", "runs/small", *FAST, "--json")
    assert done.code == 0, done.err
    by_role = {m["role"]: m for m in json.loads(done.out)["models"]}
    values = by_role["student"]["values"]
    for name in ("quality/f1", "quality/exact_match", "vs_teacher/f1_difference", "vs_teacher/agreement_pct"):
        assert values[f"{name}_low"] <= values[name] <= values[f"{name}_high"], name
    assert by_role["teacher"]["context"]["metric"] == "f1"

    against = ("--against", str(answering), "--data", "opinions-qa", "--limit", "40", "--bootstrap", "100")
    done = compress("evaluate", "runs/small/student", *against)
    assert done.code == 0, done.err
    assert [line.split("  ")[1] for line in done.out.splitlines()[2:4]] == ["F1", "exact match"]

    card = Path("runs/small/student/README.md").read_text()
    assert "pipeline_tag: question-answering" in card
    answer = ask(compress, "runs/small/student", "--question", "Who found it dull?", "--context", CONTEXT)[0]
    assert answer["question"] == "Who found it dull?"
    assert CONTEXT[answer["start"] : answer["end"]] == answer["answer"] != ""
    assert 0 < answer["score"] <= 1
    assert answer["n_best"][0] == {key: answer[key] for key in ("answer", "score", "start", "end")}


def ask(compress: Cli, model: str | Path, *args: str | Path) -> list[dict[str, Any]]:
    done = compress("predict", model, *args, "--json", "--threads", "1")
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_questions_from_the_command_line_and_from_a_file(answering: Path, compress: Cli) -> None:
    both = ask(compress, answering, "--question", "Who?", "--question", "What?", "--context", CONTEXT)
    assert [answer["question"] for answer in both] == ["Who?", "What?"]
    rows = [{"id": i, "question": a["question"], "context": CONTEXT, "answers": None} for i, a in enumerate(both)]
    toy.write_rows(Path("asked.jsonl"), rows)
    again = ask(compress, answering, "--file", "asked.jsonl")
    assert [answer.pop("id") for answer in again] == [0, 1]
    assert again == both
    plain = compress("predict", answering, "--question", "Who?", "--context", CONTEXT)
    assert plain.out.split("\t")[0] == both[0]["answer"]
    assert plain.out.rstrip("\n").endswith("\tWho?")


NOT_ASKED = [
    (("a text",), "a model for question-answering needs a question and a context; give --question and --context"),
    (("--question", "Who?"), "--context: 0 contexts for 1 questions; give --context once, or once for every"),
    (("--context", "x"), "--context: a context needs a question; add --question TEXT"),
    (("--question", "Who?", "--context", " "), "--context: it is empty"),
    (("--question", " ", "--context", "x"), "--question: it is empty"),
    (("--question", "who " * 60, "--context", "x"), "of the window's 40 tokens: 'who who"),
    (
        ("--file", "a.jsonl"),
        "a.jsonl:2: the row has no context; name its column with --text-pair-column; known: question",
    ),
    (("--file", "b.jsonl"), "b.jsonl:1: not JSON: Who ran?; write one object with question and context on each line"),
    (("--file", "c.jsonl"), "c.jsonl:1: the context is empty or not text"),
    (("a text", "--question", "Who?", "--context", "x"), "--question: give texts or --question, not both"),
]


def test_what_cannot_be_asked(answering: Path, compress: Cli) -> None:
    toy.write_rows(Path("a.jsonl"), [{"question": "Who?", "context": "x"}, {"question": "Who?"}])
    toy.write_rows(Path("c.jsonl"), [{"question": "Who?", "context": ""}])
    Path("b.jsonl").write_text("Who ran?\n")
    for args, told in NOT_ASKED:
        done = compress("predict", answering, *args)
        assert done.code == 2, args
        assert told in done.line


def test_the_threshold_of_no_answer_can_be_set_where_it_is_asked(answering: Path, compress: Cli) -> None:
    data = ("--data", "opinions-qa", "--limit", "10", "--bootstrap", "100", "--no-answer-threshold", "3.5", "--json")
    done = compress("evaluate", answering, *data)
    assert done.code == 0, done.err
    ask(compress, answering, "--question", "Who?", "--context", CONTEXT, "--no-answer-threshold", "2")
    done = compress("predict", toy.TEACHER, "a text", "--no-answer-threshold", "2")
    assert (done.code, done.line) == (
        2,
        "error: data.no_answer_threshold: classification has no setting no_answer_threshold; remove it, or set the "
        "task of the data",
    )


def test_a_model_of_another_task_is_not_asked_questions(taught: Path, compress: Cli) -> None:
    done = compress("predict", toy.TEACHER, "--question", "Who?", "--context", CONTEXT)
    assert (done.code, "a model for classification needs single texts" in done.line) == (2, True)


def test_transformers_gives_the_same_scores(answering: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    from compress.predict.predictor import Predictor

    stock = transformers.AutoModelForQuestionAnswering.from_pretrained(answering).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(answering)
    ours = Predictor(answering)
    examples = ours.task.encode_texts(ours.tokenizer, ["Who?"], [CONTEXT], max_length=100)
    given = tokenizer("Who?", CONTEXT, return_tensors="pt")
    assert given["input_ids"][0].tolist() == examples.ids.tolist()
    with torch.no_grad():
        theirs = stock(**given)
    both = torch.stack([theirs.start_logits[0], theirs.end_logits[0]], -1)
    torch.testing.assert_close(torch.from_numpy(ours.logits(examples)), both, atol=1e-5, rtol=0)


def test_bad_answers_are_told_by_row_and_can_be_dropped(taught: Path, compress: Cli) -> None:
    ann = {"answers": ["Ann"], "answer_starts": [0]}
    told = [f"Ann found it {word} ." for word in toy.GOOD + toy.BAD]
    rows = [{"question": f"Who said: {text}?", "context": text} | ann for text in told]
    wrong = {**rows[0], "answers": ["Bob"], "answer_starts": [4]}
    for split in ("train", "validation", "test"):
        toy.write_rows(Path(f"asked/{split}.jsonl"), [*rows, wrong] if split == "train" else rows)
    tune = ("finetune", "--model", toy.PRETRAINED, "--data", "asked", "--output", "runs/own", *FAST, *TUNE)
    done = compress(*tune)
    assert (done.code, done.line) == (
        2,
        "error: asked: train: row 9: 'Bob' is not at character 4: the context has 'fou' there, and the answer does "
        "not occur in it; correct it, or drop bad rows with --bad-rows drop (data.bad_rows: drop)",
    )
    done = compress(*tune, "--bad-rows", "drop", "--dry-run")
    assert done.code == 0, done.err
