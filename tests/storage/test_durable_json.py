"""The door for foreign JSON and text: bounded, unambiguous, and every refusal says where."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from example_counts import scaled
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compress.errors import UserError
from compress.storage import safe

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


def refusal(path: Path, content: bytes | str, **limits: int) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        safe.read_json(path, **limits)
    assert caught.value.code == 2
    return caught.value.line().removeprefix(str(path))


BAD = {
    "empty": ("", ": the file is empty; copy or download it again"),
    "syntax": ('{\n  "a": 1,\n  "b" 2\n}', ":3:7: not valid JSON: Expecting ':' delimiter, found '2'"),
    "cut": ('{"a": [1, 2', ":1:12: not valid JSON: Expecting ',' delimiter, found 'end of file'"),
    "two documents": ('{"a": 1}\n{"b": 2}', ":2:1: not valid JSON: Extra data, found '{\"b\": 2}'"),
    "duplicate": (
        '{"x": {"a": "{\\"a\\": 0}", "é": 1,\n "b": [{"a": 1}],  "a": 2}}',
        ":2:20: duplicate key 'a': first on line 1, column 8",
    ),
    "duplicate written otherwise": (
        '{"a": 1, "\\u0061": 2}',
        ":1:10: duplicate key 'a': first on line 1, column 2",
    ),
    "nan": ('{"a": "NaN",\n "b": NaN}', ":2:7: NaN is not a valid number"),
    "infinity": ('{"a": -Infinity}', ":1:7: -Infinity is not a valid number"),
    "too great": ('{"a": [1, 1e999]}', ":1:11: 1e999 is not a valid number"),
    "endless digits": ('{"a": ' + "9" * 5000 + "}", ": not readable JSON: Exceeds the limit (4300 digits)"),
    "a list": ("[1, 2]", ": not a JSON object: found a list; expected { … }"),
    "a string": ('"text"', ": not a JSON object: found a string; expected { … }"),
    "null": ("null", ": not a JSON object: found a null; expected { … }"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), ": the text is UTF-16; save it as UTF-8"),
    "Latin-1": (b'{"a": 1,\n "b\xe4r": 2}', ":2:4: not valid UTF-8: byte 0xe4 at offset 12"),
    "lone surrogate": (
        '{"ok": "\\ud83d\\ude00", "a": "\\ud800"}',
        ":1:30: a string contains a lone surrogate",
    ),
    "NUL": ('{"a": 1\0}', ":1:8: not valid JSON: Expecting ',' delimiter, found '\\x00}'"),
    "control character": (
        '{"a": "\x1b[31m"}',
        ":1:8: not valid JSON: Invalid control character at, found '\\x1b[31m\"}'",
    ),
    "a git-lfs pointer": (
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        ": not a JSON file: it looks like a git-lfs pointer; run git lfs pull",
    ),
    "a page": (
        "\n<!DOCTYPE html><html></html>",
        ": not a JSON file: it looks like an HTML page; download the raw file, not the web page",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_json_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    content, message = BAD[case]
    line = refusal(tmp_path / "config.json", content)
    assert line == message or case == "endless digits"
    assert line.startswith(message)
    assert "\n" not in line


def test_limits_of_size_and_depth(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert refusal(path, '{"a": "' + "x" * 2000 + '"}', limit=1000) == ": the file is too large: 2.0 kB, at most 1.0 kB"
    for depth in (65, 900, 100_000):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            text = '{"a":' + opening * depth + "1" + closing * depth + "}"
            assert refusal(path, text) == ": nested too deeply: at most 64 levels"
    path.write_text('{"a":' + "[" * 63 + "]" * 63 + "}")
    assert safe.read_json(path)


@pytest.mark.timeout(120)  # a tenth of a second each, unless time grows with the square of the length
def test_hostile_text_is_read_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    key = "k" * 200_000
    hostile = [
        '"' + '\\"' * 400_000,
        '{"a": ' + '["' * 300_000,
        '{"' + key + '": [' + "0," * 200_000 + "1e999]}",
        '{"a":1,' + '"b   ":[],' * 80_000 + '"a":2}',
        '{"a": "' + " " * 900_000 + '", "a": 1}',
    ]
    for text in hostile:
        refusal(path, text)


@settings(max_examples=scaled(200), deadline=None)
@given(
    content=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON, max_size=5), ascii=st.booleans()
)
@example({"a": "\\ud800", "b": "\\\\", "ü😀": ["😀😀", 1e-5, -0.0, 2**70]}, True)
def test_good_json_is_read_as_it_is(content: dict[str, Any], ascii: bool) -> None:
    text = json.dumps(content, ensure_ascii=ascii)
    assert safe.parse_json(text, "x") == content
    assert safe.parse_json(b"\xef\xbb\xbf" + text.encode(), "x") == content


@settings(max_examples=scaled(300), deadline=None)
@given(text=st.text('{}[]":,\\ud8001eENaIinfty-+. \n', max_size=60) | st.binary(max_size=60))
def test_nothing_but_a_user_error_leaves(text: str | bytes) -> None:
    with contextlib.suppress(UserError):
        assert isinstance(safe.parse_json(text, "x"), dict)


def test_files_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "pipe")
    cases = {
        "confg.json": "no such file; did you mean 'config.json'?",
        "zzz": "no such file",
        "": "is a folder, not a file",
        "pipe": "is not a regular file",
        "config.json/x": "cannot be opened: Not a directory",
    }
    for name, message in cases.items():
        with pytest.raises(UserError) as caught:
            safe.read_json(tmp_path / name)
        assert caught.value.line() == f"{tmp_path / name}: {message}"
    with pytest.raises(UserError, match="cannot be opened: the path contains a null character"):
        safe.read_text("a\0b")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"zzz: no such file: looked in {tmp_path}"):
        safe.read_text("zzz")


def test_text_is_read_without_its_mark(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfa\r\nb\0")
    assert safe.read_text(tmp_path / "x") == "a\r\nb\0"
