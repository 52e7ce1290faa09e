"""Files that are copied to another machine: packed, kept once by their content, and found by the path they had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from compress.data.reading.names import path_of
from compress.data.reading.places import open_source
from compress.data.reading.remote import parse_place
from compress.errors import UserError
from compress.modelfolder.names import model_label
from compress.modelfolder.resolve import resolve
from compress.storage.parcels import plan_parcels
from compress.storage.sent import find_copy, find_name, use_copies


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    yield
    use_copies({})


def fill(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def send(*paths: str) -> dict[str, str]:
    """Path as it was named → copy, as on another machine."""
    copies: dict[str, str] = {}
    for parcel in plan_parcels(paths):
        info, content = parcel.pack()
        copies |= info.unpack(lambda content=content: content)
    return copies


def test_a_copy_is_whole_has_the_same_names_and_is_fetched_once(tmp_path: Path) -> None:
    folder = fill(tmp_path / "runs/first/student", {"config.json": "{}", "model.safetensors": "", "1_Pooling/a": "x"})
    (parcel,) = plan_parcels([str(folder)])
    assert parcel.size == 3
    info, content = parcel.pack()
    copy = Path(info.unpack(lambda: content)[str(folder)])
    assert copy.parts[-3:] == folder.parts[-3:]
    assert model_label(copy) == model_label(folder) == "first"
    found = {str(file.relative_to(copy)): file.read_text() for file in copy.rglob("*") if file.is_file()}
    assert found == {"config.json": "{}", "model.safetensors": "", "1_Pooling/a": "x"}
    assert info.unpack(lambda: pytest.fail("it is here")) == {str(folder): str(copy)}
    (copy / "1_Pooling/a").write_text("y")
    info.unpack(lambda: content)
    assert (copy / "1_Pooling/a").read_text() == "x", "a damaged copy is made again"


def test_the_digest_is_of_names_and_content(tmp_path: Path) -> None:
    def digest(place: str, files: Mapping[str, str]) -> str:
        return plan_parcels([str(fill(tmp_path / place, files))])[0].pack()[0].digest

    first = digest("one/a/b/model", {"x": "1"})
    assert digest("two/a/b/model", {"x": "1"}) == first, "wherever it lies"
    others = {digest("1/a/b/other", {"x": "1"}), digest("2/a/b/model", {"x": "2"}), digest("3/a/b/model", {"y": "1"})}
    assert len(others | {first}) == 4


def test_files_of_one_folder_are_one_parcel_with_what_describes_them(tmp_path: Path) -> None:
    fill(tmp_path / "rows", {"a.jsonl": "a", "b.jsonl": "b", "c.jsonl": "c", "info.json": "{}"})
    fill(tmp_path / "model", {"config.json": "{}"})
    names = [str(tmp_path / name) for name in ("rows/b.jsonl", "model", "rows/a.jsonl")]
    model, rows = plan_parcels(names)
    assert (model.title, rows.title) == (str(tmp_path / "model"), f"2 files of {tmp_path / 'rows'}")
    copies = send(*names)
    assert copies.keys() == {*names}
    assert sorted(path.name for path in Path(copies[names[0]]).parent.iterdir()) == ["a.jsonl", "b.jsonl", "info.json"]


def test_what_is_there_is_never_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fill(tmp_path / "work", {"here": "1"}))
    use_copies({"here": "/copies/here", "../gone": "/copies/gone"})
    assert find_copy(Path("here")) == Path("here")
    assert find_copy(Path("../gone")) == find_copy(tmp_path / "gone") == Path("/copies/gone")
    assert find_copy(Path("../other")) == Path("../other")
    assert find_name("/copies/gone") == "../gone"
    assert find_name("/copies/here/x") == "/copies/here/x"


def test_models_data_and_rows_are_read_from_their_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fill(tmp_path / "work", {"x": ""}))
    fill(tmp_path / "model", {"config.json": "{}"})
    fill(tmp_path / "data", {"train.jsonl": '{"text": "a", "label": "b"}\n', "info.json": '{"task": "classification"}'})
    known = open_source("../data/train.jsonl", [])
    use_copies(send("../model", "../data/train.jsonl"))
    for name in ("model", "data"):
        (tmp_path / name).rename(tmp_path / f"{name}-elsewhere")
    found = open_source("../data/train.jsonl", [])
    assert (found.name, found.info) == (known.name, known.info) == ("../data/train.jsonl", {"task": "classification"})
    assert resolve("../model").name == "model"
    assert parse_place("../data/train.jsonl") == path_of("../data/train.jsonl")
    assert path_of("../data/train.jsonl").read_text().startswith("{")


def test_links_stay_inside_what_is_sent(tmp_path: Path) -> None:
    folder = fill(tmp_path / "model", {"blob": "content"})
    (folder / "weights").symlink_to("blob")
    copy = Path(send(str(folder))[str(folder)])
    assert not (copy / "weights").is_symlink()
    assert (copy / "weights").read_text() == "content"
    fill(tmp_path, {"secret": "x"})
    (folder / "more").symlink_to("../secret")
    with pytest.raises(UserError, match=r"model/more: cannot be sent to another machine: it is a link out of"):
        plan_parcels([str(folder)])


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: the folder is empty"):
        plan_parcels([str(tmp_path / "empty")])
    with pytest.raises(UserError, match=r"none: cannot be read: No such file"):
        plan_parcels([str(tmp_path / "none")])
    (parcel,) = plan_parcels([str(fill(tmp_path / "a", {"x": "1"}))])
    (tmp_path / "a/x").unlink()
    with pytest.raises(UserError, match=r"a/x: cannot be read: No such file"):
        parcel.pack()
