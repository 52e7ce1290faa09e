"""The model card tells what is known, and foreign text in it stays text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.contracts import Measurement
from compress.encoder.model import Model
from compress.modelfolder import card
from compress.modelfolder.folder import DataNote, FolderMeta, Parent, RecipeNote, load_model, save_model

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
    }
    ours["quality/f1"] = float("nan")
    theirs = {"quality/accuracy": 0.95, "size/disk_mb": 40.0, "speed/latency_p50_ms": 10.0}
    context = {"device": "cpu", "threads": "2"}
    meta = FolderMeta().measured(Measurement(ours, context), Measurement(theirs, context))
    text = (save_model(tmp_path / "model", tiny_model, tokenizer_files={}, meta=meta) / "README.md").read_text()
    assert "|  | this model | teacher | ratio |" in text
    assert "| accuracy | 0.9120 (0.9000 to 0.9240) | 0.9500 | 0.960 |" in text
    assert "| on disk, MB | 10.00 | 40.00 | 0.250 |" in text
    assert "| latency p50, ms | 2.50 | 10.00 | 0.250 |" in text
    assert "| vs\\_teacher/agreement\\_pct | 95.25 | | |" in text
    assert "f1" not in text
    assert "Measured with device: cpu, threads: 2." in text
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
        "- data: opinions (`efefefefefefefef`), rows: train 12,000, test 900",
        "- trained with half of the steps",
        'output = model(**tokenizer("a text", return_tensors="pt", truncation=True, max_length=24))',
    ):
        assert line in text.splitlines(), line
    assert "compress predict" in text
    assert f"{sum(p.numel() for p in tiny_model.parameters()):,} parameters" in text
    assert "## Measured" not in text


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


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_escaped_text_has_no_markup_left(text: str) -> None:
    escaped = card.escape(text)
    assert escaped.isprintable() or not escaped
    bare = re.sub(r"&(#\d+|amp|lt|gt);", "", escaped)
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_\[\]()|#!~]|://|www\.|@", bare)
    assert "<" not in escaped
    assert ">" not in escaped


def test_a_card_of_ones_own(tiny_model: Model, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", tiny_model, tokenizer_files={}, card="# mine\n")
    assert (folder / "README.md").read_text() == "# mine\n"


def test_a_model_that_answers_questions_says_how_it_is_asked(tiny_model: Model, tmp_path: Path) -> None:
    text = rendered(tmp_path, tiny_model, task="question-answering", max_length=384)
    assert "pipeline_tag: question-answering" in text
    assert 'compress predict <this folder> --question "…" --context "…"' in text
    assert 'tokenizer("a question", "a context", return_tensors="pt", truncation="only_second", max_length=384)' in text
