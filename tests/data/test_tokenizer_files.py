"""The files of a tokenizer in a folder: found, completed, freed of truncation, lower-cased; and hand-edited ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from compress.data.text import tokenizer_files as files
from compress.errors import UserError

VOCABULARY = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nA\n"


def pipeline(**changes: Any) -> dict[str, bytes]:
    made = json.loads(files.complete({"vocab.txt": VOCABULARY}, "t")["tokenizer.json"])
    return {"tokenizer.json": json.dumps(made | changes).encode()}


def ids(made: dict[str, bytes], text: str) -> list[int]:
    return tokenizers.Tokenizer.from_buffer(made["tokenizer.json"]).encode(text).ids


LEFT = {"direction": "Left", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
PADS = {
    "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
    "pad_token": "[PAD]",
}  # fmt: skip


def test_a_folder_without_a_tokenizer_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"looked for tokenizer\.json and vocab\.txt"):
        files.read_folder(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        files.read_folder(tmp_path / "gone")


def test_only_the_files_of_a_tokenizer_are_read(tmp_path: Path) -> None:
    for name in ("vocab.txt", "model.safetensors", "README.md", "merges.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "vocab.json").mkdir()
    assert sorted(files.read_folder(tmp_path)) == ["merges.txt", "vocab.txt"]


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LIMIT", 4)
    (tmp_path / "vocab.txt").write_bytes(VOCABULARY)
    for act in (lambda: files.read_folder(tmp_path), lambda: files.normal({"vocab.txt": VOCABULARY}, "t")):
        with pytest.raises(UserError, match="the file is too large"):
            act()


def test_truncation_and_padding_are_taken_out() -> None:
    made = files.normal(pipeline(truncation=LEFT, padding=PADS), "t")
    assert ids(made, "a b a b a b") == [2, 5, 6, 5, 6, 5, 6, 3]
    assert json.loads(made["tokenizer_config.json"]) == {"truncation_side": "left"}


def test_the_side_that_the_configuration_names_wins() -> None:
    given = pipeline(truncation=LEFT) | {"tokenizer_config.json": b'{"truncation_side": "right", "x": 1}'}
    assert json.loads(files.normal(given, "t")["tokenizer_config.json"]) == {"truncation_side": "right", "x": 1}


def test_the_files_that_were_given_stay_as_they_are() -> None:
    given = pipeline(truncation=LEFT)
    before = dict(given)
    files.complete(given, "t")
    files.settle(given, {"model_type": "bert"}, "t")
    files.lowercased(given, "t")
    assert given == before


def test_a_byte_order_mark_is_left_out() -> None:
    """Some editors write one; the library and other programs cannot read such a file."""
    given = pipeline()
    marked = {"tokenizer.json": b"\xef\xbb\xbf" + given["tokenizer.json"]}
    assert files.normal(dict(marked), "t") == given
    assert ids(files.settle(marked, {"model_type": "bert"}, "t"), "a") == [2, 5, 3]


@pytest.mark.parametrize("kind", ["vocab.txt", "merges.txt"])
def test_vocabulary_files_alone_are_completed(kind: str) -> None:
    names = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, "a": 5, "b": 6, "ab": 7}
    roberta = {"vocab.json": json.dumps(names).encode(), "merges.txt": b"#version: 0.2\na b\n"}
    given, around = ({"vocab.txt": VOCABULARY}, [2, 3]) if kind == "vocab.txt" else (roberta, [0, 2])
    made = files.complete(given, "t")
    assert set(made) == {*given, "tokenizer.json"}
    assert ids(made, "") == around
    if kind == "merges.txt":
        assert ids(made, "ab") == [0, 7, 2]
        assert files.complete({"vocab.json": roberta["vocab.json"]}, "t").keys() == {"vocab.json"}


@pytest.mark.parametrize("missing", ["[MASK]", "[UNK]"])
def test_a_vocabulary_without_a_special_token(missing: str) -> None:
    with pytest.raises(UserError, match=r"this is not a BERT vocabulary: missing: \[") as error:
        files.complete({"vocab.txt": VOCABULARY.replace(f"{missing}\n".encode(), b"")}, "t")
    assert missing in error.value.line()


def test_a_sentencepiece_model_says_how_it_is_converted() -> None:
    with pytest.raises(UserError, match=r"the only tokenizer file is spiece.model.*save_pretrained\('t'\)"):
        files.from_vocabulary({"spiece.model": b"x"}, "t", {})
    with pytest.raises(UserError, match=r"neither tokenizer\.json nor vocab\.txt"):
        files.from_vocabulary({"tokenizer_config.json": b"{}"}, "t", {})
    assert files.complete({"spiece.model": b"x"}, "t") == {"spiece.model": b"x"}
    assert files.settle({}, {"model_type": "bert"}, "t") == {}


def test_lower_casing_comes_before_all_else_and_only_once() -> None:
    cased = pipeline(normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "b"})
    assert ids(cased, "A") == [2, 7, 3]
    lowered = files.lowercased(cased, "t")
    assert ids(lowered, "A") == [2, 6, 3]
    assert files.lowercased(lowered, "t") == lowered
    assert files.lowercased({"spiece.model": b"x"}, "t") == {"spiece.model": b"x"}
    without = files.lowercased(pipeline(normalizer=None), "t")
    assert ids(without, "A") == [2, 5, 3]


def test_the_configuration_wins_over_the_older_map() -> None:
    given = {
        "special_tokens_map.json": b'{"pad_token": "<pad>", "unk_token": "<unk>"}',
        "tokenizer_config.json": b'\xef\xbb\xbf{"pad_token": "[PAD]"}',
    }
    told = files.settings(given, "t")
    assert told == {"pad_token": "[PAD]", "unk_token": "<unk>"}
    assert files.special_tokens(told, {"[PAD]": 3, "<pad>": 4, "<unk>": 5}) == {"pad": 3, "unk": 5}
    assert files.settings({}, "t") == {}


@pytest.mark.parametrize("own", [None, 5, ["[PAD]"], {"content": 5}, {"content": ["x"]}, "gone", {}])
def test_a_name_that_is_no_token_gives_way_to_the_usual_one(own: Any) -> None:
    assert files.special_tokens({"pad_token": own}, {"<pad>": 7, "other": 1}) == {"pad": 7}
    assert files.special_tokens({"pad_token": own}, {"other": 1}) == {}


@pytest.mark.parametrize("side", ["Left", "", None, 1, ["left"]])
def test_a_side_that_is_neither(side: Any) -> None:
    assert files.truncation_side({}, "t") == "right"
    assert files.truncation_side({"truncation_side": "left"}, "t") == "left"
    with pytest.raises(UserError, match=r"^t: tokenizer_config.json: invalid 'truncation_side'"):
        files.truncation_side({"truncation_side": side}, "t")
