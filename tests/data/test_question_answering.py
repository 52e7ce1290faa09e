"""The question-answering task: tables read and refused, windows encoded, answers scored and compared."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from compress.contracts import NoiseSpec
from compress.data.batches.ragged import Ragged
from compress.data.reading.columns import RequestedColumns
from compress.data.reading.frame import Frame
from compress.data.reading.sources import open_table
from compress.data.tables.answer_spans import Reply, Span
from compress.data.tables.table import UNLABELLED
from compress.data.tasks import question_answering as qa
from compress.data.tasks import task_of
from compress.data.text.noise import add_typos_to_rows
from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError

CONTEXT = "Rollo ran north to the sea, and there he met Poppa of Bayeux."


def ask(question: str, answer: str | None, context: str = CONTEXT) -> dict:
    """A row as SQuAD has it. answer None: there is none in the context."""
    found = {"text": [answer], "answer_start": [context.index(answer)]} if answer else {"text": [], "answer_start": []}
    return {"id": question, "question": question, "context": context, "answers": found}


GOOD = [ask("Who ran?", "Rollo"), ask("Where to?", "north"), ask("Whom did he meet?", "Poppa of Bayeux")]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.train([CONTEXT, *(row["question"] for row in GOOD)] * 3, vocabulary_size=150, min_frequency=1)


def refused(folder, row, **options) -> str:
    with pytest.raises(UserError) as error:
        open_table(str(folder(train=[*GOOD, row], validation=GOOD, test=GOOD)), **options)
    return error.value.line()


# --- reading ------------------------------------------------------------------------------------------------------


def test_squads_columns_are_known_for_what_they_are(folder):
    table = open_table(str(folder(train=GOOD, validation=GOOD, test=[*GOOD, ask("Why?", None)])))
    assert (table.task, list(table.label_names)) == ("question-answering", ["start", "end"])
    assert table.columns == {"question": "question", "context": "context", "label": "answers"}
    assert table.settings == {"no_answer": False}
    spans = table.split("test").labels
    assert isinstance(spans, Ragged)
    assert [CONTEXT[a:b] for a, b in spans.values.tolist()] == ["Rollo", "north", "Poppa of Bayeux"]
    assert spans.lengths.tolist() == [1, 1, 1, 0]


def test_parquet_and_flat_columns_read_alike(folder, write, tmp_path):
    nested = open_table(str(folder(train=GOOD, validation=GOOD, test=GOOD)))
    for split in ("train", "validation", "test"):
        pa.parquet.write_table(pa.Table.from_pylist(GOOD), tmp_path / f"{split}.parquet")
        flat = [
            {"question": r["question"], "context": r["context"], "answers": r["answers"]["text"]}
            | {"answer_starts": r["answers"]["answer_start"]}
            for r in GOOD
        ]
        write(f"flat/{split}.jsonl", flat)
    assert open_table(str(tmp_path / "flat")).fingerprint == nested.fingerprint
    for name in ("set", "flat"):
        for entry in (tmp_path / name).iterdir():
            entry.unlink()
        (tmp_path / name).rmdir()
    assert open_table(str(tmp_path)).fingerprint == nested.fingerprint


@pytest.mark.parametrize("indent", [None, 1])
def test_squads_own_file_is_read(folder, write, indent):
    def nested(rows):
        asked = [
            {
                "id": r["id"],
                "question": r["question"],
                "is_impossible": not r["answers"]["text"],
                "answers": [dict(zip(("text", "answer_start"), pair)) for pair in zip(*r["answers"].values())],
            }
            for r in rows
        ]
        return {"version": "v2.0", "data": [{"title": "Normans", "paragraphs": [{"context": CONTEXT, "qas": asked}]}]}

    rows = [*GOOD, ask("Why?", None)]
    wanted = open_table(str(folder(train=rows, validation=GOOD, test=GOOD)))
    for split, part in (("train", rows), ("validation", GOOD), ("test", GOOD)):
        path = write(f"own/{split}.json", json.dumps(nested(part), indent=indent))
    table = open_table(str(path.parent))
    assert (table.task, table.fingerprint) == ("question-answering", wanted.fingerprint)


def test_a_json_file_that_only_looks_like_squads_is_read_as_it_is(write):
    rows = [{"data": f"text {i}", "version": i % 2} for i in range(20)]
    table = open_table(
        str(write("rows.json", "\n".join(map(json.dumps, rows)))), text_column="data", label_column="version"
    )
    assert table.task == "classification"


def test_questions_without_an_answer_in_train_are_a_setting_of_the_model(folder):
    table = open_table(str(folder(train=[*GOOD, ask("Why?", None)], validation=GOOD, test=GOOD)))
    assert table.settings == {"no_answer": True}
    asked = open_table(str(folder(train=GOOD, validation=GOOD, test=GOOD)), settings={"stride": 8})
    assert asked.settings == {"stride": 8, "no_answer": False}


def test_questions_about_one_context_fall_into_one_split(write):
    contexts = [f"{CONTEXT} That was in {year}." for year in range(900, 940)]
    rows = [ask(q, "Rollo", context) for context in contexts for q in ("Who ran?", "Who met Poppa?", "Who was it?")]
    table = open_table(str(write("all.jsonl", rows)))
    seen = [set(part.columns["context"].to_pylist()) for part in table.splits.values()]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 40


def test_typing_mistakes_leave_the_context_as_it_is(folder):
    rows = open_table(str(folder(train=GOOD, validation=GOOD, test=GOOD))).split("train")
    noisy = add_typos_to_rows(rows, NoiseSpec(rate=0.5), np.random.default_rng(0))
    assert noisy.columns["context"].equals(rows.columns["context"])
    assert not noisy.columns["question"].equals(rows.columns["question"])


# --- bad input ----------------------------------------------------------------------------------------------------


def test_an_offset_that_does_not_fit_is_refused_or_dropped(folder):
    row = ask("Who?", "Poppa")
    row["answers"]["answer_start"] = [3]
    line = refused(folder, row)
    assert "train: row 4: 'Poppa' is not at character 3: the context has 'lo ra' there; it starts at 45" in line
    assert line.endswith("; correct it, or drop bad rows with --bad-rows drop (data.bad_rows: drop)")
    table = open_table(str(folder(train=[*GOOD, row], validation=GOOD, test=GOOD)), bad_rows="drop")
    assert len(table.split("train")) == 3
    told = [note for note in table.notes if "row 4" in note]
    assert "the first bad answer, row 4: 'Poppa' is not at character 3" in told[0]
    assert "1 row with an answer that is not in the context (row 4), dropped" in told[1]


@pytest.mark.parametrize("answers", [["Poppa"], [["Poppa"], []]])
def test_answers_without_offsets_are_missing_them_and_no_labels(write, answers):
    rows = [{"question": "Who?", "context": CONTEXT, "answers": answers}] * 20
    with pytest.raises(UserError, match=r"train: the answers have no offsets|train: row 1: "):
        open_table(str(write("all.jsonl", rows)))


def test_several_bad_rows_are_counted(folder):
    bad = ask("Who?", "Poppa")
    bad["answers"]["answer_start"] = [3]
    with pytest.raises(UserError, match=r"row 1: .* \(and 2 more, rows 3, 4\)"):
        open_table(str(folder(train=[bad, GOOD[0], bad, bad], validation=GOOD, test=GOOD)))


@pytest.mark.parametrize(("role", "empty"), [("question", ""), ("question", " "), ("context", "\n"), ("context", None)])
def test_an_empty_question_or_context_is_refused_or_dropped(folder, role, empty):
    row = ask("Who?", None) | {role: empty}
    assert f"train: 1 row without a {role} (row 4): column '{role}'; fill them in, or drop them" in refused(folder, row)
    table = open_table(str(folder(train=[*GOOD, row], validation=GOOD, test=GOOD)), bad_rows="drop")
    assert len(table.split("train")) == 3


def test_train_must_have_answers(folder):
    rows = [ask("Why?", None), ask("How?", None)]
    with pytest.raises(UserError) as error:
        open_table(str(folder(train=rows, validation=GOOD, test=GOOD)))
    assert "train: no question has an answer: 2 rows, and every list of answers is empty or missing" in str(error.value)


def test_a_split_whose_answers_are_withheld_is_left_out(folder):
    hidden = [{k: v for k, v in row.items() if k != "answers"} | {"answers": None} for row in GOOD]
    table = open_table(str(folder(train=GOOD, validation=GOOD, test=hidden)))
    assert any("test: its labels are withheld" in note for note in table.notes)


def test_a_setting_of_another_task_is_refused(folder):
    with pytest.raises(UserError, match=r"data.no_answer: classification has no setting no_answer; remove it"):
        open_table(str(folder()), settings={"no_answer": True})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stride": 40}, "data.stride: a stride of 40 tokens is not possible for windows of 32"),
        ({"stride": 28}, "for the context, and windows overlap by 28; shorten it, raise data.max_length"),
    ],
)
def test_a_stride_that_does_not_fit_is_refused(folder, tokenizer, options, told):
    table = open_table(str(folder(train=GOOD, validation=GOOD, test=GOOD)), settings=options)
    with pytest.raises(UserError) as error:
        task_of(table.task, table.settings).encode(tokenizer, table.split("train"), max_length=32)
    assert told in error.value.line()


def test_a_question_longer_than_the_window_is_refused_with_its_row(folder, tokenizer):
    table = open_table(str(folder(train=[*GOOD, ask("who " * 40, "Rollo")], validation=GOOD, test=GOOD)))
    with pytest.raises(
        UserError, match=r"^row 4: the question is too long: it takes 40 of the window's 32 tokens: 'who who"
    ):
        task_of(table.task).encode(tokenizer, table.split("train"), max_length=32)


# --- encoding, answering, scoring ---------------------------------------------------------------------------------


def sure(examples, gold: float = 20.0) -> np.ndarray:
    """Logits of a model that knows every answer."""
    logits = np.zeros((len(examples.ids), 2), dtype=np.float32)
    for w, (start, end) in enumerate(examples.labels.tolist()):
        if start >= 0:
            logits[examples.offsets[w] + start, 0] = gold
            logits[examples.offsets[w] + end, 1] = gold
    return logits


def test_windows_share_their_rows_number_and_hold_its_answer(folder, tokenizer):
    rows = [*GOOD, ask("Why?", None)]
    table = open_table(str(folder(train=rows, validation=GOOD, test=GOOD)), settings={"stride": 3})
    train = table.split("train")
    task = task_of(table.task, table.settings)
    short = task.encode(tokenizer, train, max_length=16)
    assert set(short.numbers.tolist()) == {1, 2, 3, 4}
    assert len(short) > 4
    assert "4 of 4 contexts are longer than 16 tokens and are split into windows that overlap by 3" in short.notes
    scored = task.score(sure(short), table.label_names, short, train)
    assert (scored.value("f1"), scored.value("exact_match")) == (1.0, 1.0)
    assert scored.baselines == {"no_answer_baseline": 0.25}
    assert scored.interval("f1", resamples=100).low < scored.value("f1") == 1.0
    whole = task.encode(tokenizer, train, max_length=100)
    assert (len(whole), whole.notes) == (4, ())
    assert whole.labels[3].tolist() == [0, 0]
    alike = task.compare(sure(whole), sure(whole), table.label_names, whole, train)
    assert (float(alike.figures["agreement"](np.ones((1, 4)))[0]), alike.values["kl"]) == (1.0, pytest.approx(0.0))
    other = task.compare(sure(whole), sure(whole, 0.0), table.label_names, whole, train)
    assert other.values["kl"] > 0.01


def test_an_answer_that_no_window_holds_is_told(folder, tokenizer):
    table = open_table(str(folder(train=[ask("Who?", CONTEXT), *GOOD], validation=GOOD, test=GOOD)))
    made = task_of(table.task).encode(tokenizer, table.split("train"), max_length=16)
    assert (made.labels[made.numbers == 1] == UNLABELLED).all()
    assert made.notes[-1] == (
        "1 row with an answer that is longer than the overlap of the windows (row 1): not used for training; a "
        "prediction can hold only a part of it"
    )


def test_a_model_that_never_saw_a_question_without_answer_always_answers(folder, tokenizer):
    rows = [*GOOD, ask("Why?", None)]
    table = open_table(str(folder(train=GOOD, validation=GOOD, test=rows)))
    test = table.split("test")
    examples = task_of(table.task).encode(tokenizer, test, max_length=100)
    logits = sure(examples)
    logits[examples.offsets[3]] = 30.0

    def exact(**settings) -> float:
        task = task_of(table.task, settings)
        return task.score(logits, table.label_names, examples, test).value("exact_match")

    assert exact(no_answer=False) == 0.75
    assert exact(no_answer=True) == 1.0
    assert exact() == 1.0, "a model that does not say refuses where the data has such questions"
    assert exact(no_answer=True, no_answer_threshold=100.0) == 0.75


def test_answers_for_people_and_for_machines(tokenizer):
    task = task_of("question-answering", {"no_answer": True})
    questions, contexts = ["Who ran?", "Why?"], [CONTEXT, CONTEXT]
    examples = task.encode_texts(tokenizer, questions, contexts, max_length=100)
    logits = np.zeros((len(examples.ids), 2), dtype=np.float32)
    first = int(np.flatnonzero(examples.places[: examples.offsets[1], 1] > 0)[0])
    last = int(np.flatnonzero(examples.places[: examples.offsets[1], 1] == 5)[0])
    logits[first, 0] = logits[last, 1] = 15.0
    logits[examples.offsets[1]] = 15.0
    answers = task.decode(logits, ["start", "end"], examples, questions, contexts)
    assert [a.line(q) for a, q in zip(answers, questions)] == ["Rollo\t1.0000\tWho ran?", "(no answer)\t1.0000\tWhy?"]
    told = json.loads(json.dumps(answers[0].as_json()))
    assert {k: told[k] for k in ("answer", "start", "end")} == {"answer": "Rollo", "start": 0, "end": 5}
    assert told["score"] == pytest.approx(1.0, abs=1e-3)
    assert len(told["n_best"]) == 5
    with pytest.raises(UserError, match="a model for question-answering needs a question and a context"):
        task.encode_texts(tokenizer, questions, max_length=100)


def test_models_are_compared_by_the_answers_that_are_scored(folder, tokenizer):
    """Where the data has questions without an answer, "no answer" is a reply in both."""
    rows = [*GOOD, ask("Why?", None)]
    table = open_table(str(folder(train=rows, validation=GOOD, test=GOOD)))
    train = table.split("train")
    examples = task_of(table.task).encode(tokenizer, train, max_length=100)
    answers, refuses = sure(examples), sure(examples)
    answers[examples.offsets[3]] = 0.0
    refuses[examples.offsets[3]] = 30.0

    def agreement(**settings) -> float:
        found = task_of(table.task, settings).compare(answers, refuses, table.label_names, examples, train)
        return float(found.figures["agreement"](np.ones((1, 4)))[0])

    assert agreement(no_answer=False) == 1.0
    assert agreement(no_answer=True, no_answer_threshold=-1.0) == 1.0, "then both refuse"
    assert agreement(no_answer=True, no_answer_threshold=1.0) == 0.75
    assert agreement(no_answer_threshold=1.0) == 0.75


def test_one_row_of_each_sort_can_be_scored(folder, tokenizer):
    table = open_table(str(folder(train=[*GOOD, ask("Why?", None)], validation=GOOD, test=GOOD)))
    task, train = task_of(table.task), table.split("train")
    for row, floor in ((0, {}), (3, {"no_answer_baseline": 1.0})):
        one = train.take(np.array([row]))
        examples = task.encode(tokenizer, one, max_length=100)
        scored = task.score(sure(examples), table.label_names, examples, one)
        assert scored.value("exact_match") == 1.0
        assert scored.baselines == floor
        assert not task.groups(one, table.label_names), "one number makes no groups"


def test_an_answer_of_control_characters_stays_on_its_line():
    reply = Reply(Span("two\nlines\x1b[31m", 3, 17, 1.0, 0.5), ())
    assert qa.Answer(reply).line("q\t?") == "two\\nlines\\x1b[31m\t0.5000\tq\\t?"
    assert qa.Answer(Reply(Span("", 0, 0, 1.0, 1.0), ())).line("?") == "(no answer)\t1.0000\t?"


def test_questions_claim_a_table_only_with_offsets():
    columns = {"question": ["Who?"], "context": [CONTEXT], "answers": [{"text": ["Rollo"], "answer_start": [0]}]}
    task = qa.Task()
    assert task.claims(Frame(columns, 1), RequestedColumns()) == 5
    assert task.claims(Frame(columns | {"answers": ["Rollo"]}, 1), RequestedColumns()) == 0
    assert task.claims(Frame(columns | {"answers": ["Rollo"], "answer_start": [0]}, 1), RequestedColumns()) == 5
    assert task.claims(Frame(columns, 1), RequestedColumns(text="gone", label="nowhere")) == 0
