"""YAML as we read it: numbers, text, limits, and one clear line for everything else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from example_counts import scaled
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compress.errors import ExitCode, UserError
from compress.recipe.document import MAX_BYTES, Place, is_text, parse, read, tree

SCALARS = {
    "1e-5": 1e-5, "5E+2": 500.0, ".5": 0.5, "1.": 1.0, "-.5e3": -500.0, "+1": 1, "-0": 0, "12": 12, "1.5": 1.5,
    "true": True, "False": False, "null": None, "~": None, "": None,
    # What YAML 1.1 would turn into something else stays text.
    "yes": "yes", "no": "no", "on": "on", "Off": "Off", "y": "y", "010": "010", "0x1f": "0x1f", "0o7": "0o7",
    "1_000": "1_000", "12:30": "12:30", "12:30:45": "12:30:45", "2001-01-01": "2001-01-01", "1e": "1e", ".": ".",
    "e5": "e5", "'5'": "5", '"true"': "true", "=": "=", "1.2.3": "1.2.3",
}  # fmt: skip


@pytest.mark.parametrize("text", SCALARS)
def test_scalars(text: str) -> None:
    document = parse(f"a: {text}", "x.yaml")
    assert document is not None
    found = document.plain()["a"]
    assert found == SCALARS[text]
    assert type(found) is type(SCALARS[text])


def test_values_know_their_place() -> None:
    document = parse("a:\n  - b: 1\n    c: [2, 3]\n", "x.yaml")
    assert document is not None
    item = document.content["a"].content[0]
    assert str(item.content["c"].key_place) == "x.yaml:3:5"
    assert str(item.content["c"].content[1].place) == "x.yaml:3:12"


REFUSED = [
    ("a: [1,\n", "x.yaml:2:1: not valid YAML: expected the node content, but found '<stream end>'"),
    ("a: 'x", "x.yaml:1:6: not valid YAML: found unexpected end of stream"),
    ("a: @x", "x.yaml:1:4: not valid YAML: found character '@' that cannot start any token"),
    (
        "a: 1\n  b: 2",
        "x.yaml:2:4: not valid YAML: mapping values are not allowed here; "
        "quote text that contains ': ', and check the indentation",
    ),
    ("a:\n\tb: 1", "x.yaml:2:1: a tab in the indentation; indent with spaces"),
    ("lr: 1\nb: 2\nlr: 3", "x.yaml:3:1: duplicate key 'lr': lines 1 and 3; keep one"),
    ("a:\n  b: 1\n  b: 2", "x.yaml:3:3: duplicate key 'b': lines 2 and 3; keep one"),
    ("a: 1\n---\nb: 2", "x.yaml:2:1: a second document; a recipe is one YAML document; remove the `---`"),
    ("a: &x [1]\nb: *x", "x.yaml:1:4: anchors are not allowed; write the value again, or use `extends:`"),
    ("a: *x", "x.yaml:1:4: aliases are not allowed; write the value again, or use `extends:`"),
    ("a: &x\n  b: *x", "x.yaml:1:4: anchors are not allowed; write the value again, or use `extends:`"),
    (
        "a: !!python/object/apply:os.system [ls]",
        "x.yaml:1:4: tags are not allowed: found tag:yaml.org,2002:python/object/apply:os.system; write plain values",
    ),
    ("a: !!int '3'", "x.yaml:1:4: tags are not allowed: found tag:yaml.org,2002:int; write plain values"),
    ("? [a]\n: b", "x.yaml:1:3: a key must be plain text"),
    ("a: .nan", "x.yaml:1:4: not a finite number: found .nan"),
    ("a: -.inf", "x.yaml:1:4: not a finite number: found -.inf"),
    ("a: 1e999", "x.yaml:1:4: not a finite number: found 1e999"),
    ("a: " + "9" * 40, "x.yaml:1:4: the number is too long: 40 digits"),
    ("a: b\x07", "x.yaml:1:5: character U+0007 is not allowed in YAML"),
    ('a: "\\0"', "x.yaml:1:4: a string contains NUL or a lone surrogate"),
    ('a: "\\uD800"', "x.yaml:1:4: a string contains NUL or a lone surrogate"),
    ('"\\uD800": 1', "x.yaml:1:1: a string contains NUL or a lone surrogate"),
    ("[" * 2000, "x.yaml:1:21: nested too deep: more than 20 levels"),
    ("a: [" + "1," * 20_000 + "]", "x.yaml:1:20001: the recipe is too large: more than 10,000 values"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[m.split(": ", 1)[1][:40] for _, m in REFUSED])
def test_refused(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text, "x.yaml")
    assert str(caught.value) == message


FILES = [
    (b"", "x.yaml:1:1: the file is empty; a recipe is a mapping of keys to values"),
    (b"# only a comment\n", "x.yaml:1:1: the file is empty; a recipe is a mapping of keys to values"),
    (b"- a\n- b\n", "x.yaml:1:1: a recipe must be a mapping of keys to values: found a list"),
    (b"hello\n", "x.yaml:1:1: a recipe must be a mapping of keys to values: found the text 'hello'"),
    ("seed: 1".encode("utf-16"), "x.yaml:1:1: the recipe is UTF-16; save it as UTF-8"),
    (b"a: 1\nb: \xe9t\xe9", "x.yaml:2:4: not UTF-8: byte 0xe9 at offset 8; save the recipe as UTF-8"),
    (b"a: 1\nb: \0", "x.yaml:2:4: NUL byte; a recipe is a text file; check the path"),
    (b"a: " + b"x" * MAX_BYTES, "x.yaml: the recipe is too large: over 1,000,000 bytes"),
]


@pytest.mark.parametrize(("raw", "message"), FILES, ids=[m[:40] for _, m in FILES])
def test_refused_files(raw: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(raw)
    with pytest.raises(UserError) as caught:
        read(path, "x.yaml")
    assert str(caught.value) == message
    assert caught.value.code == ExitCode.INPUT


def test_a_directory_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^d: is a directory; give a recipe file$"):
        read(tmp_path, "d")
    with pytest.raises(UserError, match=r"^x: no such file: searched from "):
        read(tmp_path / "x.yaml", "x")


def test_a_pipe_is_no_recipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(UserError, match="is not a regular file: a pipe"):
        read(tmp_path / "pipe.yaml", "pipe.yaml")


def test_a_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: two\r\n")
    assert read(path, "x.yaml").plain() == {"a": 1, "b": "two"}


@given(st.text(max_size=200))
def test_only_user_errors_leave(text: str) -> None:
    try:
        parse(text, "x.yaml")
    except UserError as error:
        assert str(error).isprintable()  # noqa: PT017 - most texts are valid


SIMPLE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcdeé- :#", max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=scaled(500), deadline=None)
@example("\x85")
@example("a\u2028b\n c \n")
@given(SIMPLE)
def test_what_is_dumped_reads_back_equal(data: object) -> None:
    from compress.recipe.schema import dump

    document = parse(dump({"a": data}), "x.yaml")
    assert document is not None
    assert document.plain() == {"a": data}


@given(st.text("0123456789+-.eEx_:", min_size=1, max_size=8))
def test_numbers_are_those_of_json_and_python(text: str) -> None:
    """What is not text parses as a number in Python; what JSON calls a number is not text."""
    if not is_text(text):
        float(text)
    try:
        import json

        json.loads(text)
    except ValueError:
        return
    assert not is_text(text)


def test_tree_of_plain_data_stands_at_one_place() -> None:
    value = tree({"a": [1, {"b": 2}]}, Place("--set a=…"))
    assert value.plain() == {"a": [1, {"b": 2}]}
    assert str(value.content["a"].content[1].content["b"].place) == "--set a=…"


@pytest.mark.parametrize("data", [{"a": ["\ud800"]}, {"\udcff": 1}, "a\0"], ids=ascii)
def test_a_tree_holds_the_strings_that_a_file_could_hold(data: object) -> None:
    """Such as a flag with bytes that are no UTF-8 gives: Python reads these as lone surrogates."""
    with pytest.raises(UserError, match=r"^--set a: a string contains NUL or a lone surrogate$"):
        tree(data, Place("--set a"))


def test_pyyaml_can_read_what_we_dump() -> None:
    """Other tools read resolved recipes too."""
    from compress.recipe.schema import dump

    data = {"a": "on", "b": "010", "c": "1e-5", "d": "12:30", "e": 1.5, "f": None, "g": "2001-01-01"}
    assert yaml.safe_load(dump(data)) == data
