"""Blocks cut in two segments: both orders occur, nothing is lost, and a random segment is of another document."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress.data.text.pairs import DRAWS, Pairer, Segments, divisible
from compress.data.text.tokens import Blocks, Tokens
from compress.errors import UserError

ROOM = 12
"""Tokens of a pair."""


def corpus(sentences: list[list[int]]) -> tuple[Tokens, Blocks]:
    """Documents of sentences of so many words, a token each; a block for each document."""
    lengths = [n for document in sentences for n in document]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    documents = np.concatenate([[0], np.cumsum([len(document) for document in sentences])])
    ids = np.arange(ends[-1], dtype=np.int32)
    tokens = Tokens(ids, np.ones(len(ids), bool), ends, documents, "")
    bounds = ends[documents]
    return tokens, Blocks(bounds[:-1], bounds[1:], np.arange(len(sentences)))


CORPORA = st.lists(
    st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda x: sum(x) > 1), min_size=2, max_size=5
)
UNIT = st.floats(0, 1, exclude_max=True)


def draw_segments(
    sentences: list[list[int]], kind: Literal["nsp", "sop"], data: st.DataObject
) -> tuple[Tokens, Blocks, Segments]:
    """The corpus with its blocks, and the segments that any draws make of them."""
    tokens, blocks = corpus(sentences)
    rows = np.arange(len(blocks))
    draws = np.array([[data.draw(UNIT) for _ in range(DRAWS)] for _ in rows])
    return tokens, blocks, Pairer(tokens, blocks, kind, ROOM).segments(rows, draws)


@given(CORPORA, st.data())
def test_sentence_order(sentences: list[list[int]], data: st.DataObject) -> None:
    tokens, blocks, made = draw_segments(sentences, "sop", data)
    for r in range(len(blocks)):
        a, b = (made.a_start[r], made.a_end[r]), (made.b_start[r], made.b_end[r])
        first, second = (b, a) if made.labels[r] else (a, b)
        assert first[0] == blocks.starts[r] < first[1] == second[0] < second[1] == blocks.ends[r]
        if len(sentences[r]) > 1:
            assert first[1] in tokens.sentences[:]


@given(CORPORA, st.data())
def test_next_sentence(sentences: list[list[int]], data: st.DataObject) -> None:
    _, blocks, made = draw_segments(sentences, "nsp", data)
    for r in range(len(blocks)):
        assert made.a_start[r] == blocks.starts[r] < made.a_end[r] < blocks.ends[r]
        assert made.b_start[r] < made.b_end[r]
        assert made.b_end[r] - made.b_start[r] + made.a_end[r] - made.a_start[r] <= ROOM
        if made.labels[r]:
            other = np.searchsorted(blocks.starts, made.b_start[r], side="right") - 1
            assert other != r, "of another document"
            assert made.b_end[r] <= blocks.ends[other]
        else:
            assert made.b_start[r] == made.a_end[r], "what follows"


def test_every_other_block_can_be_drawn() -> None:
    tokens, blocks = corpus([[2, 2]] * 4)
    draws = np.array([[0, 0, share, 0] for share in (0.0, 0.34, 0.67)])
    made = Pairer(tokens, blocks, "nsp", ROOM).segments(np.array([1, 1, 1]), draws)
    assert (made.b_start // 4).tolist() == [0, 2, 3]


def test_one_document_has_no_other() -> None:
    tokens, blocks = corpus([[2, 2]])
    with pytest.raises(UserError, match="next sentence prediction needs at least two documents; use sop or none"):
        Pairer(tokens, blocks, "nsp", ROOM)
    assert Pairer(tokens, blocks, "sop", ROOM)


def test_a_single_word_cannot_be_cut() -> None:
    """The word of the second block has three tokens."""
    tokens, blocks = corpus([[2], [3], [1]])
    starts = np.array([True, True, True, False, False, True])
    tokens = Tokens(tokens.ids, starts, tokens.sentences, tokens.documents, "")
    assert divisible(tokens, blocks).tolist() == [True, False, False]
