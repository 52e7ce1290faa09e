"""Texts from remembered words are encoded as the tokenizer encodes them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from example_counts import scaled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compress.data.text import cached_tokenizer
from compress.data.text.cached_tokenizer import CachedTokenizer
from compress.data.text.tokenizer import Tokenizer

WORDS = st.one_of(
    st.sampled_from(["the", "films", "[SEP]", "x[CLS]y", "", "\t", "e\u0301", "中文", "a.b"]), st.text(max_size=6)
)
TEXTS = st.lists(st.lists(WORDS, max_size=12).map(" ".join), min_size=1, max_size=5)


@pytest.fixture
def tokenizer(toy_tokenizer_files: dict[str, bytes]) -> Tokenizer:
    return Tokenizer.from_files(toy_tokenizer_files)


def require_equal(cached: CachedTokenizer, tokenizer: Tokenizer, texts: list[str], max_length: int) -> None:
    ours, theirs = (one.encode_batch(texts, max_length=max_length) for one in (cached, tokenizer))
    for name in ("ids", "offsets", "segments"):
        left, right = getattr(ours, name), getattr(theirs, name)
        assert left.dtype == right.dtype
        assert np.array_equal(left, right), name
    assert ours.cut == theirs.cut


@settings(max_examples=scaled(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS, st.integers(3, 20))
def test_any_text_at_any_length(tokenizer: Tokenizer, texts: list[str], max_length: int) -> None:
    cached = CachedTokenizer(tokenizer)
    require_equal(cached, tokenizer, texts, max_length)
    require_equal(cached, tokenizer, texts[::-1], max_length)  # now remembered


def test_words_that_were_seen_are_not_tokenized_again(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = CachedTokenizer(tokenizer)
    require_equal(cached, tokenizer, ["the film was good", "the plot was not"], 16)
    monkeypatch.setattr(tokenizer, "encode_plain", None)
    monkeypatch.setattr(Tokenizer, "encode_batch", None)
    assert len(cached.encode_batch(["the plot was good"], max_length=16).ids) == 6


def test_pairs_long_texts_and_other_tokenizers_go_the_usual_way(toy_tokenizer_files: dict[str, bytes]) -> None:
    tokenizer = Tokenizer.from_files(toy_tokenizer_files)
    cached = CachedTokenizer(tokenizer)
    ours, theirs = (one.encode_batch(["a film"], ["a plot"], max_length=9) for one in (cached, tokenizer))
    assert ours.segments.tolist() == theirs.segments.tolist()
    assert ours.segments.any()
    require_equal(cached, tokenizer, ["good " * 1000], 5)
    told = json.loads(toy_tokenizer_files["tokenizer_config.json"]) | {"truncation_side": "left"}
    left = Tokenizer.from_files({**toy_tokenizer_files, "tokenizer_config.json": json.dumps(told).encode()})
    require_equal(CachedTokenizer(left), left, ["the film was good and bad"], 5)


def test_it_forgets(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_tokenizer, "WORDS", 3)
    cached = CachedTokenizer(tokenizer)
    for text in ("the film was not", "very good and bad", "the plot was good"):
        require_equal(cached, tokenizer, [text], 16)
    assert len(cached._cache._numbers) == 4
