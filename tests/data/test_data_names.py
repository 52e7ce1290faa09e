"""What a name of data means, and what is said of one that means nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from compress.data.reading import names
from compress.errors import UserError


def line(name: str) -> str:
    with pytest.raises(UserError) as error:
        names.require_there(name)
    return error.value.line()


@pytest.mark.parametrize("name", ["hf:no/such", "embedded:nothing", "hf:"])
def test_what_is_elsewhere_is_not_looked_for_on_the_disk(name: str) -> None:
    assert names.is_elsewhere(name)
    names.require_there(name)


def test_a_file_named_as_an_embedded_set_needs_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = names.list_embedded_names()[0]
    Path(name).write_text("x")
    assert names.is_elsewhere(name)
    assert not names.is_elsewhere(f"./{name}")
    names.require_there(f"./{name}")


@pytest.mark.parametrize("name", ["", "  ", "\n"])
def test_an_empty_name_is_no_data(name: str) -> None:
    assert line(name) == "no data given; give a file, a folder, hf:name or an embedded set"


@pytest.mark.parametrize(
    ("name", "why"), [("a\0b", "NUL byte"), ("x" * 300, "File name too long"), ("~nobody-here/x", "home directory")]
)
def test_what_no_path_can_be(name: str, why: str) -> None:
    found = line(name)
    assert "is not a path" in found
    assert why in found
    assert len(found) < 300


def test_the_nearest_name_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reviews.jsonl").write_text("x")
    assert line("review.jsonl").endswith("did you mean 'reviews.jsonl'?")
    embedded = names.list_embedded_names()[0]
    assert line(f"{embedded}s").endswith(f"did you mean the embedded set '{embedded}'?")


def test_without_a_near_name_the_folder_is_listed(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text("x")
    assert line(str(tmp_path / "nothing")).endswith("that folder is empty")
    for letter in "abcdefghij":
        (tmp_path / f"{letter}{letter}{letter}").write_text("x")
    found = line(str(tmp_path / "zzzzzz.csv"))
    assert "it contains: aaa, bbb, ccc, ddd, eee, fff, ggg, hhh …" in found
    assert "hidden" not in found
    assert "does not exist either" in line(str(tmp_path / "no" / "such" / "file"))


def test_a_name_as_on_the_hub_is_offered_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert line("someone/something").endswith("or hf:someone/something for the hub")
    assert "hf:" not in line("someone/some/thing")
    Path("someone").mkdir()
    assert "hf:" not in line("someone/something"), "the folder is there: the file is meant"
    assert "or an embedded set: " in line("qqqqqqqq")


def test_a_folder_that_may_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as another user's home: it may be entered, and its files are looked for."""

    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    found = line(str(tmp_path / "reviews.jsonl"))
    assert found.endswith(f"reviews.jsonl': looked in {tmp_path}")


def test_names_that_drive_a_terminal_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "\x1b[31mred").write_text("x")
    found = line(str(tmp_path / "zzzz"))
    assert "\x1b" not in found
    assert "\\x1b[31mred" in found


def test_a_file_that_is_read_in_place_cannot_be_in_a_store() -> None:
    with pytest.raises(UserError) as found:
        names.path_of("s3://bucket/words.txt")
    assert found.value.line() == (
        "s3://bucket/words.txt: this file cannot be read from an object store; copy it to this machine"
    )
