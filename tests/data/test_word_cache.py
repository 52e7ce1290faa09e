"""Words tokenized once give what the tokenizer gives for the whole sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from example_counts import scaled
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from compress.data.text import word_cache as wordcache
from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokens import _encoded, sentences
from compress.data.text.word_cache import WordCache, cuts_at_spaces

PIECES = [
    "the",
    "films",
    "[SEP]",
    "x[CLS]y",
    "",
    " ",
    "\t",
    "\u00a0",
    "e\u0301",
    "\u0301",
    "Ａ",
    "中文",
    "\x00",
    "\x1c",
    "a.b",
    "ß",
]


@pytest.fixture
def tokenizer(toy_tokenizer_files: dict[str, bytes]) -> Tokenizer:
    return Tokenizer.from_files(toy_tokenizer_files)


def agree(cache: WordCache, tokenizer: Tokenizer, found: list[str]) -> bool:
    """Whether the cache answered; if so, rightly."""
    ours = cache.encode(found)
    if ours is None:
        return False
    for a, b in zip(ours, _encoded(found, tokenizer, None), strict=True):
        assert np.array_equal(a, b)
    return True


@settings(max_examples=scaled(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=6)), max_size=8), min_size=1, max_size=4))
@example([["the", "", "films"], [""], ["x" * 150]])
def test_any_text(tokenizer: Tokenizer, found: list[list[str]]) -> None:
    cache = WordCache(tokenizer)
    texts = [" ".join(words) for words in found]
    agree(cache, tokenizer, texts)
    agree(cache, tokenizer, texts[::-1])  # now remembered


def test_real_text(minilm: Path, data_dir: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    cache = WordCache(tokenizer)
    for column in ("text", "text_zh"):
        lines = (data_dir / "pydocs" / "validation.jsonl").read_text(encoding="utf-8").splitlines()[:600]
        found = [sentence for line in lines for sentence in sentences(json.loads(line)[column])]
        parts = [agree(cache, tokenizer, found[i : i + 200]) for i in range(0, len(found), 200)]
        assert all(parts) or column == "text_zh"  # which has few spaces


def test_it_begins_anew_when_it_is_full(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordcache, "MOST", 3)
    cache = WordCache(tokenizer)
    for text in ("the film was not", "very good and bad", "the plot was good"):
        assert agree(cache, tokenizer, [text])
    assert len(cache._numbers) == 4


def test_tokenizers_that_read_across_spaces_are_left_alone(toy_tokenizer_files: dict[str, bytes]) -> None:
    def changed(**values: object) -> Tokenizer:
        told = json.loads(toy_tokenizer_files["tokenizer.json"]) | values
        return Tokenizer.from_files({**toy_tokenizer_files, "tokenizer.json": json.dumps(told).encode()})

    assert cuts_at_spaces(changed())
    assert not cuts_at_spaces(changed(pre_tokenizer={"type": "Whitespace"}))
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "_"}
    assert not cuts_at_spaces(changed(normalizer=replace))
    assert WordCache(changed(normalizer=replace)).encode(["the film"]) is None
    added = json.loads(toy_tokenizer_files["tokenizer.json"])["added_tokens"]
    assert not cuts_at_spaces(changed(added_tokens=[{**added[0], "lstrip": True}, *added[1:]]))
