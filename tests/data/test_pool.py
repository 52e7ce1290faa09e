"""Rows out of a large text: the nearest passages, not all alike, and none that models are measured on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compress.data.reading import file_corpus
from compress.data.reading.corpus import open_corpus
from compress.data.reading.pool import PoolRequest, TextVectors, _Nearest, _VectorRanking, cut_passages
from compress.data.reading.sources import open_table
from compress.data.tables.table import Table
from compress.errors import UserError

Write = Callable[..., Path]
FILMS = ("actor", "plot", "camera", "director", "scene", "music")
LABELLED = [
    {"text": f"the {word} of this film was {how} indeed", "label": how} for word in FILMS for how in ("good", "awful")
]


def opened(write: Write, tmp_path: Path, lines: list[str], rows: int | None, vectors: Any = None) -> Table:
    write("data/train.jsonl", LABELLED)
    write("data/validation.jsonl", [{"text": "a very fine camera in every single scene", "label": "good"}])
    write("data/test.jsonl", [{"text": "the director lost his plot in this awful film", "label": "awful"}])
    (tmp_path / "corpus.txt").write_text("\n".join(lines))
    return open_table(str(tmp_path / "data"), pool=PoolRequest(str(tmp_path / "corpus.txt"), rows, vectors))


def taken(table: Table) -> list[str]:
    rows = table.split("unlabelled")
    assert (rows.labels == -100).all()
    return rows.texts


def noise(count: int) -> list[str]:
    return [f"the committee number {i} adopted budget rules for harbour town {i}" for i in range(count)]


def test_the_nearest_passages_are_taken(write: Write, tmp_path: Path) -> None:
    near = [f"critics say the {word} in the film was rather good" for word in FILMS]
    table = opened(write, tmp_path, [*noise(300), *near, *noise(300)], rows=6)
    assert sorted(taken(table)) == sorted(near)
    assert any(note.startswith("pool: 6 of ") for note in table.notes)
    again = opened(write, tmp_path, [*noise(300), *near, *noise(300)], rows=6)
    assert taken(again) == taken(table)
    assert again.fingerprint == table.fingerprint


def test_one_training_row_does_not_fill_the_pool(write: Write, tmp_path: Path) -> None:
    much = [f"the actor of this film was good indeed {i}" for i in range(200)]
    some = [f"somebody praised that {word} of the film loudly" for word in FILMS[1:]]
    table = opened(write, tmp_path, [*much, *some, *noise(50)], rows=12)
    assert sum(text in much for text in taken(table)) < 12
    assert set(taken(table)) & set(some)


def test_copies_of_measured_rows_are_left_out_and_counted(
    write: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = "The DIRECTOR lost his plot, in this awful film!"
    near = "this awful film has a director and a plot that nobody needs"
    caplog.set_level(logging.WARNING, "compress.data")
    table = opened(write, tmp_path, [copy, near, near, LABELLED[0]["text"]], rows=3)
    assert taken(table) == [near]
    assert "pool: 1 passage left out as near-copies of validation or test rows" in table.notes
    assert caplog.messages == ["the pool has only 1 of the 3 rows requested"]


def test_passages_are_whole_sentences_as_long_as_the_rows() -> None:
    text = "One two. Three four five! " + "word " * 30 + ". Six seven eight nine. Ten"
    assert list(cut_passages(text, 4, 10)) == ["One two. Three four five!", "Six seven eight nine."]


def test_words_of_a_tagging_task(write: Write, tmp_path: Path) -> None:
    rows = [{"tokens": ["anna", "saw", word, "."], "ner_tags": ["B-PER", "O", "O", "O"]} for word in FILMS]
    for split in ("train", "validation", "test"):
        write(
            f"tags/{split}.jsonl",
            [{**row, "tokens": [*row["tokens"], split], "ner_tags": [*row["ner_tags"], "O"]} for row in rows],
        )
    (tmp_path / "corpus.txt").write_text("anna saw the music here\nbudget rules for a harbour town\n")
    table = open_table(str(tmp_path / "tags"), pool=PoolRequest(str(tmp_path / "corpus.txt"), 1))
    assert table.split("unlabelled").columns["words"].to_pylist() == [["anna", "saw", "the", "music", "here"]]


def test_a_task_on_pairs_has_no_pool(write: Write, tmp_path: Path) -> None:
    pairs = [{"premise": f"a {i}", "hypothesis": f"b {i}", "label": ("no", "yes")[i % 2]} for i in range(20)]
    write("pairs/train.jsonl", pairs)
    (tmp_path / "corpus.txt").write_text("a 1\n")
    with pytest.raises(UserError, match="cannot be taken from plain text"):
        open_table(str(tmp_path / "pairs"), pool=PoolRequest(str(tmp_path / "corpus.txt"), 1))


def test_text_without_a_common_word(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="all passages are copies of labelled rows"):
        opened(write, tmp_path, [LABELLED[0]["text"]] * 3, rows=3)
    with pytest.raises(UserError, match="no passage is like the training rows"):
        opened(write, tmp_path, ["lorem ipsum dolor sit amet consectetur adipiscing"] * 3, rows=3)


def embed(texts: Any) -> np.ndarray:
    """Films and screens are one thing to this model, whatever the words; what all texts share is large."""
    found = [[10.0, float("film" in t or "screen" in t), float("budget" in t), float("harbour" in t)] for t in texts]
    return np.array(found, dtype=np.float32)


def by_vectors(calls: list[int] | None = None, mark: str = "model") -> Callable[[], TextVectors]:
    def counted(texts: Any) -> np.ndarray:
        if calls is not None:
            calls.append(len(texts))
        return embed(texts)

    return lambda: TextVectors(counted, [mark])


def test_passages_are_ranked_by_vectors(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    near = [f"screen number {i} showed pictures of people in colour" for i in range(5)]
    common = [f"the {word} of this budget was awful indeed" for word in FILMS]  # many common words, another topic
    lines = [*noise(50), *common, *near, *noise(50)]
    by_words = opened(write, tmp_path, lines, rows=5)
    assert not set(taken(by_words)) & set(near)
    calls: list[int] = []
    table = opened(write, tmp_path, lines, rows=5, vectors=by_vectors(calls))
    assert sorted(taken(table)) == sorted(near)
    assert any(note.endswith("nearest to the training rows by vectors of the teacher") for note in table.notes)
    assert sum(calls) >= len(lines)


def test_the_test_split_of_a_pool_is_never_taken(write: Write, tmp_path: Path) -> None:
    write("pool/train.jsonl", [{"text": text} for text in noise(30)])
    write("pool/test.jsonl", [{"text": f"the {word} of this film was secret indeed"} for word in FILMS])
    corpus = open_corpus(str(tmp_path / "pool"))
    assert "test" in corpus.splits
    assert sorted(corpus.list_texts()) == sorted(noise(30))


def test_a_selection_by_vectors_is_kept(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    lines = [*noise(20), *(f"screen number {i} showed pictures of people in colour" for i in range(5))]
    calls: list[int] = []
    first = opened(write, tmp_path, lines, rows=3, vectors=by_vectors(calls))
    seen = len(calls)
    again = opened(write, tmp_path, lines, rows=3, vectors=by_vectors(calls))
    assert (again.fingerprint, again.notes) == (first.fingerprint, first.notes)
    assert len(calls) == seen, "the model reads nothing a second time"
    opened(write, tmp_path, lines, rows=3, vectors=by_vectors(calls, "another model"))
    assert len(calls) > seen
    seen = len(calls)
    opened(
        write,
        tmp_path,
        [*lines, "screen number nine showed pictures of people in colour"],
        rows=3,
        vectors=by_vectors(calls),
    )
    assert len(calls) > seen, "another text"
    for file in (tmp_path / "cache/pool").glob("*.json"):
        file.write_text("{")
    seen = len(calls)
    assert opened(write, tmp_path, lines, rows=3, vectors=by_vectors(calls)).fingerprint == first.fingerprint
    assert len(calls) > seen


def test_vectors_keep_the_limits_of_words(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    copy = "The DIRECTOR lost his plot, in this awful film!"
    near = "this awful film has a director and a plot that nobody needs"
    table = opened(write, tmp_path, [copy, near, near, LABELLED[0]["text"]], rows=3, vectors=by_vectors())
    assert taken(table) == [near]
    assert "pool: 1 passage left out as near-copies of validation or test rows" in table.notes
    chosen = _Nearest(["film a", "budget b"], 4, _VectorRanking(by_vectors()()))
    passages = [*(f"film {i}" for i in range(30)), *(f"budget {i}" for i in range(10))]
    assert chosen.read(iter(passages)) == 40
    first = [text for _, text in chosen.in_order()][: 2 * chosen.room]
    assert sum("budget" in text for text in first) == chosen.room, "one training row does not fill the pool"


@pytest.mark.parametrize("stream", [False, True])
def test_a_small_pool_is_read_once(
    stream: bool, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if stream:
        monkeypatch.setattr(file_corpus, "LARGE", 0)
    caplog.set_level(logging.WARNING, "compress.data")
    line = "the actor of this film was good indeed too"
    table = opened(write, tmp_path, [f"{line}\n"] * 30, rows=5)
    assert (taken(table), caplog.messages) == ([line], ["the pool has only 1 of the 5 rows requested"])
    assert any(note.startswith("pool: 1 of 30 passages of ") for note in table.notes)
    few = [f"{word} number {i} of this film was good indeed\n" for i, word in enumerate(FILMS[:3])]
    table = opened(write, tmp_path, few, rows=3)
    assert any(note.startswith("pool: 3 of 3 passages of ") for note in table.notes)
