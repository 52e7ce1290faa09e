"""Masked language modelling: which tokens are hidden, and what stands in their place. Pure functions of a generator.

BERT (arXiv 1810.04805): 15 % of the tokens of each row are predicted; of these 80 % become [MASK], 10 % a random token,
10 % stay. Dynamic masking (RoBERTa, arXiv 1907.11692) is these functions called anew at every step. Whole-word masking
hides all pieces of a word together. DistilBERT (arXiv 1910.01108, `distiller.py`) draws over the whole batch and
prefers rare tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CHOICES = ("token", "whole_word", "distilbert")


@dataclass(frozen=True)
class MaskedTokens:
    """ids: (T,) int32 with tokens replaced.  positions: (M,) int64, ascending.  labels: (M,) int64, the originals."""

    ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Rule:
    """How tokens are hidden. choice: one of CHOICES.  rate: share of the tokens that are predicted.

    mask, random: shares of those that become [MASK] or a random token; the rest stay.  counts: (V,) how often each
    token occurs, and rarity: the exponent of that count; both read by "distilbert" alone.  ngrams: of "whole_word", the
    longest run of words that is hidden together.
    """

    mask_id: int
    vocabulary_size: int
    choice: str = "token"
    rate: float = 0.15
    counts: np.ndarray | None = None
    mask: float = 0.8
    random: float = 0.1
    rarity: float = 0.7
    ngrams: int = 1


def mask(
    ids: np.ndarray,
    offsets: np.ndarray,
    special: np.ndarray,
    word_starts: np.ndarray,
    rule: Rule,
    random: np.random.Generator,
) -> MaskedTokens:
    """Hide tokens of packed rows. ids (T,), offsets (B+1,), special (T,) bool, word_starts (T,) bool.

    Special tokens are never hidden. The random token is uniform over the whole vocabulary, as in the references.
    """
    if rule.choice == "distilbert":
        chosen = choose_rare(ids, special, rule, random)
    elif rule.choice == "whole_word":
        if rule.ngrams > 1:
            word_starts = join_words(word_starts, rule.ngrams, random)
        chosen = choose_words(offsets, special, word_starts, rule.rate, random)
    else:
        chosen = choose_tokens(offsets, special, rule.rate, random)
    return replace(ids, chosen, rule, random)


def replace(ids: np.ndarray, positions: np.ndarray, rule: Rule, random: np.random.Generator) -> MaskedTokens:
    """[MASK], a random token or no change by the rule's shares, drawn for each token on its own."""
    out = ids.copy()
    draw = random.random(len(positions))
    strangers = random.integers(0, rule.vocabulary_size, len(positions))
    hidden = draw < rule.mask
    changed = ~hidden & (draw < rule.mask + rule.random)
    out[positions[hidden]] = rule.mask_id
    out[positions[changed]] = strangers[changed]
    return MaskedTokens(out, positions, ids[positions].astype(np.int64))


def choose_tokens(offsets: np.ndarray, special: np.ndarray, rate: float, random: np.random.Generator) -> np.ndarray:
    """Positions to predict: round(rate · n) of the n ordinary tokens of each row, at least one."""
    return choose_words(offsets, special, np.ones(len(special), dtype=bool), rate, random)


def choose_words(
    offsets: np.ndarray, special: np.ndarray, word_starts: np.ndarray, rate: float, random: np.random.Generator
) -> np.ndarray:
    """Positions of whole words, drawn in random order until a row's round(rate · n) tokens are reached.

    The word that crosses that number is taken when more than half of it still fits, so that the share is met on
    average; the first one always.
    """
    ordinary = np.flatnonzero(~special)
    if not len(ordinary):
        return ordinary
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))[ordinary]
    starts = word_starts[ordinary].copy()
    starts[0] = True
    starts[1:] |= (row[1:] != row[:-1]) | (ordinary[1:] != ordinary[:-1] + 1)  # a row or a special token between
    first = np.flatnonzero(starts)
    size = np.diff(np.append(first, len(ordinary)))
    word_row = row[first]
    budget = np.maximum(1, np.floor(rate * np.bincount(row, minlength=len(offsets) - 1) + 0.5))
    shuffled = np.lexsort((random.random(len(first)), word_row))
    before = np.cumsum(size[shuffled]) - size[shuffled]
    leads = np.r_[True, word_row[shuffled][1:] != word_row[shuffled][:-1]]
    before -= np.repeat(before[leads], np.diff(np.append(np.flatnonzero(leads), len(first))))
    taken = leads | (before + size[shuffled] / 2 < budget[word_row[shuffled]])
    picked = np.zeros(len(first), dtype=bool)
    picked[shuffled[taken]] = True
    return ordinary[np.repeat(picked, size)]


def join_words(word_starts: np.ndarray, longest: int, random: np.random.Generator) -> np.ndarray:
    """(T,) bool: where runs of words begin, of n words each, n drawn from 1..longest with p in proportion to 1/n.

    Each run is then hidden as one, as ALBERT hides n-grams (1909.11942, equation 1). Runs that cross a row's end are
    cut there.
    """
    words = np.flatnonzero(word_starts)
    sizes = np.arange(1, longest + 1)
    drawn = random.choice(sizes, size=len(words), p=(1 / sizes) / (1 / sizes).sum())
    begins = np.cumsum(drawn) - drawn
    starts = np.zeros_like(word_starts)
    starts[words[begins[begins < len(words)]]] = True
    return starts


def choose_rare(ids: np.ndarray, special: np.ndarray, rule: Rule, random: np.random.Generator) -> np.ndarray:
    """ceil(rate · T) positions of the whole batch without replacement, p ∝ max(count, 1)^-rarity, special tokens 0.

    T counts special tokens, as in the reference. Drawn as the smallest of exponential variables with those rates, which
    has the distribution of drawing one after the other without replacement.
    """
    if rule.counts is None:
        raise ValueError("choice distilbert needs token counts")
    ordinary = np.flatnonzero(~special)
    wanted = min(int(np.ceil(rule.rate * len(ids))), len(ordinary))
    weight = np.maximum(rule.counts[ids[ordinary]], 1).astype(np.float64) ** -rule.rarity
    waiting = random.exponential(size=len(ordinary)) / weight
    return np.sort(ordinary[np.argpartition(waiting, wanted - 1)[:wanted]]) if wanted else ordinary[:0]
