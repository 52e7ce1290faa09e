"""Vocabulary files of a tokenizer: what is read of them, and what is refused with the token or the line at fault."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from compress.data.text import tokenizer_native as native
from compress.errors import UserError

BOM = b"\xef\xbb\xbf"


def pairs(vocabulary: Any, merges: bytes = b"") -> tuple[dict[str, int], list[tuple[str, str]]]:
    return native.byte_pairs({"vocab.json": json.dumps(vocabulary).encode(), "merges.txt": merges}, "m")


@pytest.mark.parametrize(
    "data",
    [b"[PAD]\na\n", b"[PAD]\r\na\r\n", b"[PAD]\na", BOM + b"[PAD]\na\n", b"[PAD] \t\na\xe3\x80\x80\n"],
    ids=["lf", "crlf", "no end", "byte order mark", "blanks at the end"],
)
def test_however_its_lines_end_a_vocabulary_is_the_same(data: bytes) -> None:
    assert native.wordpieces(data, "vocab.txt") == {"[PAD]": 0, "a": 1}


@pytest.mark.parametrize("inside", ["\u2028", "\x85", "\x1c", "\x0b"])
def test_only_line_feeds_part_tokens(inside: str) -> None:
    """str.splitlines parts at these too, and every id behind would be one too high."""
    assert native.wordpieces(f"a{inside}b\nc\n".encode(), "w") == {f"a{inside}b": 0, "c": 1}


def test_a_token_that_is_there_twice() -> None:
    with pytest.raises(UserError, match=r"^v: this is not a BERT vocabulary: number of duplicate tokens: 2$"):
        native.wordpieces(b"a\nb\na\na \n", "v")


@pytest.mark.parametrize("data", ["é".encode("latin-1"), "a\n".encode("utf-16")])
def test_another_encoding(data: bytes) -> None:
    with pytest.raises(UserError, match=r"^v: this is not UTF-8 text: byte 0$"):
        native.wordpieces(data, "v")


@pytest.mark.parametrize("start", [b"", b"#version: 0.2\n", BOM + b"#version: 0.2\r\n"])
def test_merges_are_pairs_in_order(start: bytes) -> None:
    merges = start + "a b\r\n\n\u0120t he\n# #\n".encode()
    assert pairs({"a": 0}, merges)[1] == [("a", "b"), ("\u0120t", "he"), ("#", "#")]


@pytest.mark.parametrize("line", ["ab", "a b c", "a ", " "])
def test_a_line_that_is_no_pair(line: str) -> None:
    with pytest.raises(UserError, match=r"^m: merges.txt: the file is not a list of pairs"):
        pairs({"a": 0}, f"{line}\n".encode())


@pytest.mark.parametrize("vocabulary", [{}, [], {"a": 1.0}, {"a": True}, {"a": None}, {"a": [0]}, {"a": "0"}])
def test_what_is_no_table_of_ids(vocabulary: Any) -> None:
    with pytest.raises(UserError, match=r"^m: vocab.json: "):
        pairs(vocabulary)


@pytest.mark.parametrize("number", [-1, 2_000_000, 10**30])
def test_an_id_that_no_table_could_have(number: int) -> None:
    with pytest.raises(UserError, match=r"vocab.json: token 'b' has the id -?[\d,]+.*: allowed: 0 to 1,999,999$"):
        pairs({"a": 0, "b": number})


def test_two_tokens_with_one_id() -> None:
    with pytest.raises(UserError, match=r"^m: vocab.json: tokens 'a' and 'c' have the same id 3$"):
        pairs({"a": 3, "b": 0, "c": 3})
    assert pairs({"a": 3, "b": 0})[0] == {"a": 3, "b": 0}, "ids may have gaps, and come in any order"


@pytest.mark.parametrize("data", [b"", b"[1]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}"])
def test_what_is_no_json_object(data: bytes) -> None:
    with pytest.raises(UserError, match=r"^f: this is not JSON|^f: this is not a JSON object") as error:
        native.parse(data, "f")
    assert len(error.value.line()) < 200


def test_a_byte_order_mark_before_json() -> None:
    assert native.parse(BOM + b'{"a": 1}', "f") == {"a": 1}


class Panic(BaseException):
    """As the bindings of Rust raise it: no `Exception`."""


def test_a_panic_of_the_library_becomes_an_error() -> None:
    def panic() -> None:
        raise Panic("index out of bounds\n\x1b[31m" + "x" * 500)

    with pytest.raises(UserError) as error:
        native.quietly(panic, "t")
    line = error.value.line()
    assert line.startswith("t: cannot read this tokenizer: index out of bounds\\n\\x1b")
    assert len(line) < 250


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_stop_stays_one(kind: type[BaseException]) -> None:
    def stop() -> None:
        raise kind

    with pytest.raises(kind):
        native.quietly(stop, "t")


@pytest.mark.parametrize("number", [-1, 2_000_000])
def test_the_id_of_an_added_token(number: int) -> None:
    native.check_id(0, "t")
    native.check_id(1_999_999, "t")
    with pytest.raises(UserError, match="allowed: below 2,000,000"):
        native.check_id(number, "t")


def test_the_first_table_of_replacements_counts() -> None:
    first, second = (
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()} for data in (b"one", b"two")
    )
    assert native.charsmap({"type": "Sequence", "normalizers": [{"type": "NFC"}, first, second]}) == b"one"
    assert native.charsmap(second) == b"two"
    assert native.charsmap(None) is None
    assert native.charsmap({"type": "Precompiled", "precompiled_charsmap": None}) is None


def test_a_word_of_a_thousand_letters_is_unknown() -> None:
    made = native.wordpiece({"[UNK]": 0, "a": 1, "##a": 2}, lowercase=True)
    assert made.encode("A").ids == [1]
    assert made.encode("a" * 100).ids == [1] + [2] * 99
    assert made.encode("a" * 1000).ids == [0]
