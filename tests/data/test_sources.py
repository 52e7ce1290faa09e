"""Every way to name data leads to the same table; what is missing is made up for aloud."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

from compress.data import embedded
from compress.data.reading import places
from compress.data.reading.file_corpus import open_corpus
from compress.data.reading.files import TABLES
from compress.data.reading.sources import open_table
from compress.data.tables.table import UNLABELLED
from compress.data.tasks import task_of
from compress.errors import ExitCode, UserError

ROWS = {
    "train": [{"text": f"row {i}, with a comma", "label": ("bad", "good")[i % 2]} for i in range(12)],
    "validation": [{"text": "NA", "label": "good"}, {"text": 'a "quoted" 007', "label": "bad"}],
    "test": [{"text": "tab\tand\nline", "label": "bad"}, {"text": "2020-01-01", "label": "good"}],
}


def as_csv(rows, delimiter=","):
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_parquet(rows):
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def as_arrow(rows):
    import pyarrow as pa

    table = pa.Table.from_pylist(rows)
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


FORMATS = {
    "jsonl": lambda rows: "".join(json.dumps(r) + "\n" for r in rows),
    "json": lambda rows: json.dumps(rows, indent=1),
    "csv": as_csv,
    "tsv": lambda rows: as_csv(rows, "\t"),
    "parquet": as_parquet,
    "arrow": as_arrow,
}


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same_table(suffix, write, tmp_path):
    for split, rows in ROWS.items():
        write(f"{suffix}/{split}.{suffix}", FORMATS[suffix](rows))
        write(f"reference/{split}.jsonl", rows)
    table = open_table(str(tmp_path / suffix))
    reference = open_table(str(tmp_path / "reference"))
    assert table.fingerprint == reference.fingerprint
    assert table.task == "classification"
    assert table.label_names == ["bad", "good"]
    for split, rows in ROWS.items():
        assert table.split(split).texts == [r["text"] for r in rows]
        assert table.split(split).labels.tolist() == [("bad", "good").index(r["label"]) for r in rows]


def test_a_folder_of_save_to_disk(tmp_path, write):
    import datasets

    names = datasets.ClassLabel(names=["good", "bad"])
    made = {}
    for split, rows in ROWS.items():
        made[split] = datasets.Dataset.from_list(rows).cast_column("label", names)
    datasets.DatasetDict(made).save_to_disk(str(tmp_path / "saved"))
    table = open_table(str(tmp_path / "saved"))
    assert table.label_names == ["good", "bad"]
    assert table.split("train").labels[:2].tolist() == [1, 0]
    made["train"].shuffle(seed=1).save_to_disk(str(tmp_path / "one"))
    alone = open_table(str(tmp_path / "one"))
    assert sorted(t for s in alone.splits.values() for t in s.texts) == sorted(r["text"] for r in ROWS["train"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bom.jsonl", '\ufeff{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n'),
        ("crlf.jsonl", '{"text": "a", "label": "x"}\r\n\r\n{"text": "b", "label": "y"}\r\n'),
        ("cr.jsonl", '{"text": "a", "label": "x"}\r{"text": "b", "label": "y"}'),
        ("bom.csv", "\ufefftext,label\r\na,x\r\nb,y\r\n"),
        ("cr.csv", "text,label\ra,x\rb,y"),
        ("semicolon.csv", "text;label\na;x\nb;y\n"),
        ("quoteless.tsv", "text\tlabel\na\tx\nb\ty\n"),
    ],
)
def test_marks_and_line_ends_change_nothing(name, content, write):
    frame = places.open_source(str(write(name, content)), []).frames["train"]
    assert {name: _values(column) for name, column in frame.columns.items()} == {
        "text": ["a", "b"],
        "label": ["x", "y"],
    }


def _values(column):
    return column if isinstance(column, list) else column.to_pylist()


def test_a_tsv_that_is_not_quoted_is_read_as_it_stands(write):
    notes: list[str] = []
    path = write("a.tsv", 'sentence\tlabel\n"half a quote\t1\nplain "quoted" words\t0\n')
    frame = places.open_source(str(path), notes).frames["train"]
    assert _values(frame.columns["sentence"]) == ['"half a quote', 'plain "quoted" words']
    assert any("quotes are read as text" in n for n in notes)


def test_nul_is_text(write):
    rows = [{"text": f"a\x00b{i}", "label": i % 2} for i in range(20)]
    table = open_table(str(write("a.jsonl", rows)))
    assert any("\x00" in t for t in table.split("train").texts)
    raw = write("b.csv", b"text,label\n" + b"".join(b"a\x00b%d,%d\n" % (i, i % 2) for i in range(20)))
    assert open_table(str(raw)).fingerprint == table.fingerprint


def test_dates_stay_text(write):
    rows = [{"text": f"2020-01-{i:02}", "label": i % 2} for i in range(1, 21)]
    table = open_table(str(write("a.jsonl", rows)))
    assert sorted(t for s in table.splits.values() for t in s.texts) == [r["text"] for r in rows]


# --- splits -----------------------------------------------------------------------------------------------------


def test_a_single_file_is_cut_by_content(write):
    rows = [{"text": f"text {i % 400}", "label": i % 2} for i in range(1000)]
    table = open_table(str(write("a.jsonl", rows)))
    sizes = {split: len(r) for split, r in table.splits.items()}
    assert sum(sizes.values()) == 1000
    assert 700 < sizes["train"] < 900
    assert min(sizes["validation"], sizes["test"]) > 50
    texts = [set(table.split(s).texts) for s in ("train", "validation", "test")]
    assert not texts[0] & texts[1]
    assert not texts[0] & texts[2]
    assert not texts[1] & texts[2]
    assert any("no splits given" in n for n in table.notes)
    # the cut follows the row, not its place
    again = open_table(str(write("b.jsonl", [*reversed(rows), {"text": "one more", "label": 0}])))
    for split in ("train", "validation", "test"):
        assert set(table.split(split).texts) <= set(again.split(split).texts)
    other = open_table(str(write("a.jsonl", rows)), seed=1)
    assert set(other.split("test").texts) != texts[2]


@pytest.mark.parametrize("count", [10, 11, 15, 40])
def test_small_files_still_get_three_splits(count, write):
    for seed in range(6):
        table = open_table(str(write("a.jsonl", [{"text": f"t{i}", "label": i % 2} for i in range(count)])), seed=seed)
        assert all(len(table.split(s)) for s in ("train", "validation", "test"))


def test_evaluation_of_a_single_file_sees_the_rows_that_training_did_not(write):
    path = str(write("a.jsonl", [{"text": f"text {i}", "label": i % 2} for i in range(100)]))
    assert open_table(path, needed=("test",)).split("test").texts == open_table(path).split("test").texts


def test_missing_validation_is_cut_from_train(write, tmp_path):
    for split in ("train", "test"):
        write(f"set/{split}.jsonl", [{"text": f"{split} {i}", "label": i % 2} for i in range(100)])
    table = open_table(str(tmp_path / "set"))
    assert len(table.split("train")) + len(table.split("validation")) == 100
    assert len(table.split("test")) == 100
    assert any("no validation split" in n for n in table.notes)


def test_missing_test_is_lent_aloud(write, tmp_path):
    for split in ("train", "dev"):
        write(f"set/{split}.jsonl", [{"text": f"{split} {i}", "label": i % 2} for i in range(20)])
    table = open_table(str(tmp_path / "set"))
    assert table.split("test").texts == table.split("validation").texts
    assert any("no test split: the validation rows are used instead" in n for n in table.notes)


def test_missing_train_is_an_error_only_when_training(write, tmp_path):
    write("set/test.jsonl", [{"text": f"t {i}", "label": i % 2} for i in range(20)])
    with pytest.raises(UserError, match=r"no train split.*found test"):
        open_table(str(tmp_path / "set"))
    assert len(open_table(str(tmp_path / "set"), needed=("test",)).split("test")) == 20


def test_splits_can_be_named(write, tmp_path):
    write("set/train.jsonl", ROWS["train"])
    write("set/validation_matched.jsonl", ROWS["validation"])
    write("set/test.jsonl", ROWS["test"])
    table = open_table(str(tmp_path / "set"), splits={"validation": "validation_matched"})
    assert len(table.split("validation")) == 2
    with pytest.raises(UserError, match="did you mean 'validation_matched'"):
        open_table(str(tmp_path / "set"), splits={"validation": "validation_matchd"})


def test_unlabelled_rows_come_along(folder, write):
    path = folder(unlabelled=[{"text": f"free {i}"} for i in range(5)])
    table = open_table(str(path))
    assert table.split("unlabelled").labels.tolist() == [UNLABELLED] * 5


def test_hidden_test_labels_are_not_used(folder):
    table = open_table(str(folder(test=[{"text": f"t{i}", "label": None} for i in range(4)])))
    assert any("withheld" in n for n in table.notes)
    assert any("no test split" in n for n in table.notes)
    assert table.split("test").texts == table.split("validation").texts


def test_limit_is_stable_and_said(folder):
    rows = [{"text": f"row {i}", "label": ("no", "yes")[i % 2]} for i in range(100)]
    table = open_table(str(folder(train=rows)), limit=10)
    assert len(table.split("train")) == 10
    assert table.split("train").texts == open_table(str(folder(train=rows)), limit=10).split("train").texts
    assert np.all(np.diff(table.split("train").numbers) > 0)
    assert any("limited to 10 rows" in n for n in table.notes)


@pytest.mark.parametrize("name", [name for name in embedded.NAMES if embedded.describe(name).task != "corpus"])
def test_rows_whose_labels_are_hidden_are_unlabelled_rows(name):
    whole = open_table(name, limit=60)
    few, more = (open_table(name, limit=60, labelled_rows=count) for count in (10, 20))
    given = len(whole.splits.get("unlabelled", ()))
    assert [len(few.split(split)) for split in ("train", "unlabelled")] == [10, given + 50]
    assert set(few.split("train").numbers) < set(more.split("train").numbers), "more labels are the same and others"
    hidden = few.split("unlabelled").numbers[given:]
    assert sorted([*few.split("train").numbers, *hidden]) == sorted(whole.split("train").numbers)
    assert task_of(few.task, few.settings).find_unlabelled(few.split("unlabelled").labels).all()
    assert len(next(iter(few.split("unlabelled").contents()))) == given + 50
    assert few.fingerprint != whole.fingerprint
    assert few.split("test").numbers.tolist() == whole.split("test").numbers.tolist()
    assert any(n.startswith("10 training rows keep their labels") for n in few.notes)
    assert open_table(name, limit=60, labelled_rows=60).fingerprint == whole.fingerprint


# --- columns ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "task", "expected"),
    [
        (("text", "label"), "classification", {"text": "text", "label": "label"}),
        (("Review", "Sentiment"), "classification", {"text": "Review", "label": "Sentiment"}),
        (("utterance", "intent"), "classification", {"text": "utterance", "label": "intent"}),
        (("premise", "hypothesis", "label"), "pair-classification", {"text": "premise", "text_pair": "hypothesis"}),
        (("question1", "question2", "labels"), "pair-classification", {"text": "question1", "text_pair": "question2"}),
        (("text", "text_pair", "target"), "pair-classification", {"text": "text", "text_pair": "text_pair"}),
        (("idx", "sentence", "category"), "classification", {"text": "sentence", "label": "category"}),
        (("phrase", "label"), "classification", {"text": "phrase", "label": "label"}),
    ],
)
def test_columns_are_inferred(columns, task, expected, write):
    rows = [{c: (("x", "y")[i % 2] if c == columns[-1] else f"{c} {i}") for c in columns} for i in range(30)]
    if "idx" in columns:
        rows = [{**row, "idx": i} for i, row in enumerate(rows)]
    table = open_table(str(write("a.jsonl", rows)))
    assert table.task == task
    assert table.columns.items() >= expected.items()


def test_columns_can_be_named(write):
    rows = [{"text": "wrong", "mine": f"a {i}", "other": f"b {i}", "label": 0, "verdict": i % 2} for i in range(30)]
    path = str(write("a.jsonl", rows))
    single = open_table(path, text_column="mine", label_column="verdict")
    assert single.task == "classification"
    assert single.split("train").texts[0].startswith("a ")
    pair = open_table(path, text_column="mine", text_pair_column="other", label_column="verdict")
    assert pair.task == "pair-classification"
    pairs = pair.split("train").pairs
    assert pairs is not None
    assert pairs[0].startswith("b ")


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"text_column": "sentense"}, r"text column 'sentense' not found; did you mean 'sentence'"),
        ({"label_column": "zzz"}, r"label column 'zzz' not found; the columns are: idx, sentence, label"),
        ({"text_column": "label", "label_column": "label"}, "the same column is given twice"),
        ({"task": "pair-classification"}, "cannot infer the two text columns"),
        ({"task": "clasification"}, "unknown task 'clasification'; did you mean 'classification'"),
        ({"text_column": "idx"}, r"not text.*30 int values? \(rows 1, 2, 3 …\)|values that are not text"),
    ],
)
def test_wrong_columns(named, message, write):
    path = write("a.jsonl", [{"idx": i, "sentence": f"s {i}", "label": i % 2} for i in range(30)])
    with pytest.raises(UserError, match=message):
        open_table(str(path), **named)


def test_missing_columns_list_what_there_is(write):
    path = write("a.jsonl", [{"one": "a", "two": "b"}] * 20)
    with pytest.raises(UserError, match=r"cannot infer the text column; name it with --text-column.*: one, two"):
        open_table(str(path))
    with pytest.raises(UserError, match=r"cannot infer the label column"):
        open_table(str(path), text_column="one")


def test_a_split_without_the_column(folder):
    with pytest.raises(UserError, match="split 'test' has no column 'label'"):
        open_table(str(folder(test=[{"text": "a"}, {"text": "b"}])))


# --- names ------------------------------------------------------------------------------------------------------


def test_missing_paths_offer_what_is_near(write, tmp_path, monkeypatch):
    write("reviews.jsonl", ROWS["train"])
    with pytest.raises(
        UserError, match=r"no such file or folder: '.*revews.jsonl': looked in .*; did you mean '.*revi"
    ):
        open_table(str(tmp_path / "revews.jsonl"))
    with pytest.raises(UserError, match="does not exist either"):
        open_table(str(tmp_path / "no" / "where.jsonl"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="did you mean the embedded set 'opinions'"):
        open_table("opinons")
    with pytest.raises(UserError, match="hf:someone/something for the hub"):
        open_table("someone/something")
    with pytest.raises(UserError, match="unknown embedded data set 'opinon'; did you mean 'opinions'"):
        open_table("embedded:opinon")


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "no data given"), ("x" * 5000, "not a path"), ("a\x00b", "not a path"), ("~nobody-here/x", "not a path")],
)
def test_names_that_no_path_can_have(name, message):
    with pytest.raises(UserError, match=message) as caught:
        open_table(name)
    assert len(caught.value.line()) < 400


def test_a_folder_without_data(tmp_path):
    with pytest.raises(UserError, match="no train, validation or test file: it is empty"):
        open_table(str(tmp_path))
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(UserError, match=r"it contains notes.md; give one file, or name the files train"):
        open_table(str(tmp_path))


def test_files_and_splits_that_are_not_read_are_named(write, tmp_path):
    import datasets

    write("set/train.jsonl", ROWS["train"])
    for name in ("eval.jsonl", "reviews_test.jsonl", "dev.jsonl", "valid.jsonl"):
        write(f"set/{name}", ROWS["test"])
    for name in ("test.jsonl.gz", "test.xlsx", "notes.md", "train.md", "train.py", "test.sh", "LICENSE.txt"):
        (tmp_path / "set" / name).write_text("x")
    (tmp_path / "set/info.json").write_text("{}")
    read = "the names that are read: train, validation, test, unlabelled"
    found = [note for note in open_table(str(tmp_path / "set")).notes if "not read" in note]
    assert found == [
        "dev.jsonl is not read: valid.jsonl is the validation split",
        f"these files are not read: eval.jsonl, reviews_test.jsonl; {read}",
        "these files are not read: test.jsonl.gz, test.xlsx; the formats that are read: " + ", ".join(TABLES),
    ]
    chosen = open_table(str(tmp_path / "set"), splits={"validation": "dev", "test": "eval"})
    assert not any("not read" in note for note in chosen.notes)
    made = {s: datasets.Dataset.from_list(ROWS["train"]) for s in ("train", "validation_matched")}
    datasets.DatasetDict(made).save_to_disk(str(tmp_path / "saved"))
    assert f"these splits are not read: validation_matched; {read}" in open_table(str(tmp_path / "saved")).notes


def test_two_files_for_a_split(write, tmp_path):
    write("set/train.jsonl", ROWS["train"])
    write("set/train.csv", as_csv(ROWS["train"]))
    with pytest.raises(UserError, match=r"two files for 'train': train.csv and train.jsonl"):
        open_table(str(tmp_path / "set"))


def test_a_file_beside_its_siblings_says_so(write):
    write("set/test.jsonl", ROWS["test"])
    table = open_table(str(write("set/train.jsonl", ROWS["train"])))
    assert any("only train.jsonl is used; name the folder" in n for n in table.notes)


def test_the_hub_without_a_network():
    with pytest.raises(UserError, match=r"hf:no-such/data-set: cannot reach the Hugging Face hub") as caught:
        open_table("hf:no-such/data-set")
    assert caught.value.code == ExitCode.ENVIRONMENT
    assert "\n" not in caught.value.line()
    with pytest.raises(UserError, match="not a hub name"):
        open_table("hf:a b")


def test_a_hub_that_cannot_be_looked_up_is_offline_at_once(monkeypatch):
    import socket

    from datasets import config
    from huggingface_hub import constants

    from compress.data.reading import hub

    def fail(*_):
        raise OSError("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", False)
    with hub._offline_if_unreachable():
        assert constants.HF_HUB_OFFLINE
        assert config.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
    assert not config.HF_HUB_OFFLINE
    with pytest.raises(UserError, match="cannot reach the Hugging Face hub"):
        open_table("hf:no-such/data-set")


def test_hub_names_try_the_organisation_first(monkeypatch):
    import datasets
    from datasets.exceptions import DatasetNotFoundError

    asked = []

    def load(repo, config, revision=None):
        asked.append((repo, config, revision))
        if repo != "glue":
            raise DatasetNotFoundError(repo)
        rows = datasets.Dataset.from_list([{"sentence": f"s{i}", "label": i % 2} for i in range(20)])
        return datasets.DatasetDict({"train": rows, "validation": rows.select(range(4))})

    monkeypatch.setattr(datasets, "load_dataset", load)
    table = open_table("hf:glue/sst2@abc")
    assert asked == [("glue/sst2", None, "abc"), ("glue", "sst2", "abc")]
    assert len(table.split("validation")) == 4
    asked.clear()
    with pytest.raises(UserError, match="the hub has no such data set"):
        open_table("hf:org/name/config")
    assert asked == [("org/name", "config", None)]


# --- what is said -----------------------------------------------------------------------------------------------


def test_repeats_between_splits_are_counted(folder):
    train = [{"text": f"text {i % 15}", "label": ("no", "yes")[i % 2]} for i in range(20)]
    table = open_table(
        str(folder(train=train, test=[{"text": " TEXT  3", "label": "no"}, {"text": "new", "label": "no"}]))
    )
    assert any("train: 5 rows identical to an earlier row, 5 of them with a different label" in n for n in table.notes)
    assert any("test: 1 row of 2 (50.0 %) also found in train (row 1)" in n for n in table.notes)


def test_empty_and_giant_texts_are_kept_and_said(folder):
    train = [{"text": "", "label": "no"}, {"text": "  \n", "label": "yes"}, {"text": "x" * (1 << 20), "label": "no"}]
    table = open_table(str(folder(train=train)))
    assert len(table.split("train")) == 3
    assert any("train: 2 rows with an empty text (rows 1, 2), kept" in n for n in table.notes)
    assert any("above 100,000 characters (row 3, longest 1,048,576), truncated" in n for n in table.notes)


def test_imbalance_is_said(folder):
    rows = [{"text": f"t {i}", "label": ("no", "yes")[i == 0]} for i in range(100)]
    assert any("99.0 % of the train rows are 'no'" in n for n in open_table(str(folder(train=rows))).notes)


def test_real_sst2(data_dir):
    table = open_table(str(data_dir / "sst2"))
    assert {s: len(r) for s, r in table.splits.items()} == {"train": 66962, "validation": 872, "test": 1821}
    assert table.label_names == ["negative", "positive"]
    assert table.task == "classification"
    assert not table.notes


def test_real_pairs(data_dir):
    table = open_table(str(data_dir / "sick_nli"))
    assert table.task == "pair-classification"
    assert table.label_names == ["entailment", "neutral", "contradiction"]
    scores = open_table(str(data_dir / "stsb"))
    assert scores.task == "regression"
    assert scores.columns == {"text": "sentence1", "text_pair": "sentence2", "label": "score"}
    assert scores.split("train").labels.dtype == np.float32


@pytest.mark.parametrize("name", ["opinions", "embedded:opinions"])
def test_embedded(name):
    table = open_table(name)
    assert table.name == "embedded:opinions"
    assert table.label_names == ["negative", "positive"]
    assert set(table.splits) == {"train", "validation", "test", "unlabelled"}
    assert (table.split("unlabelled").labels == UNLABELLED).all()


def test_embedded_sets_of_other_kinds():
    pairs = open_table("opinions-pairs", limit=50)
    assert pairs.task == "pair-classification"
    assert pairs.label_names[0] == "entailment"
    tags = open_table("opinions-tags", limit=50)
    assert tags.task == "token-classification"
    assert tags.label_names[:2] == ["O", "B-aspect"]
    scores = open_table("opinions-similarity", limit=50)
    assert (scores.task, scores.label_names) == ("regression", ["score"])
    with pytest.raises(UserError, match="unknown task 'corpus'; known: classification, "):
        open_table("opinions-corpus")


# --- labels through the front door ------------------------------------------------------------------------------


def test_rows_without_a_label(folder):
    rows = [{"text": f"t {i}", "label": label} for i, label in enumerate(["no", None, "yes", None])]
    path = str(folder(train=rows))
    with pytest.raises(UserError, match=r"train: 2 rows without a label \(rows 2, 4\): column 'label'; fill them in"):
        open_table(path)
    assert len(open_table(path, bad_rows="drop").split("train")) == 2
    with pytest.raises(UserError, match="unknown value 'skip' of bad_rows"):
        open_table(path, bad_rows="skip")


def test_the_description_names_the_labels(folder, write):
    ids = [{"text": f"t {i}", "label": i % 2} for i in range(4)]
    path = str(folder(train=ids, validation=ids, test=ids))
    write("set/info.json", json.dumps({"label_column": "label", "label_names": ["bad", "good"]}))
    assert open_table(path).label_names == ["bad", "good"]
    assert open_table(path, labels=["worse", "better"]).label_names == ["worse", "better"]
    both = open_table(path, expect_labels=["good", "bad"])
    assert both.label_names == ["good", "bad"]
    assert both.split("train").labels.tolist() == [1, 0, 1, 0]
    with pytest.raises(UserError, match=r"labels of the data and of the model differ: .*only in the model: happy, sad"):
        open_table(path, expect_labels=["happy", "sad"])


@pytest.mark.parametrize(
    ("said", "codes"),
    [("zh", ("zh",)), (["zh-Hans", "en"], ("zh-Hans", "en")), ("en+zh", ("en", "zh")), ("Chinese", ()), (3, ())],
)
def test_the_description_names_the_language(said, codes, folder, write):
    rows = [{"text": f"t {i}", "label": i % 2} for i in range(40)]
    path = str(folder(train=rows, validation=rows, test=rows))
    assert open_table(path).language == ()
    write("set/info.json", json.dumps({"language": said}))
    assert open_table(path).language == codes
    assert open_table(f"{path}/train.jsonl").language == codes
    assert open_corpus(path).language == codes


def test_the_language_of_running_text(write):
    write("text/train.txt", "one\n\ntwo\n\nthree\n")
    path = str(write("text/info.json", '{"language": "fr"}').parent)
    assert [open_corpus(path, stream=stream).language for stream in (True, False)] == [("fr",)] * 2
    assert open_corpus("opinions-corpus", limit=10).language == open_table("opinions", limit=10).language == ("en",)


def test_names_of_another_column_are_not_used(folder, write):
    rows = [{"text": f"t {i}", "label": i % 2, "topic": ("art", "sport")[i % 2]} for i in range(4)]
    path = str(folder(train=rows, validation=rows, test=rows))
    write("set/info.json", json.dumps({"label_column": "label", "label_names": ["bad", "good"]}))
    assert open_table(path, label_column="topic").label_names == ["art", "sport"]
