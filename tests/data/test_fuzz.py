"""Whatever the bytes are: a table, or a UserError of one line. Nothing else leaves the readers."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

import pytest
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.data.reading import places
from compress.data.reading import text_files as textfiles
from compress.data.reading.sources import open_table
from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError

SEEDS = {
    "a.jsonl": b"".join(json.dumps({"text": f"t\xe9 {i}", "label": i % 2}).encode() + b"\n" for i in range(12)),
    "a.json": json.dumps([{"text": f"t {i}", "label": "ab"[i % 2]} for i in range(12)]).encode(),
    "a.csv": b"text,label\n" + b"".join(b'"t, %d",%d\r\n' % (i, i % 2) for i in range(12)),
    "a.tsv": b"text\tlabel\n" + b"".join(b"t %d\t%d\n" % (i, i % 2) for i in range(12)),
}
JUNK = [
    b"",
    b"\x00",
    b'"',
    b"'",
    b"\n",
    b"\r",
    b"{",
    b"[",
    b"]",
    b",",
    b"\t",
    b"\xff",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"null",
]
JUNK += [b"NaN", b"1e999", b"9" * 400, b"\x1b[2J", b"\xef\xbb\xbf", b"true", b"-1", b"\xe2\x80\xa8", b"\x1a", b"\x0c"]
PLACES = st.integers(0, 400) | st.integers(0, 9000)
EDITS = st.lists(st.tuples(PLACES, st.integers(0, 6), st.sampled_from(JUNK)), min_size=1, max_size=6)


def mutated(data: bytes, edits) -> bytes:
    for place, drop, junk in edits:
        place = min(place, len(data))
        data = data[:place] + junk + data[place + drop :]
    return data


def survives(name: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            table = open_table(str(path))
        except UserError as error:
            line = error.line()
            assert line.isprintable()
            assert len(line) < 2000
        else:
            for rows in table.splits.values():
                assert all(isinstance(text, str) for text in rows.texts)
                assert rows.labels.min() >= 0
                assert rows.labels.max() < len(table.label_names)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@given(edits=EDITS)
@settings(max_examples=scaled(150), deadline=None)
def test_damaged_json(name, edits):
    survives(name, mutated(SEEDS[name], edits))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@given(edits=EDITS)
@settings(max_examples=scaled(150), deadline=None)
def test_damaged_csv(name, edits):
    survives(name, mutated(SEEDS[name], edits))


@given(data=st.binary(max_size=200), suffix=st.sampled_from(["jsonl", "json", "csv", "parquet", "arrow"]))
@settings(max_examples=scaled(150), deadline=None)
def test_noise(data, suffix):
    survives(f"a.{suffix}", data)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40).filter(lambda t: "\r" not in t))
@settings(max_examples=scaled(100), deadline=None)
def test_any_text_comes_back_from_json_lines(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n", "utf-8", newline="\n")
        column = textfiles.read_jsonl(path).columns["text"]
        assert (column if isinstance(column, list) else column.to_pylist()) == [text]


@given(edits=EDITS)
@settings(max_examples=scaled(150), deadline=None)
def test_damaged_tokenizers(edits, toy_tokenizer_files):
    files = toy_tokenizer_files | {"tokenizer.json": mutated(toy_tokenizer_files["tokenizer.json"], edits)}
    with contextlib.suppress(UserError):
        tokenizer = Tokenizer.from_files(files)
        tokenizer.encode_batch(["the film was good", "\x00 ##"], max_length=16)


@given(name=st.text(max_size=30) | st.just("x" * 5000) | st.just("\x00") | st.just("~nobody/x"))
@settings(max_examples=scaled(60), deadline=None)
def test_any_name(name):
    if name.startswith("hf:"):
        return
    with contextlib.suppress(UserError):
        places.open_source(name, [])
