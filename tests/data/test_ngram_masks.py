"""Masks over n-grams of words, as ALBERT hides them."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from compress.contracts import MaskingSpec
from compress.data.text.masking import Rule, join_words, mask

ROWS, WORDS = 40, 60


def corpus() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """ids, offsets, special, word_starts of rows of WORDS words of two pieces each, between two special tokens."""
    row = 2 * WORDS + 2
    special = np.zeros(ROWS * row, bool)
    special[::row] = special[row - 1 :: row] = True
    starts = np.tile([True] + [True, False] * WORDS + [True], ROWS)
    return np.arange(ROWS * row) % 90 + 10, np.arange(ROWS + 1) * row, special, starts


def test_lengths_are_drawn_in_proportion_to_one_over_n() -> None:
    starts = join_words(np.ones(200_000, bool), 3, np.random.default_rng(0))
    sizes = np.diff(np.flatnonzero(starts))
    shares = [np.mean(sizes == n) for n in (1, 2, 3)]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.01)


def test_whole_words_in_runs_and_the_share_is_met() -> None:
    ids, offsets, special, starts = corpus()
    rule = Rule(mask_id=4, vocabulary_size=100, choice="whole_word", ngrams=3)
    done = mask(ids, offsets, special, starts, rule, np.random.default_rng(1))
    chosen = np.zeros(len(ids), bool)
    chosen[done.positions] = True
    assert not (chosen & special).any()
    assert chosen.mean() == pytest.approx(0.15, abs=0.02)
    pieces = chosen[~special].reshape(-1, 2)
    assert (pieces[:, 0] == pieces[:, 1]).all()
    plain = Rule(mask_id=4, vocabulary_size=100, choice="whole_word")
    single = np.zeros(len(ids), bool)
    single[mask(ids, offsets, special, starts, plain, np.random.default_rng(1)).positions] = True
    assert runs(pieces[:, 0]) > 1.3 * runs(single[~special].reshape(-1, 2)[:, 0])


def runs(words: np.ndarray) -> float:
    """Mean length of runs of hidden words."""
    begins = words & ~np.r_[False, words[:-1]]
    return words.sum() / begins.sum()


def test_ngrams_are_of_whole_words() -> None:
    with pytest.raises(ValidationError, match="ngrams has no effect without whole_word"):
        MaskingSpec(ngrams=3)
