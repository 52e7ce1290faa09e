"""Splits cut by content: nothing is lost, equal rows stay together, and the order of the rows changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress.data.reading.corpus import open_corpus
from compress.data.tables import splits
from compress.data.tables.splits import SHARES, complete, keys, split_rows
from compress.data.tables.table import Rows
from compress.data.text.texts import note_repeats
from compress.errors import UserError


def rows_of(texts: list[str], role: str = "text", **more: list[str]) -> Rows:
    columns = {name: pa.chunked_array([pa.array(c, pa.string())]) for name, c in ({role: texts} | more).items()}
    return Rows(columns, np.zeros(len(texts), np.int64), np.arange(1, len(texts) + 1))


def texts(count: int) -> list[str]:
    return [f"text {i}" for i in range(count)]


@given(st.lists(st.integers(0, 30), min_size=10, max_size=60).filter(lambda x: len(set(x)) >= 3), st.integers(0, 9))
def test_each_row_is_in_one_part_with_its_equals(numbers: list[int], seed: int) -> None:
    parts = split_rows(rows_of([f"t{n}" for n in numbers]), SHARES, seed, "set")
    assert list(parts) == list(SHARES)
    assert sorted(int(n) for part in parts.values() for n in part.numbers) == list(range(1, len(numbers) + 1))
    held = [set(part.texts) for part in parts.values()]
    assert all(held), "no part is empty"
    assert len(set.union(*held)) == sum(map(len, held)), "equal texts are in one part"


def test_the_order_of_rows_changes_nothing() -> None:
    ours, theirs = (split_rows(rows_of(t), SHARES, 3, "set") for t in (texts(200), texts(200)[::-1]))
    assert {n: set(p.texts) for n, p in ours.items()} == {n: set(p.texts) for n, p in theirs.items()}


def test_parts_have_about_their_shares() -> None:
    sizes = {name: len(part) for name, part in split_rows(rows_of(texts(2000)), SHARES, 0, "set").items()}
    for name, share in SHARES.items():
        assert abs(sizes[name] - 2000 * share) < 5 * (2000 * share * (1 - share)) ** 0.5, "five standard deviations"


def test_keys_follow_content_and_seed() -> None:
    found = keys(rows_of(["a", "b", "a"]), 0)
    assert ((found >= 0) & (found < 1)).all()
    assert found[0] == found[2] != found[1]
    assert keys(rows_of(["a"]), 1)[0] != found[0]
    joined = keys(rows_of(["ab", "a"], text_pair=["c", "bc"]), 0)
    assert joined[0] != joined[1], "two texts do not run together"


def test_rows_that_differ_in_case_and_spaces_stay_together() -> None:
    """`note_repeats` counts these as found in train, so a cut of our own must not divide them."""
    twins = [f"{'A' if i % 2 else 'a'}  text{' ' * (i % 3)} {i // 6}" for i in range(300)]
    parts = split_rows(rows_of(twins), SHARES, 0, "set")
    held = [{" ".join(text.lower().split()) for text in part.texts} for part in parts.values()]
    assert len(set.union(*held)) == sum(map(len, held)) == 50
    notes: list[str] = []
    note_repeats(parts, notes)
    assert [note.split(":")[0] for note in notes] == ["train"]
    backwards = split_rows(rows_of(twins[::-1]), SHARES, 0, "set")
    assert {n: sorted(p.texts) for n, p in backwards.items()} == {n: sorted(p.texts) for n, p in parts.items()}


def test_questions_about_one_context_stay_together() -> None:
    asked = rows_of(["q1", "q2", "q3"], "question", context=["c", "c", "d"])
    found = keys(asked, 0)
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("given_texts", "why"), [(texts(9), "9 rows, 9 of them different"), (["a", "b"] * 9, "18 rows, 2")]
)
def test_too_few_rows(given_texts: list[str], why: str) -> None:
    with pytest.raises(UserError, match=f"^set: too few rows for 3 splits: {why}"):
        split_rows(rows_of(given_texts), SHARES, 0, "set")


ALL = ("train", "validation", "test")


def test_train_alone_is_cut_in_three() -> None:
    notes: list[str] = []
    found = complete({"train": rows_of(texts(100))}, ("train", "validation"), 0, "set", notes)
    assert list(found) == list(ALL), "a later evaluation finds the rows that training did not see"
    assert sum(map(len, found.values())) == 100
    assert notes[0].startswith("no splits given: split by content into ")


def test_a_corpus_is_cut_by_keys_that_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    monkeypatch.setattr(splits, "keys", lambda rows, seed: [computed.append(len(rows)), keys(rows, seed)][1])
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in texts(100)))
    corpus = open_corpus(str(tmp_path / "a.txt"))
    assert computed == [100]
    assert len(corpus.splits["train"]) + len(corpus.splits["validation"]) == 100
    (tmp_path / "few.txt").write_text("one\ntwo\n")
    few = open_corpus(str(tmp_path / "few.txt"))
    assert few.splits["validation"] is few.splits["train"]
    assert "too few documents for a validation split: the train text is used instead" in few.notes


def test_validation_is_held_out_from_train() -> None:
    notes: list[str] = []
    test = rows_of(["t"])
    found = complete({"train": rows_of(texts(100)), "test": test}, ALL, 0, "set", notes)
    assert len(found["train"]) + len(found["validation"]) == 100
    assert found["test"] is test
    assert notes == [f"no validation split: {len(found['validation'])} rows held out from train (seed 0)"]


@pytest.mark.parametrize(("missing", "lender"), [("test", "validation"), ("validation", "test")])
def test_a_missing_split_is_lent(missing: str, lender: str) -> None:
    have, notes = {lender: rows_of(["v"])}, []
    found = complete(have, (missing,), 0, "set", notes)
    assert found[missing] is have[lender]
    assert notes[0].startswith(f"no {missing} split: the {lender} rows are used instead")
    assert list(have) == [lender], "the given splits are left as they were"


def test_what_is_there_stays() -> None:
    have, notes = {name: rows_of([name]) for name in ALL}, []
    assert complete(have, ALL, 0, "set", notes) == have
    assert not notes
    with pytest.raises(UserError, match=r"^set: no train split: found test; add train\.jsonl"):
        complete({"test": rows_of(["a"])}, ALL, 0, "set", notes)
