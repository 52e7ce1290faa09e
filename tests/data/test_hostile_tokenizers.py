"""A tokenizer.json made to use up memory or time, or whose parts do not fit: one line, exit code 2, no panic text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compress.data.text import tokenizer_limits, tokenizer_probe
from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError
from compress.storage import cache

Pipeline = dict[str, Any]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pipeline() -> Pipeline:
    made = Tokenizer.train(["a film was good", "a film was bad"] * 3, vocabulary_size=60)
    return json.loads(made.files()["tokenizer.json"])


def _load(pipeline: Pipeline) -> Tokenizer:
    return Tokenizer.from_files({"tokenizer.json": json.dumps(pipeline).encode()}, where="folder")


def _replace(pattern: str, content: str, kind: str = "String") -> Pipeline:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def _sequence(*steps: Pipeline) -> Pipeline:
    return {"type": "Sequence", "normalizers": list(steps)}


def _split(pattern: str) -> Pipeline:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _processor(ids: list[int]) -> Callable[[Pipeline], None]:
    return lambda p: p["post_processor"]["special_tokens"]["[CLS]"].update(ids=ids)


REJECTED: dict[str, tuple[Callable[[Pipeline], Any], str]] = {
    "replacements": (
        lambda p: p.update(normalizer=_sequence(*[_replace("a", "aa")] * 40)),
        "makes texts grow too much: 41 steps can make a text more than 64 times as long",
    ),
    "nested replacements": (
        lambda p: p.update(normalizer=_sequence(*[_sequence(*[_replace("a", "aa")] * 5)] * 5)),
        "makes texts grow too much",
    ),
    "expressions": (
        lambda p: p.update(normalizer=_sequence(*[_replace("[ab]", "ab", "Regex")] * 6)),
        "makes texts grow too much",
    ),
    "bytes": (
        lambda p: p.update(normalizer=_sequence(*[{"type": "ByteLevel"}] * 12)),
        "makes texts grow too much",
    ),
    "ligatures": (
        lambda p: p.update(normalizer=_sequence(*[_replace("لل", "ﷺ"), {"type": "NFKC"}] * 5)),
        "makes texts grow too much",
    ),
    "decoder": (
        lambda p: p.update(decoder={"type": "Sequence", "decoders": [_replace("a", "aa")] * 40}),
        "makes texts grow too much",
    ),
    "backtracking": (
        lambda p: p.update(pre_tokenizer=_split("(a+)+$")),
        "a step of the tokenizer fails on difficult texts: Onig: Regex search error: retry-limit-in-match over",
    ),
    "backtracking on its own letter": (
        lambda p: p.update(pre_tokenizer=_split("(?:ж|ж)*$")),
        "a step of the tokenizer fails on difficult texts",
    ),
    "table": (
        lambda p: p.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "a step of the tokenizer fails on difficult texts: Precompiled",
    ),
    "table of two gigabytes": (  # in this process it would abort
        lambda p: p.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "/////wAA"}),
        "a step of the tokenizer fails on difficult texts: it fails, or takes more than 2 GiB",
    ),
    "special id": (_processor([9_999]), "adds a special token with the id 9,999: the vocabulary has ids up to"),
    "special id of a pair": (
        lambda p: (
            p["post_processor"]["special_tokens"].update(
                {"[X]": {"id": "[X]", "ids": [4_000_000_000], "tokens": ["[X]"]}}
            ),
            p["post_processor"]["pair"].append({"SpecialToken": {"id": "[X]", "type_id": 1}}),
        ),
        "adds a special token with the id 4,000,000,000",
    ),
    "segment": (
        lambda p: p["post_processor"]["pair"][0]["SpecialToken"].update(type_id=70_000),
        "invalid segment in the template 'pair'",
    ),
    "template without text": (
        lambda p: p["post_processor"].update(single=p["post_processor"]["single"][:1]),
        "the template 'single' does not contain the text: expected each of A once",
    ),
    "unknown token": (
        lambda p: p["model"].update(unk_token="[NONE]"),
        "the unknown token '[NONE]' is not in the vocabulary",
    ),
    "unknown token of Unigram": (
        lambda p: p.update(model={"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}),
        "the tokenizer has no unknown token",
    ),
    "long words": (
        lambda p: p["model"].update(max_input_chars_per_word=10**9),
        "'max_input_chars_per_word' of the tokenizer is too large",
    ),
    "prefix": (
        lambda p: p["model"].update(continuing_subword_prefix="#" * 10**5),
        "'continuing_subword_prefix' of the tokenizer is too large",
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_is_rejected(name: str, pipeline: Pipeline, capfd: pytest.CaptureFixture[str]) -> None:
    harm, expected = REJECTED[name]
    harm(pipeline)
    with pytest.raises(UserError) as caught:
        _load(pipeline)
    assert expected in caught.value.line()
    assert caught.value.line().startswith("folder")
    assert caught.value.code == 2
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")


@pytest.mark.parametrize(
    "harm",
    [
        {"normalizer": _sequence({"type": "NFKC"}, _replace(" {2,}", " ", "Regex"))},
        {
            "normalizer": _sequence(
                _replace("``", '"'), _replace("''", '"'), {"type": "NFKD"}, {"type": "StripAccents"},
                {"type": "Lowercase"}, _replace(" {2,}", " ", "Regex"), _replace(" ", "▁"),
            )
        },
        {"pre_tokenizer": _split(GPT2)},
        {"pre_tokenizer": _split(GPT4)},
        {"pre_tokenizer": _split(r"\s+|[^\s\w]|\d{1,3}")},
    ],
)  # fmt: skip
def test_what_known_tokenizers_do_is_accepted(harm: Pipeline, pipeline: Pipeline) -> None:
    pipeline |= harm
    assert len(_load(pipeline).encode_batch(["a film"], max_length=16).ids) >= 3


def test_a_tokenizer_is_tried_once_and_a_plain_one_never(
    pipeline: Pipeline, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _load(pipeline)
    assert not own_cache.exists(), "BERT's own steps need no trial"
    pipeline["pre_tokenizer"] = _split(r"\s+")
    _load(pipeline)
    (record,) = (own_cache / "tokenizers").iterdir()
    monkeypatch.setattr(tokenizer_probe, "_try", lambda *_: pytest.fail("tried again"))
    pipeline["model"]["vocab"]["more"] = 900
    _load(pipeline)
    record.unlink()
    with pytest.raises(pytest.fail.Exception, match="tried again"):
        _load(pipeline)


def test_without_a_cache_folder_a_tokenizer_is_tried_each_time(
    pipeline: Pipeline, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache.write_text("a file, not a folder")
    pipeline["pre_tokenizer"] = _split(r"\s+")
    tried: list[str] = []
    monkeypatch.setattr(tokenizer_probe, "_try", lambda *arguments: tried.append(arguments[-1]))
    _load(pipeline)
    _load(pipeline)
    assert tried == ["folder: tokenizer.json"] * 2
    assert cache.cache_folder() == own_cache


def test_texts_are_made_of_what_a_pattern_names() -> None:
    texts = tokenizer_probe.difficult_texts([_split("(xyz|ж)+q")])
    assert {text[:2] for text in texts} >= {"xx", "жж", "qq", "xy", "  ", "aa"}
    assert max(map(len, texts)) <= 3001


def test_nested_steps_come_in_order() -> None:
    found = tokenizer_limits.steps(_sequence({"type": "NFC"}, _sequence({"type": "Strip"}), {"type": "Lowercase"}))
    assert [step["type"] for step in found] == ["NFC", "Strip", "Lowercase"]
