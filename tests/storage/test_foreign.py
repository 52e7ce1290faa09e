"""Files that somebody else wrote: what they are, where they are wrong, and JSON as the standard library reads it."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress.errors import UserError
from compress.storage.foreign import (
    decode,
    kind_of,
    open_plain_file,
    parse_json,
    position,
    read_bytes,
    refuse_special_file,
    wrong_kind,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def error_of(text: str | bytes, **how: Any) -> str:
    with pytest.raises(UserError) as error:
        parse_json(text, "a.json", **how)
    return str(error.value)


@given(st.dictionaries(TEXT, JSON, max_size=4), st.booleans())
def test_what_json_writes_reads_back(value: dict[str, Any], escaped: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped, indent=1)
    assert parse_json(text, "a.json") == value
    assert parse_json(b"\xef\xbb\xbf" + text.encode(), "a.json") == value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"a": {"b": 1},\n "a": 2}', "a.json:2:2: duplicate key 'a': first on line 1, column 2"),
        ('{"a": {"b": 1,\n "b": 2}}', "a.json:2:2: duplicate key 'b': first on line 1, column 8"),
        ('{"a": [{"x": 1}, {"x": 1, "\\u0078": 2}]}', "a.json:1:27: duplicate key 'x': first on line 1, column 19"),
        ('{"NaN": NaN}', "a.json:1:9: NaN is not a valid number"),
        ('{"a": "Infinity",\n"b": [-Infinity]}', "a.json:2:7: -Infinity is not a valid number"),
        ('{"a": "1e999", "b": 1e999}', "a.json:1:21: 1e999 is not a valid number"),
        ('{"a": "\\ud800"}', "a.json:1:8: a string contains a lone surrogate"),
        ('{"a": 1', "a.json:1:8: not valid JSON: Expecting ',' delimiter, found 'end of file'"),
        ('{"a": ]}', "a.json:1:7: not valid JSON: Expecting value, found ']}'"),
        ("[1]", "a.json: not a JSON object: found a list; expected { … }"),
        ('"a"', "a.json: not a JSON object: found a string; expected { … }"),
        ("null", "a.json: not a JSON object: found a null; expected { … }"),
        ("<!DOCTYPE HTML>", "a.json: not a JSON file: it looks like an HTML page; download the raw file, not the web "
         "page"),
    ],
)  # fmt: skip
def test_wrong_json_is_located(text: str, line: str) -> None:
    assert error_of(text) == line


def test_a_key_may_come_again_in_another_object() -> None:
    assert parse_json('{"a": {"a": 1}, "b": {"a": "\\ud83d\\ude00 \\\\ud800"}}', "a.json")["b"]["a"] == "😀 \\ud800"


def test_depth() -> None:
    def nested(levels: int) -> str:
        return '{"a":' * levels + "1" + "}" * levels

    assert parse_json(nested(4), "a.json", depth=4)
    assert error_of(nested(5), depth=4) == "a.json: nested too deeply: at most 4 levels"
    assert error_of('{"a":' + "[" * 100_000) == "a.json: nested too deeply: at most 64 levels"


def test_numbers_of_thousands_of_digits() -> None:
    assert error_of('{"a": ' + "9" * 5000 + "}").startswith("a.json: not readable JSON: Exceeds the limit")


@given(st.text(st.sampled_from("ab\né"), max_size=30), st.data())
def test_positions_lead_back_to_the_character(text: str, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(text)))
    _, line, column = position("x", text, index).split(":")
    assert sum(len(part) + 1 for part in text.split("\n")[: int(line) - 1]) + int(column) - 1 == index


def test_text_that_is_not_utf8() -> None:
    with pytest.raises(UserError, match=r"^f:2:3: not valid UTF-8: byte 0xff at offset 5$"):
        decode("é\nab".encode() + b"\xff", "f")
    with pytest.raises(UserError, match=r"^f: the text is UTF-16; save it as UTF-8$"):
        decode("a".encode("utf-16"), "f")


def made(kind: str) -> bytes:
    """A file of this kind as its own library writes it."""
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr("a", "b")
    elif kind == "tar":
        with tarfile.open(fileobj=buffer, mode="w") as file:
            file.addfile(tarfile.TarInfo("a"))
    else:
        np.save(buffer, np.zeros(2))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        *[(pickle.dumps({"a": [1]}, protocol), "a pickle") for protocol in (0, 2, 3, 4, 5)],
        (pickle.dumps(np.float64, 0), "a pickle"),
        (made("zip"), "a zip archive, as PyTorch writes for .bin and .pt"),
        (made("tar"), "a tar archive"),
        (made("npy"), "a NumPy array"),
        (gzip.compress(b"a", mtime=0), "a gzip archive"),
        (lzma.compress(b"a"), "an xz archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a git-lfs pointer"),
        (b"\n <HTML><body>", "an HTML page"),
        (b'{ "a": 1}', "JSON text"),
        ("a".encode("utf-16"), "UTF-16 text"),
        (b"", None),
        (b"plain text", None),
        (b"Parliament", None),
        (b"Cat\nDog\n", None),
        (b"par1 is lower case", None),
    ],
)
def test_kinds(head: bytes, kind: str | None) -> None:
    assert kind_of(head) == kind


def test_the_way_out_of_a_wrong_kind() -> None:
    assert str(wrong_kind("a gzip archive", "f", "a JSON file")) == "f: not a JSON file: it looks like a gzip archive"
    assert "git lfs pull" in str(wrong_kind("a git-lfs pointer", "f", "data"))
    assert "can run code" in str(wrong_kind("a pickle", "f", "data"))


def test_plain_files(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"12345")
    with open_plain_file(path) as (file, size):
        assert (file.read(), size) == (b"12345", 5)
    assert read_bytes(path, 5) == b"12345"
    with pytest.raises(UserError, match="the file is too large: 5 bytes, at most 4 bytes"):
        read_bytes(path, 4)


def test_what_is_no_plain_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, what in {
        "config.json": "the file is empty; copy or download it again",
        "confg.json": "no such file; did you mean 'config.json'?",
        "pipe": "is not a regular file",
        ".": "is a folder, not a file",
        "a\0b": "cannot be opened: the path contains a null character",
    }.items():
        with pytest.raises(UserError) as error, open_plain_file(f"{tmp_path}/{name}"):
            pass
        assert what in str(error.value)


def test_special_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"^shown: is not a regular file: a pipe; copy its content to a file first$"):
        refuse_special_file(tmp_path / "pipe", "shown")
    with pytest.raises(UserError, match=r"^/dev/null: is not a regular file: a device"):
        refuse_special_file("/dev/null")
    refuse_special_file(tmp_path)
    refuse_special_file(tmp_path / "missing")
