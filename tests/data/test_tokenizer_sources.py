"""Files of a tokenizer that do not hold what they should: each is one line, and no traceback."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import AddedToken

from compress.data.text.tokenizer_names import AS_STORED
from compress.data.text.tokenizer_reading import read_sources
from compress.data.text.tokenizer_sources import Sources, as_token, text_of
from compress.errors import UserError


def read(config: dict[str, Any], stored: dict[str, Any] | None = None, kind: str = AS_STORED, **files: str) -> Sources:
    named = {name.replace("_json", ".json"): text.encode() for name, text in files.items()}
    return read_sources(named, config, stored, kind, "t")


def bpe(merges: Any) -> dict[str, Any]:
    return {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": merges}}


@pytest.mark.parametrize("merges", [["a b"], [["a", "b"]]])
def test_merges_are_texts_or_lists_of_two(merges: Any) -> None:
    assert read({}, bpe(merges), "RobertaTokenizer").merges == [("a", "b")]
    assert read({}, bpe(None), "RobertaTokenizer").merges == []


@pytest.mark.parametrize("merges", [["a b c"], ["a"], [["a", "b", "c"]], [["a", 1]], [5], 5, {"a b": 1}, [None]])
def test_other_merges_are_one_line(merges: Any) -> None:
    with pytest.raises(UserError, match=r"t: tokenizer\.json: the merges are not a list of pairs"):
        read({}, bpe(merges), "RobertaTokenizer")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"added_tokens_decoder": ["[X]"]}, "not a table of ids and tokens"),
        ({"added_tokens_decoder": {"one": {"content": "[X]"}}}, "not a table of ids and tokens"),
        ({"added_tokens_decoder": {"-1": {"content": "[X]"}}}, "not a table of ids and tokens"),
        ({"added_tokens_decoder": {"1": {"content": "[X]", "lstrip": "yes"}}}, "this is not a token"),
        ({"added_tokens_decoder": {"99999999999": {"content": "[X]"}}}, "an added token has the id"),
    ],
)
def test_added_tokens_that_are_none(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(config)


def test_tokenizer_json_wins_over_the_older_files() -> None:
    stored = {"added_tokens": [{"id": 7, "content": "[NEW]", "special": True}]}
    older = {
        "added_tokens_json": json.dumps({"[OLD]": 7, "[PAD]": 8}),
        "special_tokens_map_json": '{"pad_token": "[PAD]"}',
    }
    found = read({}, stored, **older)
    assert [(number, token.content, token.special) for number, token in found.stated.items()] == [
        (7, "[NEW]", True), (8, "[PAD]", True),
    ]  # fmt: skip
    assert text_of(found.token("pad", None)) == "[PAD]"
    assert found.token("mask", "[MASK]") == "[MASK]"
    with pytest.raises(UserError, match="not a table of ids and tokens"):
        read({}, {"added_tokens": ["[NEW]"]})


def test_flags_and_further_tokens() -> None:
    found = read({"lower": 1, "additional_special_tokens": ["<a>"], "image_token": "<i>", "pad_token": "<p>"})
    assert found.further() == ["<a>", "<i>"] or found.further() == ["<i>", "<a>"]
    assert found.flag("upper", True)
    with pytest.raises(UserError, match="'lower' is neither true nor false"):
        found.flag("lower", False)
    with pytest.raises(UserError, match="'extra_special_tokens' is not a list of tokens"):
        read({"extra_special_tokens": "<a>"}).further()
    token = as_token({"content": "x", "special": True, "__type": "AddedToken"}, "here")
    assert isinstance(token, AddedToken)
    assert token.special
