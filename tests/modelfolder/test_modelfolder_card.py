"""The model card tells what is known, and foreign text in it stays text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.contracts import FAKE, Measurement
from compress.encoder.modules.model import Model
from compress.measure.measured_model import MeasuredModel
from compress.measure.subject import Subject
from compress.modelfolder.card.facts import Facts
from compress.modelfolder.card.page import render
from compress.modelfolder.card.text import escape
from compress.modelfolder.folder import DataNote, FolderMeta, Parent, RecipeNote, annotate, load_model, save_model
from compress.modelfolder.language import read_license
from compress.modelfolder.meta import CERTIFICATE, SlicesNote
from compress.modelfolder.names import model_name
from compress.run.publish import slices_note
from evaluation.quality.draws import of_mean
from evaluation.quality.slices import Answers, by_value, slices

EVIL = "x](javascript:alert(1)) <script>alert(2)</script> `|\n# you\x1b[2J & ~~now~~ <!-- https://evil.example"


def rendered(tmp_path: Path, model: Model, **fields: Any) -> str:
    return (
        save_model(tmp_path / "model", model, tokenizer_files={}, meta=FolderMeta(**fields)) / "README.md"
    ).read_text()


def test_the_measured_table(tiny_model: Model, tmp_path: Path) -> None:
    ours = {
        "quality/accuracy": 0.912,
        "quality/accuracy_low": 0.9,
        "quality/accuracy_high": 0.924,
        "size/disk_mb": 10.0,
        "speed/latency_p50_ms": 2.5,
        "vs_teacher/agreement_pct": 95.25,
        "vs_teacher/accuracy_difference": -0.0123,
        "vs_teacher/accuracy_difference_low": -0.0251,
        "vs_teacher/accuracy_difference_high": 0.0006,
        "vs_teacher/p_value": 0.00012,
    }
    ours["quality/f1"] = float("nan")
    theirs = {"quality/accuracy": 0.95, "size/disk_mb": 40.0, "speed/latency_p50_ms": 10.0}
    context = {"device": "cpu", "threads": "2"}
    meta = FolderMeta().with_measurement(Measurement(ours, context), Measurement(theirs, context))
    text = (save_model(tmp_path / "model", tiny_model, tokenizer_files={}, meta=meta) / "README.md").read_text()
    assert "|  | this model | parent |" in text
    assert "| accuracy | 91.20 % [90.00, 92.40] | 95.00 % |" in text
    assert "| on disk | 10.00 MB | 40.00 MB |" in text
    assert "| latency p50 | 2.50 ms | 10.00 ms |" in text
    assert "| agreement with parent | 95.2 % |  |" in text
    assert "| accuracy against parent, points | -1.23 [-2.51, +0.06] |  |" in text
    assert "vs\\_teacher" not in text
    assert "F1" not in text
    assert "- not timed; computed on cpu, 2 threads" in text
    assert "Measured with" not in text
    assert load_model(tmp_path / "model").meta.measurement is not None


def test_where_it_comes_from_and_how_to_use_it(tiny_model: Model, tmp_path: Path) -> None:
    text = rendered(
        tmp_path,
        tiny_model,
        task="classification",
        label_names=("bad", "mixed", "good"),
        method="distilbert",
        max_length=24,
        lineage=(Parent(role="teacher", name="bert-base", fingerprint="ab" * 32),),
        recipe=RecipeNote(name="distilbert", sha256="cd" * 32, stage="task"),
        data=DataNote(name="opinions", fingerprint="ef" * 32, rows={"train": 12000, "test": 900}),
        notes=("trained with half of the steps",),
    )
    for line in (
        "library_name: transformers",
        "pipeline_tag: text-classification",
        "tags: [compress, distilbert]",
        "- heads: masked language model, task, sentence pairs",
        "- labels: bad, mixed, good",
        "- trained on sequences of up to 24 tokens",
        "The folder loads unmodified with transformers' `BertForSequenceClassification`.",
        "- teacher: bert-base (`abababababababab`)",
        "- recipe: distilbert, stage task (`cdcdcdcdcdcdcdcd`); in full in `compress.json`",
        "- name: opinions",
        "- rows: train 12,000, test 900",
        "- fingerprint: `efefefefefefefef`",
        "- trained with half of the steps",
        'output = model(**tokenizer("a text", return_tensors="pt", truncation=True, max_length=24))',
    ):
        assert line in text.splitlines(), line
    assert "compress predict" in text
    assert f"{sum(p.numel() for p in tiny_model.parameters()):,} parameters" in text
    assert "## Measured" not in text


@pytest.mark.parametrize(
    ("task", "pipeline", "line"),
    [
        ("embedding", "sentence-similarity", 'vectors = SentenceTransformer("<this folder>").encode(["a text"])'),
        ("reranking", "text-ranking", 'scores = CrossEncoder("<this folder>").predict([("a query", "a document")])'),
    ],
)
def test_an_embedding_model_and_a_reranker_are_loaded_by_sentence_transformers(
    task: str, pipeline: str, line: str
) -> None:
    facts = Facts("small", 10, 5, 2, 8, ("task",), "BertModel", None)
    text = render(FolderMeta(task=task, label_names=("LABEL_0",) if task == "reranking" else ()), facts)
    found = text.splitlines()
    assert {"library_name: sentence-transformers", f"pipeline_tag: {pipeline}", line} <= set(found)
    assert "BertModel.from_pretrained" not in text
    assert "LABEL_0" not in text
    assert ("loads it without pooling" in text) == (task == "embedding")


@pytest.mark.parametrize(
    ("task", "line"),
    [
        ("embedding", 'vectors = SentenceTransformer("<this folder>", backend="onnx").encode(["a text"])'),
        (
            "reranking",
            'scores = CrossEncoder("<this folder>", backend="onnx").predict([("a query", "a document")])',
        ),
    ],
)
def test_sentence_transformers_reads_the_onnx_file_of_what_its_torch_cannot_compute(task: str, line: str) -> None:
    meta = FolderMeta(task=task, label_names=("LABEL_0",) if task == "reranking" else ())
    quantized = render(meta, Facts("small", 10, 5, 2, 8, ("task",), "BertModel", None, quantized=True, onnx=True))
    assert line in quantized.splitlines()
    float_weights = "sentence-transformers, which **computes with the float weights behind the integers**"
    assert f"The folder loads unmodified with {float_weights}" in quantized
    factorized = render(meta, Facts("small", 10, 5, 2, 8, ("task",), None, "x", onnx=True))
    assert line in factorized.splitlines()
    stock = render(meta, Facts("small", 10, 5, 2, 8, ("task",), "BertModel", None, onnx=True))
    assert "backend=" not in stock


@pytest.mark.parametrize("field", ["task", "method", "label_names", "lineage", "recipe", "data", "notes", "software"])
def test_foreign_text_cannot_leave_its_place(field: str, tiny_model: Model, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "task": EVIL,
        "method": EVIL,
        "label_names": (EVIL, "b", "c"),
        "lineage": (Parent(role=EVIL, name=EVIL, fingerprint=EVIL),),
        "recipe": RecipeNote(name=EVIL, sha256=EVIL, stage=EVIL),
        "data": DataNote(name=EVIL, fingerprint=EVIL, rows={EVIL: 1}),
        "notes": (EVIL,),
        "software": {EVIL: EVIL},
    }
    text = rendered(tmp_path, tiny_model, **{field: values[field]})
    assert "x" in text
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for forbidden in ("<script", "<!--", "\x1b", "\n# you", "](javascript", "https://"):
        assert forbidden not in plain
    assert text.isascii() or all(c.isprintable() or c == "\n" for c in text)


@settings(max_examples=scaled(200), deadline=None)
@given(text=st.text(max_size=60))
def test_escaped_text_has_no_markup_left(text: str) -> None:
    escaped = escape(text)
    assert escaped.isprintable() or not escaped
    bare = re.sub(r"&(#\d+|amp|lt|gt);", "", escaped)
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_\[\]()|#!~]|://|www\.|@", bare)
    assert "<" not in escaped
    assert ">" not in escaped


def test_a_card_of_ones_own(tiny_model: Model, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", tiny_model, tokenizer_files={}, card="# mine\n")
    assert (folder / "README.md").read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("place", "title"),
    [("small/model", "small"), ("half/student", "half"), ("int8", "int8"), ("half/control", "control")],
)
def test_the_result_of_a_run_has_the_name_that_a_person_gave_the_run(
    place: str, title: str, tiny_model: Model, tmp_path: Path
) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    folder = save_model(tmp_path / place, tiny_model, tokenizer_files={})
    assert f"# {title}\n" in (folder / "README.md").read_text()
    annotate(folder, load_model(folder).meta)
    assert f"# {title}\n" in (folder / "README.md").read_text()


def test_a_model_that_answers_questions_says_how_it_is_asked(tiny_model: Model, tmp_path: Path) -> None:
    text = rendered(tmp_path, tiny_model, task="question-answering", max_length=384)
    assert "pipeline_tag: question-answering" in text
    assert 'tokenizer("a question", "a context", return_tensors="pt", truncation="only_second", max_length=384)' in text


def sections(text: str) -> dict[str, list[str]]:
    """Heading → its lines, without empty ones."""
    head, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    assert head.startswith("---\n")
    assert yaml.safe_load(head.split("---\n")[1])["tags"][0] == "compress"
    return {p.partition("\n")[0]: [line for line in p.splitlines()[1:] if line] for p in parts}


def failing(broken: float, kinds: str = "ab", rows: int = 100) -> MeasuredModel:
    """A student that fails a share of the rows of the first half of the kinds, and no other."""
    kind = np.repeat(list(kinds), rows)
    place = np.tile(np.arange(rows) / rows, len(kinds))
    theirs = place < 0.9
    ours = theirs & ~(np.isin(kind, list(kinds[: len(kinds) // 2])) & (place < broken))
    found = slices(by_value("kind", kind), Answers(of_mean(ours), ours), Answers(of_mean(theirs), theirs), seed=0)
    return MeasuredModel(Subject("s", Path("s"), "student"), Measurement({}, {}), metric="accuracy", slices=found)


def test_a_model_without_any_measurement_says_only_what_is_known(tiny_model: Model, tmp_path: Path) -> None:
    found = sections(rendered(tmp_path, tiny_model))
    assert list(found) == ["Intended use", "Limits", "Provenance", "How to use"]
    assert found["Intended use"] == ["- labels: LABEL\\_0, LABEL\\_1, LABEL\\_2"]
    assert found["Limits"] == [
        "- not measured: no quality, size or speed is recorded here",
        "- the training data is not recorded",
        "- the language is unknown: neither the data nor a model card names it",
        "- uncertified: the folder contains no certificate",
    ]


def test_intended_use_training_data_and_limits_are_what_the_folder_holds(tiny_model: Model, tmp_path: Path) -> None:
    values = {"quality/accuracy": 0.9, "size/disk_mb": 3.0, "speed/latency_p50_ms": 2.0}
    known = FolderMeta(
        task="classification",
        label_names=("bad", "mixed", "good"),
        method="distilbert",
        max_length=24,
        lineage=(Parent(role="teacher", name="bert-base", fingerprint="ab" * 32),),
        data=DataNote(name="opinions", fingerprint="ef" * 32, rows={"train": 12000, "test": 900}),
        notes=("quantized by int8, without training",),
    ).with_measurement(Measurement(values, {"dataset": "opinions/test", "rows": "900"}))
    folder = save_model(tmp_path / "model", tiny_model, tokenizer_files={}, meta=known)
    found = sections((folder / "README.md").read_text())
    assert list(found) == [
        "Intended use", "Measured", "Limits", "Training data", "Provenance", "Notes", "How to use",
    ]  # fmt: skip
    assert found["Intended use"] == [
        "- task: classification",
        "- labels: bad, mixed, good",
        "- trained on sequences of up to 24 tokens",
        "- for texts similar to opinions",
        "- made by: distilbert, from: bert-base (teacher)",
    ]
    assert found["Limits"] == [
        "- measured on 900 rows of opinions/test only: its quality on other domains is unknown",
        "- not recorded: memory, the difference from a teacher, "
        "groups of rows with a higher error rate than the parent's",
        "- the language is unknown: neither the data nor a model card names it",
        "- texts of more than 24 tokens are truncated",
        "- uncertified: the folder contains no certificate",
    ]
    assert found["Training data"] == [
        "- name: opinions", "- rows: train 12,000, test 900", "- fingerprint: `efefefefefefefef`",
    ]  # fmt: skip
    assert found["Notes"] == ["- quantized by int8, without training"]

    chunked = known.model_copy(update={"task_settings": {"long_text": "chunk"}})
    annotate(folder, chunked, beside={CERTIFICATE: b"{}"})
    limits = sections((folder / "README.md").read_text())["Limits"]
    assert limits[-1] == "- texts of more than 24 tokens are split into parts"


def test_simulated_figures_are_marked(tiny_model: Model, tmp_path: Path) -> None:
    values = {f"{FAKE}accuracy": 0.9, f"{FAKE}vs_teacher/accuracy_difference": -0.01}
    measured = FolderMeta().with_measurement(Measurement(values, {}))
    found = sections(rendered(tmp_path, tiny_model, measurement=measured.measurement))
    assert "| accuracy | 90.00 % |" in found["Measured"]
    assert found["Limits"][:2] == [
        "- figures marked as simulated were computed in floating point with rounded values: a deployed file may differ",
        "- not recorded: size, latency, memory, groups of rows with a higher error rate than the parent's",
    ]
    deployed = FolderMeta().with_measurement(Measurement({**values, "quality/accuracy": 0.8}, {}))
    (tmp_path / "deployed").mkdir()
    found = sections(rendered(tmp_path / "deployed", tiny_model, measurement=deployed.measurement))
    assert "| accuracy | 80.00 % |" in found["Measured"]
    assert "simulated" not in str(found), "the table shows none"


def test_the_groups_on_which_it_fails_more_than_its_parent(tiny_model: Model, tmp_path: Path) -> None:
    note = slices_note(failing(0.4))
    meta = FolderMeta().with_measurement(Measurement({"quality/accuracy": 0.5}, {}), slices=note)
    folder = save_model(tmp_path / "model", tiny_model, tokenizer_files={}, meta=meta)
    found = sections((folder / "README.md").read_text())
    drop = "-40.00 \\[-49.80, -30.94\\]"
    assert found["Slices"] == [
        f"- the model fails more than its parent on 1 of 2 groups: kind a {drop} points",
        "- 95 % intervals, paired row by row; p values are corrected for the number of groups \\(Holm\\); groups of "
        "fewer than 30 rows are not tested",
        "| slice | rows | accuracy | parent | difference, points | adjusted p |  |",
        "|---|---|---|---|---|---|---|",
        f"| kind: a | 100 | 50.00 % \\[40.27, 59.73\\] | 90.00 % | {drop} | 3.64e-12 | fails more |",
    ]
    assert not any("groups of rows" in line for line in found["Limits"])
    kept = load_model(folder).meta.measurement
    assert kept is not None
    assert kept.slices == note, "it is in compress.json too"


def test_only_the_worst_groups_are_in_the_table() -> None:
    many = slices_note(failing(0.4, "abcdefghijklmnop"))
    assert many is not None
    assert many.lines[0].startswith("the model fails more than its parent on 8 of 16 groups: kind a")
    assert many.lines[0].endswith("and 5 more")
    assert len(many.rows) == 5
    none = slices_note(failing(0.0))
    assert none is not None
    assert (none.lines[0], none.rows) == (
        "the model does not measurably fail more than its parent on any of 2 groups of rows", (),
    )  # fmt: skip
    assert slices_note(failing(0.4, rows=20)) is None, "too few rows: nothing was tested"


def test_names_of_groups_stay_text(tiny_model: Model, tmp_path: Path) -> None:
    note = SlicesNote(lines=(EVIL,), columns=("slice",), rows=((EVIL,),))
    measured = FolderMeta().with_measurement(Measurement({}, {}), slices=note)
    text = rendered(tmp_path, tiny_model, measurement=measured.measurement)
    for forbidden in ("<script", "<!--", "\x1b", "\n# you", "](javascript", "https://"):
        assert forbidden not in text


def test_a_model_without_a_task_head_is_for_training() -> None:
    facts = Facts("m", 9, 5, 1, 8, heads=("mlm",), stock_class="BertForMaskedLM", objection=None)
    found = sections(render(FolderMeta(data=DataNote(name="wiki", fingerprint="ab")), facts))
    assert found["Intended use"] == [
        "- no task head: it returns hidden states and masked-LM logits; fine-tune it before using it for a task",
        "- for texts similar to wiki",
    ]


@pytest.mark.parametrize(
    ("head", "codes"),
    [
        ("language: en\nlicense: mit", ("en",)),
        ('language: ["no", de]  # two', ("no", "de")),
        ("tags: [a]\nlanguage:\n- en\n- zh-Hant\n- en\nlicense: mit", ("en", "zh-Hant")),
        ("language: multilingual", ("multilingual",)),
        ("license: en", ()),
        ("language: English <b>", ()),
    ],
)
def test_the_language_is_that_of_the_card_that_came_with_the_model(
    tiny_model: Model, tmp_path: Path, head: str, codes: tuple[str, ...]
) -> None:
    folder = save_model(tmp_path / "foreign", tiny_model, tokenizer_files={})
    assert "the language is unknown: neither the data nor a model card names it" in (folder / "README.md").read_text()
    (folder / "compress.json").unlink()
    (folder / "README.md").write_text(f"---\n{head}\n---\n# card\nlanguage: fr\n")
    loaded = load_model(folder)
    assert loaded.meta.language == codes
    text = rendered(tmp_path, tiny_model, language=loaded.meta.language)
    assert yaml.safe_load(text.split("---")[1]).get("language", []) == list(codes)
    if codes:
        assert f"- language: {', '.join(codes)}\n" in text


@pytest.mark.parametrize(
    ("name", "shown", "of_rows"),
    [
        ("/home/ada/secret/sst2", "sst2", "sst2/test"),
        ("../../secret/sst2", "sst2", "sst2/test"),
        ("hf:glue/sst2", "hf:glue/sst2", "hf:glue/sst2/test"),
    ],
)
def test_folders_of_this_machine_are_not_published(
    name: str, shown: str, of_rows: str, tiny_model: Model, tmp_path: Path
) -> None:
    measured = Measurement({"quality/accuracy": 0.9}, {"dataset": f"{name}/test"})
    meta = FolderMeta(data=DataNote(name=name, fingerprint="ab" * 32)).with_measurement(measured)
    text = (save_model(tmp_path / "model", tiny_model, tokenizer_files={}, meta=meta) / "README.md").read_text()
    assert "secret" not in text
    assert f"name: {shown}\n" in text
    assert f"- quality on {of_rows}; intervals are 95 %" in text
    assert f"measured on {of_rows} only" in text


# --- what model hubs read -----------------------------------------------------------------------------------------


def head(text: str) -> dict[str, Any]:
    return yaml.safe_load(text.split("---\n")[1])


def test_the_head_is_that_of_a_model_hub(tiny_model: Model, tmp_path: Path) -> None:
    values = {
        "quality/accuracy": 0.912345678,
        "quality/f1_macro": 0.9,
        "quality/majority_baseline": 0.5,
        "vs_teacher/agreement_pct": 98.0,
    }
    meta = FolderMeta(
        task="classification",
        method="distilbert",
        license="apache-2.0",
        language=("no",),
        lineage=(
            Parent(role="teacher", name="google-bert/bert-base-uncased", fingerprint="ab" * 32),
            Parent(role="start", name="model", fingerprint="cd" * 32),
        ),
        data=DataNote(name="hf:stanfordnlp/imdb", fingerprint="ef" * 32),
    ).with_measurement(Measurement(values, {"dataset": "opinions/test", "rows": "900", "metric": "f1_macro"}))
    folder = save_model(tmp_path / "small", tiny_model, tokenizer_files={}, meta=meta)
    text = (folder / "README.md").read_text()
    found = head(text)
    assert found == {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "language": ["no"],
        "license": "apache-2.0",
        "base_model": ["google-bert/bert-base-uncased"],
        "datasets": ["stanfordnlp/imdb"],
        "metrics": ["f1", "accuracy"],
        "tags": ["compress", "distilbert"],
        "model-index": [
            {
                "name": "small",
                "results": [
                    {
                        "task": {"type": "text-classification"},
                        "dataset": {"name": "opinions", "type": "opinions", "split": "test"},
                        "metrics": [
                            {"type": "f1", "name": "f1_macro", "value": 0.9},
                            {"type": "accuracy", "name": "accuracy", "value": 0.912346},
                        ],
                    }
                ],
            }
        ],
    }
    hub = pytest.importorskip("huggingface_hub")
    read = hub.ModelCard(text)
    assert read.data.model_name == "small"
    assert [result.metric_value for result in read.data.eval_results] == [0.9, 0.912346]


@settings(max_examples=scaled(100), deadline=None)
@given(name=st.text(min_size=1, max_size=40), dataset=st.text(max_size=40), license=st.text(max_size=20))
def test_foreign_names_leave_the_head_readable(name: str, dataset: str, license: str) -> None:
    meta = FolderMeta(
        task="classification",
        license=license,
        lineage=(Parent(role="teacher", name=name, fingerprint=""),),
        data=DataNote(name=name, fingerprint=""),
    ).with_measurement(Measurement({"quality/accuracy": 0.5}, {"dataset": dataset, "rows": "1"}))
    facts = Facts(name, 1, 1, 1, 1, ("task",), "BertForSequenceClassification", None)
    found = head(render(meta, facts))
    assert {"library_name", "tags", "model-index", "metrics"} <= set(found)
    assert set(found) <= {
        *("library_name", "pipeline_tag", "license", "base_model", "datasets", "metrics", "tags", "model-index"),
    }


def test_a_model_without_figures_has_no_model_index(tiny_model: Model, tmp_path: Path) -> None:
    found = head(rendered(tmp_path, tiny_model, task="classification"))
    assert not {"model-index", "metrics", "license", "base_model", "datasets"} & set(found)
    simulated = FolderMeta().with_measurement(Measurement({f"{FAKE}accuracy": 0.9}, {"dataset": "a/test"})).measurement
    (tmp_path / "b").mkdir()
    assert "model-index" not in head(rendered(tmp_path / "b", tiny_model, measurement=simulated))


def used(task: str = "classification", **facts: Any) -> str:
    told = {"stock_class": "BertForSequenceClassification", "objection": None, **facts}
    text = render(FolderMeta(task=task, max_length=24), Facts("m", 1, 1, 1, 1, ("task",), **told))
    return text.partition("## How to use")[2]


@pytest.mark.parametrize(
    ("task", "given"),
    [
        ("classification", '"some text"'),
        ("pair-classification", '"some text" --pair "another text"'),
        ("reranking", '--query "a query" "a document" "another document"'),
        ("question-answering", '--question "a question" --context "a text that answers it"'),
    ],
)
def test_the_command_line_gives_what_the_task_reads(task: str, given: str) -> None:
    assert f"compress predict <this folder> {given}\n" in used(task)


@pytest.mark.parametrize(
    ("task", "columns", "pair"),
    [
        ("pair-classification", (), True),
        ("regression", ("text", "text_pair", "label"), True),
        ("multi-label", ("text", "text_pair", "label"), True),
        ("regression", ("text", "label"), False),
        ("regression", (), False),
        ("classification", ("text", "label"), False),
    ],
)
def test_a_model_of_pairs_is_given_two_texts(task: str, columns: tuple[str, ...], pair: bool) -> None:
    data = DataNote(name="x", fingerprint="1", columns=columns)
    stock = Facts("m", 1, 1, 1, 1, ("task",), "BertForSequenceClassification", None, onnx=True)
    texts, code = render(FolderMeta(task=task, data=data), stock), '"a text", "another text"' if pair else '"a text"'
    assert f'compress predict <this folder> "some text"{" --pair" if pair else ""}' in texts
    assert texts.count(f"tokenizer({code},") == 2
    ours = render(FolderMeta(task=task, data=data), Facts("m", 1, 1, 1, 1, ("task",), None, "it is another"))
    assert f"model.predict({code})" in ours


def test_a_quantized_folder_shows_code_that_computes_with_integers() -> None:
    file = used(quantized=True, onnx=True)
    assert 'from_pretrained("<this folder>")\nmodel' not in file
    assert 'onnxruntime.InferenceSession("<this folder>/model.onnx")' in file
    assert "BertForSequenceClassification" not in file
    bare = used(quantized=True)
    assert "BertForSequenceClassification" not in bare
    assert 'compress.load("<this folder>", device="cpu", runtime="torch-int8")' in bare
    assert "compress export <this folder>" in bare


@pytest.mark.parametrize(
    ("prepared", "text"),
    [
        ({}, '"a text"'),
        ({"prompt": 'say "x": '}, '"say \\"x\\": " + "a text"'),
        ({"lowercase": True}, '"a text".lower()'),
        ({"prompt": "Query: ", "lowercase": True}, '("Query: " + "a text").lower()'),
    ],
)
def test_other_programs_prepare_the_texts_of_an_embedding_model_themselves(prepared: dict[str, Any], text: str) -> None:
    facts = Facts("small", 10, 5, 2, 8, ("task",), "BertModel", None, onnx=True)
    lines = render(FolderMeta(task="embedding", task_settings=prepared), facts).splitlines()
    assert f'encoded = tokenizer({text}, return_tensors="np")' in lines
    assert '(vectors,) = session.run(["sentence_embedding"], inputs)' in lines


def test_transformers_code_is_shown_where_transformers_loads_the_folder() -> None:
    assert "BertForSequenceClassification.from_pretrained" in used()
    assert "onnxruntime" not in used()
    both = used(onnx=True)
    assert "BertForSequenceClassification.from_pretrained" in both
    assert "onnxruntime.InferenceSession" in both
    own = used(stock_class=None, objection="it is another")
    assert "from transformers" not in own
    assert 'compress.load("<this folder>")' in own


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("license: mit", "mit"),
        ("license: 'Apache-2.0'  # as of 2024", "apache-2.0"),
        ("license:\n- cc-by-4.0", "cc-by-4.0"),
        ("language: en", None),
        ("license: <script>", None),
    ],
)
def test_the_license_is_that_of_the_parents_card(said: str, found: str | None, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"---\n{said}\ntags: [x]\n---\n\nlicense: gpl\n", encoding="utf-8")
    assert read_license(tmp_path) == found


def test_a_snapshot_of_the_hub_has_the_name_of_its_repository() -> None:
    assert (
        model_name(Path("hub/models--google-bert--bert-base-uncased/snapshots/86b5")) == "google-bert/bert-base-uncased"
    )
    assert model_name(Path("hub/models--bert/snapshots/86b5")) == "bert"
    assert model_name(Path("runs/mine/student")) == "student"
