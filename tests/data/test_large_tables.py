"""Tables that are too large for memory: the same rows, tokens and batches as in memory, with a bounded part of them
held."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from compress.data.batches import randomness
from compress.data.batches.examples import encode_rows, join
from compress.data.batches.randomness import LongOrder, order
from compress.data.batches.task_batches import TaskBatches
from compress.data.reading import frame, text_files
from compress.data.reading.sources import open_table
from compress.data.tables import table as tables
from compress.data.tables.table import Table
from compress.data.text import texts
from compress.data.text.tokenizer import Tokenizer
from compress.storage import spill

WORDS = ("film", "plot", "good", "bad", "was", "not", "very", "and", "i", "think")


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of 3000 rows, among them repeats with other labels."""
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    path = tmp_path / "rows.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(3000):
            text = " ".join(random.choice(WORDS, random.integers(1, 9)))
            row = {"text": text, "label": ("bad", "good")[random.integers(2)], "source": f"s{number % 3}"}
            file.write(json.dumps(row) + "\n")
    return path


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """All limits so small that these rows are many."""
    for module in (spill, frame, tables):
        monkeypatch.setattr(module, "LARGE", 1000)
    for module in (frame, tables):
        monkeypatch.setattr(module, "CHUNK", 100)
    monkeypatch.setattr(spill, "PIECE", 64)
    monkeypatch.setattr(spill, "HELD", 4096)
    monkeypatch.setattr(texts, "GROUP", 500)
    monkeypatch.setattr(randomness, "STRETCH", 256)
    monkeypatch.setattr(randomness, "PIECE", 100)


def contents(table: Table) -> dict[str, tuple[list[str], list[int], list[int], list[str]]]:
    return {
        name: (rows.texts, rows.labels.tolist(), rows.numbers.tolist(), rows.others["source"].to_pylist())
        for name, rows in table.splits.items()
    }


def test_a_large_table_is_the_same_and_not_in_memory(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = open_table(str(rows))
    before = pa.total_allocated_bytes()
    shrink(monkeypatch)
    large = open_table(str(rows))
    assert pa.total_allocated_bytes() - before < 20_000, "the texts of these rows have 90 kB"
    assert (large.fingerprint, large.notes, large.label_names) == (small.fingerprint, small.notes, small.label_names)
    assert any("identical to an earlier row" in note and "different label" in note for note in large.notes)
    assert contents(large) == contents(small)
    some = np.array([1999, 3, 3, 800])
    assert large.split("train").take(some).texts == small.split("train").take(some).texts


def test_tokens_and_batches_of_a_large_table_are_the_same(
    rows: Path, monkeypatch: pytest.MonkeyPatch, toy_tokenizer_files: dict[str, bytes]
) -> None:
    tokenizer = Tokenizer.from_files(toy_tokenizer_files)

    def steps() -> tuple[str, list[list[int]], list[list[int]]]:
        train = open_table(str(rows)).split("train")
        examples = join(*[encode_rows(tokenizer, train, max_length=8)] * 2)
        source = TaskBatches(examples, 7, 30, seed=3)
        batches = [batch for index in (0, 1, 300, 2) for batch in source.step(1, index)]
        return source.fingerprint, [b.input_ids.tolist() for b in batches], [b.row_ids.tolist() for b in batches]

    small = steps()
    shrink(monkeypatch)
    assert steps() == small


@pytest.mark.parametrize("rows", [1, 2, 255, 256, 257, 5000])
def test_an_order_in_stretches_is_the_whole_order(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    whole, long = order(rows, "task", 5, 2), LongOrder(rows, "task", 5, 2)
    np.testing.assert_array_equal(long[0:rows], whole)
    for start in range(0, rows, 333):
        np.testing.assert_array_equal(long[start : start + 40], whole[start : start + 40])
    held = long._held
    assert held is not None
    assert len(held[1]) < max(300, 2 * 256), "one stretch is in memory"


def test_repeats_are_counted_group_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    contents, labels = random.integers(-50, 50, 1000), random.integers(0, 2, 1000)
    whole = texts.count_repeats(contents, labels)
    first = {content: labels[np.flatnonzero(contents == content)[0]] for content in contents.tolist()}
    conflicts = sum(first[content] != label for content, label in zip(contents.tolist(), labels, strict=True))
    shrink(monkeypatch)
    assert texts.count_repeats(contents, labels) == whole == (1000 - len(first), conflicts)
    np.testing.assert_array_equal(texts.is_among(np.arange(-99, 99), contents), np.isin(np.arange(-99, 99), contents))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'text,label\n"one, two",x\n\nthree,y\n'),
        ("a.csv", "text;label\none;x\n"),
        ("a.tsv", 'text\tlabel\nan "odd" one\tx\n"open\ty\n'),
        ("a.csv", "text,label\n"),
    ],
)
def test_rows_of_a_csv_file_come_one_by_one(name: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    notes: list[str] = []
    more: list[str] = []
    table = text_files.read_csv(path, notes)
    whole = [
        dict(zip(table.columns, row, strict=True))
        for row in zip(*(list(map(str, c)) for c in table.columns.values()), strict=True)
    ]
    form, rows = text_files.check_csv(path, more)
    assert [row for _, row in text_files.csv_rows(path, form)] == whole
    assert rows == len(whole)
    assert notes == more
