"""Copies of texts with words replaced: only words, at the rate, by candidates, and the same ones for a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.data.tables.table import Rows
from compress.data.text.rewording import copies, mix_spans, passage, passages, replace_words

TEXTS = st.text(alphabet="ab é好Z9-'.,!?  \n[]", max_size=40)
LISTS = st.lists(st.text(alphabet="ab好9.", min_size=1, max_size=4), min_size=1, max_size=8)


def rows(**columns: Sequence) -> Rows:
    made = {role: pa.chunked_array([pa.array(values)]) for role, values in columns.items()}
    count = len(next(iter(columns.values())))
    return Rows(made, np.arange(count), np.arange(1, count + 1))


def options(table: Rows, *words: str) -> Iterator[list[list[str]]]:
    """The same candidates for every word."""
    return ([list(words) for _ in p.places] for p in passages(table))


def test_words_are_runs_of_letters() -> None:
    found = passage("Well, the B2B-film isn't 9/10: 好看 é!")
    assert found.words() == ["Well", "the", "好", "看", "é"]
    assert found.items is None
    words = ["a", "film", ".", "x1", "good"]
    assert passage(words).words() == ["a", "film", "good"]
    assert passage(words).items == (0, 1, 4)
    assert passage("").places == ()


@given(TEXTS)
def test_what_is_no_word_stays_where_it_is(text: str) -> None:
    found = passage(text)
    made = replace_words(text, found, ["NEW"] * len(found.places))
    assert isinstance(made, str)
    kept, at, left = [], 0, text
    for start, end in found.places:
        kept.append(text[at:start])
        at = end
    kept.append(text[at:])
    assert made == "NEW".join(kept)
    assert replace_words(text, found, [None] * len(found.places)) == left


@given(LISTS)
def test_a_list_of_words_keeps_its_length(words: list[str]) -> None:
    found = passage(words)
    made = replace_words(words, found, ["NEW"] * len(found.places))
    assert len(made) == len(words)
    assert [new == "NEW" for new in made] == [word.isalpha() for word in words]


@settings(deadline=None)  # the first one imports
@given(st.lists(TEXTS, min_size=1, max_size=5), st.integers(0, 99), st.integers(1, 4))
def test_copies_differ_from_their_text_and_from_each_other(texts: list[str], seed: int, count: int) -> None:
    table = rows(text=texts)
    made = copies(table, options(table, "x", "y", "z"), count=count, rate=0.5, seed=seed)
    again = copies(table, options(table, "x", "y", "z"), count=count, rate=0.5, seed=seed)
    found = made.columns["text"].to_pylist()
    assert found == again.columns["text"].to_pylist()
    for place in set(made.source.tolist()):
        own = [text for text, source in zip(found, made.source) if source == place]
        assert len({texts[place], *own}) == len(own) + 1
        assert len(own) <= count
    assert list(made.source) == sorted(made.source)


def test_the_rate_is_met_and_candidates_are_equally_likely() -> None:
    table = rows(text=["one two three four five six seven eight nine ten"] * 400)
    made = copies(table, options(table, "x", "y", "z", "w"), count=5, rate=0.4, seed=1)
    assert made.words == 400 * 5 * 10
    assert made.replaced / made.words == pytest.approx(0.4, abs=0.015)
    letters = " ".join(made.columns["text"].to_pylist())
    shares = np.array([sum(word == c for word in letters.split()) for c in "yzw"]) / made.replaced
    assert shares == pytest.approx([0.25] * 3, abs=0.02)


def test_words_without_candidates_stay_and_count_for_nothing() -> None:
    table = rows(text=["keep this"])
    made = copies(table, iter([[[], ["that"]]]), count=3, rate=1.0, seed=0)
    assert made.columns["text"].to_pylist() == ["keep that"], "the same copy again is left out"
    assert (made.words, made.replaced) == (3, 3)
    assert not len(copies(table, iter([[[], []]]), count=3, rate=1.0, seed=0).source)


def test_a_rows_copies_do_not_depend_on_other_rows() -> None:
    texts = ["one two three four", "five six seven eight"]
    both, first = rows(text=texts), rows(text=[texts[0], "something else entirely here"])
    found = [copies(t, options(t, "x", "y"), count=4, rate=0.5, seed=3) for t in (both, first)]
    own = [[x for x, s in zip(m.columns["text"].to_pylist(), m.source) if s == 0] for m in found]
    assert own[0] == own[1]
    other = copies(both, options(both, "x", "y"), count=4, rate=0.5, seed=4).columns["text"].to_pylist()
    assert other != found[0].columns["text"].to_pylist()


def test_every_column_of_text_is_reworded_but_contexts() -> None:
    table = rows(text=["a b"], text_pair=["c d"])
    made = copies(table, options(table, "x"), count=1, rate=1.0, seed=0)
    assert {role: c.to_pylist() for role, c in made.columns.items()} == {"text": ["x x"], "text_pair": ["x x"]}

    table = rows(question=["who is it"], context=["it is she"], id=["7"], tags=[[1, 2]])
    asked = Rows({role: table.columns[role] for role in ("question", "context")}, table.labels, table.numbers)
    made = copies(asked, options(asked, "x"), count=2, rate=1.0, seed=0)
    assert {role: c.to_pylist() for role, c in made.columns.items()} == {
        "question": ["x x x"], "context": ["it is she"],
    }  # fmt: skip
    assert made.rows(asked, np.array([5])).numbers.tolist() == [1]


def test_lists_of_words_stay_lists() -> None:
    table = rows(words=[["a", "big", "dog", "."], ["no", "1"]])
    made = copies(table, options(table, "x"), count=1, rate=1.0, seed=0)
    assert made.columns["words"].to_pylist() == [["x", "x", "x", "."], ["x", "1"]]
    assert made.columns["words"].type == table.columns["words"].type


def test_spans_are_mixed_with_those_of_another_row() -> None:
    texts = ["one two three four", "five six seven eight", "a, b, c, d."]
    column = pa.chunked_array([pa.array(texts, pa.large_string())])
    table = Rows({"text": column}, np.zeros(3, np.int64), np.arange(1, 4))
    made = mix_spans(table, count=4, rate=0.5, seed=0)
    assert made.columns["text"].to_pylist() == mix_spans(table, count=4, rate=0.5, seed=0).columns["text"].to_pylist()
    for place, text in zip(made.source.tolist(), made.columns["text"].to_pylist(), strict=True):
        own, words = set(texts[place].split()), set(text.split())
        assert words & own, "half of it stays"
        assert text not in texts
    words = pa.chunked_array([pa.array([["a", "b"], ["c", "d"]])])
    lists = mix_spans(Rows({"words": words}, np.zeros(2, np.int64), np.arange(2)), count=1, rate=0.5, seed=0)
    assert [len(row) for row in lists.columns["words"].to_pylist()] == [2] * len(lists.source)
    alone = table.take(np.array([0]))
    assert not len(mix_spans(alone, count=4, rate=0.5, seed=0).source)
