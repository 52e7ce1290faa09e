"""A corpus that also holds the training texts of the labelled data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compress.data.reading.corpus import open_corpus, with_task_texts
from compress.data.reading.sources import open_table
from compress.errors import UserError
from compress.recipe import load_recipe


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "plain.txt"
    path.write_text("\n".join(f"Plain line number {n}." for n in range(40)), encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path: Path):
    for split, start in (("train", 0), ("validation", 100), ("test", 200)):
        rows = [{"text": f"评论 {start + n // 2}", "label": ["good", "bad"][n // 2 % 2]} for n in range(40)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    return open_table(str(tmp_path))


def test_the_train_texts_come_last_each_once_and_nothing_of_other_splits(texts: Path, table) -> None:
    plain = open_corpus(str(texts))
    both = with_task_texts(plain, table.split("train"))
    assert list(both.texts("train")) == [*plain.texts("train"), *(f"评论 {n}" for n in range(20))]
    assert list(both.texts("validation")) == list(plain.texts("validation"))
    assert both.fingerprint != plain.fingerprint
    assert both.fingerprint != with_task_texts(plain, table.split("test")).fingerprint
    assert both.notes[-1] == "the corpus also contains 20 texts of the labelled data"


def test_what_the_corpus_holds_is_not_added_again_nor_what_it_holds_out(tmp_path: Path, table) -> None:
    (tmp_path / "train.txt").write_text("评论 3\n\n其他", encoding="utf-8")
    (tmp_path / "validation.txt").write_text("评论 7\n", encoding="utf-8")
    both = with_task_texts(open_corpus(str(tmp_path)), table.split("train"))
    assert list(both.texts("train")) == ["评论 3", "其他", *(f"评论 {n}" for n in range(20) if n not in (3, 7))]


def test_the_two_texts_of_a_row_follow_one_another(texts: Path) -> None:
    both = with_task_texts(open_corpus(str(texts)), open_table("opinions-pairs", limit=3).split("train"))
    rows = [row for part in open_table("opinions-pairs", limit=3).split("train").contents() for row in part]
    assert list(both.texts("train"))[-6:] == [text for row in rows for text in row]


def test_a_recipe_without_data_has_no_such_texts() -> None:
    stages = [{"kind": "tokenizer"}]
    recipe = {"name": "r", "corpus": {"source": "a.txt", "task_texts": True}, "stages": stages}
    with pytest.raises(UserError, match=r"corpus\.task_texts reads the texts of `data`, which is missing; add `data:`"):
        load_recipe(recipe)
    corpus = load_recipe({**recipe, "data": {"source": "opinions"}}).corpus
    assert corpus is not None
    assert corpus.task_texts
