"""Files that are not what they should be: one line each that says what, where and what to do."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from compress.data.reading import text_files
from compress.data.reading.corpus import open_corpus
from compress.data.reading.sources import open_table
from compress.errors import ExitCode, UserError

GOOD = '{"text": "fine", "label": "x"}\n'

CASES = {
    "empty": ("a.jsonl", b"", r"a\.jsonl: the file is empty"),
    "blank lines": ("a.jsonl", b"\n\n", r"the file has no rows: nothing but blank lines"),
    "empty array": ("a.json", b"[]", r"the file has no rows: nothing but blank lines or brackets"),
    "header only": ("a.csv", b"text,label\n", r"the file has no rows: a header only: text, label"),
    "bad json": ("a.jsonl", GOOD + '{"text": "b", label: 1}\n', r"a\.jsonl:2: bad JSON: .* at column 15: '\{\"text"),
    "cut line": ("a.jsonl", GOOD + '{"text": "half', r"a\.jsonl:2: bad JSON: Unterminated string"),
    "long bad line": ("a.jsonl", '{"a": ' + "x" * 5000, r"'\{\"a\": x{73}…'"),
    "not an object": ("a.jsonl", GOOD + "[1, 2]\n", r"a\.jsonl:2: not a JSON object: found '\[1, 2\]'"),
    "same key twice": ("a.jsonl", '{"text": "a", "text": "b"}\n', r"a\.jsonl:1: duplicate key 'text'"),
    "deep": ("a.jsonl", "[" * 100_000, r"a\.jsonl:1: bad JSON: nested too deeply"),
    "giant number": ("a.jsonl", '{"a": ' + "9" * 5000 + "}", r"jsonl:1: bad JSON: a number has thousands of digits"),
    "giant label": ("a.jsonl", '{"text": "a", "label": ' + "9" * 30 + "}", r"values cannot be labels: 1 int \(row 1\)"),
    "array of numbers": ("a.json", "[1, 2]", r"row 1 is not an object: found '1'"),
    "bad array": ("a.json", '[\n{"text": "a"},\n{"text" "b"}]', r"a\.json:3: bad JSON: .*column 9"),
    "latin-1": ("a.jsonl", GOOD.encode() + b'{"text": "caf\xe9"}\n', r"a\.jsonl:2: this is not UTF-8 text: "
                r"byte 0xe9 at offset 44, near .*café.*iconv"),
    "latin-1 csv": ("a.csv", "text,label\ncafé,1\n".encode("latin-1"), r"a\.csv:2: this is not UTF-8 text: byte 0xe9"),
    "chinese csv": ("a.csv", "text,label\n质量很好，喜欢,好评\n".encode("gb18030"),
                    r"csv:2: this is not UTF-8 text: .* near '质量很好，喜欢,好评.*Chinese .*iconv -f GB18030"),
    "utf-16": ("a.jsonl", GOOD.encode("utf-16"), r"this is UTF-16 text; convert it: `iconv"),
    "utf-16 unmarked": ("a.csv", "text,label\nabc,1\n".encode("utf-16-le"), r"this is UTF-16 text.*UTF-16LE"),
    "half a surrogate": ("a.jsonl", GOOD + '{"text": "\\ud800", "label": "x"}\n', r"half a surrogate pair: row 2"),
    "open quote": ("a.csv", 'text,label\na,1\n"open,2\nb,3\n', r"a\.csv:3: a quote is not closed"),
    "ragged": ("a.csv", "text,label\na,1\nb,c,2\n", r"a\.csv:3: the row has 3 cells, the header has 2: 'b,c,2'; put"),
    "same column twice": ("a.csv", "text,text\na,1\n", r"a\.csv:1: duplicate column 'text' in the header"),
    "lfs": ("a.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", r"git-lfs pointer.*git lfs pull"),
    "html": ("a.csv", b"<!DOCTYPE html><html>", r"an HTML page, not data"),
    "gzip": ("a.jsonl", b"\x1f\x8b\x08\x00aaaa", r"this is gzip data; unpack it first"),
    "cut parquet": ("a.parquet", b"PAR1" + b"\x15\x04" * 40, r"the parquet file is truncated: 84 bytes"),
    "hollow parquet": ("a.parquet", b"PAR1" + b"\x15\x04" * 40 + b"PAR1", r"cannot read this parquet file"),
    "no parquet": ("a.parquet", b"hello there", r"not a parquet file: it starts with b'hello th'"),
    "arrow": ("a.arrow", b"ARROW1\x00\x00garbage", r"cannot read this arrow file, it is damaged or truncated"),
    "unknown suffix": ("a.xlsx", b"PK", r"cannot read '\.xlsx' files as a table; known: \.jsonl"),
    "many keys": ("a.jsonl", "{" + ",".join(f'"k{i}":1' for i in range(10_001)) + "}",
                  r"jsonl:1: an object has 10,001 keys: limit 10,000"),
    "terminal codes": ("a.jsonl", '\x1b[31mred\n', r"'\\x1b\[31mred'"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_file(case, write):
    name, content, message = CASES[case]
    with pytest.raises(UserError, match=message) as caught:
        open_table(str(write(name, content)))
    line = caught.value.line()
    assert caught.value.code == ExitCode.INPUT
    assert "\n" not in line
    assert "\x1b" not in line
    assert not re.search(r"\wError", line), "the name of an exception"
    assert len(line) < 600


def test_rows_of_texts(folder):
    rows = [{"text": t, "label": ("no", "yes")[i % 2]} for i, t in enumerate(["a", None, "b", None, None, None])]
    path = str(folder(train=rows))
    with pytest.raises(UserError, match=r"train: 4 rows without a text \(rows 2, 4, 5 …\): column 'text'.*bad_rows"):
        open_table(path)
    table = open_table(path, bad_rows="drop")
    assert table.split("train").texts == ["a", "b"]
    assert table.split("train").numbers.tolist() == [1, 3]
    assert any("4 rows without a text (rows 2, 4, 5 …), dropped" in n for n in table.notes)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", 7, "b", 8], r"not text: 2 int values \(rows 2, 4\), the first is 7"),
        ([1, 2, 3, 4], r"not text: 4 int values \(rows 1, 2, 3 …\)"),
        ([["a"], ["b"], "c", "d"], r"not text: 2 list values \(rows 1, 2\), the first is \['a'\]"),
        ([{"x": 1}, "a", "b", "c"], r"not text: 1 dict value \(row 1\)"),
    ],
)
def test_values_that_are_not_text(values, message, folder):
    rows = [{"text": v, "label": ("no", "yes")[i % 2]} for i, v in enumerate(values)]
    with pytest.raises(UserError, match=message):
        open_table(str(folder(train=rows)))


def test_a_file_that_may_not_be_read(write):
    path = write("a.jsonl", GOOD)
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path.chmod(0)
    with pytest.raises(UserError, match="cannot read the file: Permission denied"):
        open_table(str(path))


def test_a_damaged_saved_folder(write, tmp_path):
    write("saved/state.json", "{}")
    write("saved/dataset_info.json", "{}")
    with pytest.raises(UserError, match="cannot read this saved data set"):
        open_table(str(tmp_path / "saved"))


def test_a_damaged_description(folder, write):
    path = folder()
    write("set/info.json", "{")
    with pytest.raises(UserError, match=r"info\.json: cannot read the data's description"):
        open_table(str(path))
    write("set/info.json", '{"label_names": ["a", 1]}')
    with pytest.raises(UserError, match="label_names must be a list of names"):
        open_table(str(path))


def test_too_few_rows_to_cut(write):
    with pytest.raises(UserError, match=r"too few rows for 3 splits: 4 rows, 4 of them different; at least 10"):
        open_table(str(write("a.jsonl", [{"text": f"t{i}", "label": i % 2} for i in range(4)])))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.arrow", "a.txt"])
def test_a_pipe_or_a_device_is_refused_before_it_is_read(name: str, tmp_path: Path) -> None:
    pipe, zeros = tmp_path / f"pipe-{name}", tmp_path / f"zeros-{name}"
    os.mkfifo(pipe)
    zeros.symlink_to("/dev/zero")
    for path, kind in ((pipe, "a pipe"), (zeros, "a device")):
        with pytest.raises(UserError, match=f"{path.name}: is not a regular file: {kind}; copy its content"):
            open_corpus(str(path)) if name == "a.txt" else open_table(str(path))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.txt"])
def test_a_line_without_end_is_refused_at_a_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of 50 GB: it is not read to its end."""
    path = tmp_path / name
    with path.open("wb") as file:
        file.write(b"x" * 2048)
        file.truncate(50 << 30)
    monkeypatch.setattr(text_files, "LINE_LIMIT", 1 << 20)
    with pytest.raises(UserError, match=rf"{name}:1: the line is too long: limit 1 MiB"):
        open_corpus(str(path)) if name == "a.txt" else open_table(str(path))
