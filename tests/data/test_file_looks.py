"""A file is looked at before it is read: what its first bytes say of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compress.data.reading.files import SUFFIXES, look, make_damaged_error, read_file, read_lines
from compress.errors import UserError

Write = Callable[..., Path]


def line(act: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        act()
    return error.value.line()


@pytest.mark.parametrize("start", ["<!doctype html>", "<HTML lang=en>", "\ufeff \n<html>"])
@pytest.mark.parametrize("name", ["a.csv", "a.txt", "a.jsonl"])
def test_a_web_page_is_no_data(name: str, start: str, write: Write) -> None:
    found = line(lambda: look(write(name, start + "\x1b[2J<body>")))
    assert "this is an HTML page, not data" in found
    assert "\x1b" not in found


def test_text_that_only_mentions_html_is_data(write: Write) -> None:
    assert look(write("a.txt", "a page starts with <html>\n")).startswith(b"a page")
    assert look(write("b.txt", "<htm and other typos\n"))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_found_in_text_alone(encoding: str, write: Write) -> None:
    data = "text,label\nabc,1\n".encode(encoding)
    name = {"utf-16-le": "UTF-16LE", "utf-16-be": "UTF-16BE"}[encoding]
    assert f"iconv -f {name} -t UTF-8" in line(lambda: look(write("a.csv", data)))
    look(write("a.parquet", data))  # a table of numbers may look like this


@pytest.mark.parametrize("data", [b"a\0", b"\0" * 40, "日本語のテキスト".encode(), b"a,b\n1,2\n"])
def test_what_is_not_utf16(data: bytes, write: Write) -> None:
    assert look(write("a.csv", data)) == data


def test_a_file_of_another_kind(tmp_path: Path, write: Write) -> None:
    assert "expected a file, found a folder" in line(lambda: look(tmp_path))
    os.mkfifo(tmp_path / "pipe.csv")
    assert "pipe.csv" in line(lambda: look(tmp_path / "pipe.csv"))  # and it does not wait for a writer
    assert "the file is empty" in line(lambda: look(write("a.csv", b"")))
    assert "did you mean" in line(lambda: look(tmp_path / "b.csv"))


def test_text_is_a_table_only_where_that_is_asked_for(write: Write) -> None:
    path = write("a.txt", "one\n\n  \ntwo\r\nthree")
    assert "cannot read '.txt' files as a table" in line(lambda: read_file(path, []))
    assert read_file(path, [], plain=True).columns["text"] == read_lines(path).columns["text"]
    frame = read_lines(path)
    assert frame.rows == 3
    assert "blank lines only" in line(lambda: read_lines(write("b.txt", " \n\t\n")))


@pytest.mark.parametrize("name", ["rows", "rows.CSV.bak", "rows.jsonl.gz"])
def test_a_suffix_that_is_not_known(name: str, write: Write) -> None:
    found = line(lambda: read_file(write(name, "a\n"), []))
    assert f"cannot read '{Path(name).suffix or name}' files as a table; known: " in found
    assert ".txt" not in found


def test_the_case_of_a_suffix_does_not_matter(write: Write) -> None:
    assert read_file(write("A.JSONL", '{"text": "a"}\n'), []).rows == 1
    assert set(SUFFIXES) == {suffix.lower() for suffix in SUFFIXES}


def test_an_error_of_a_library_is_one_short_line() -> None:
    assert make_damaged_error(Path("a"), "arrow", ValueError("first\nsecond")).why == "first"
    assert make_damaged_error(Path("a"), "arrow", ValueError()).why == "ValueError"
    why = make_damaged_error(Path("a"), "arrow", OSError("x" * 5000 + "\x1b")).why
    assert why is not None
    assert len(why) <= 160
