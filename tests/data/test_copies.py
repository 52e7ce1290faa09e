"""Training data of an object store is copied to the cache once per content; a folder stands for the store."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from pyarrow import fs

from compress.cli._help import Command
from compress.console import Console
from compress.data.reading import copies, file_corpus, remote
from compress.data.reading.copies import local_name, select_files, show_address
from compress.data.reading.remote import RemotePath
from compress.data.reading.sources import open_table
from compress.errors import ExitCode, UserError

ADDRESS = "s3://bucket/rows"
ENDPOINT = "?endpoint_override=host:1&scheme=http"


def make_lines(rows: int, first: int = 0) -> str:
    return "".join(
        json.dumps({"text": f"a film of row {i}", "label": ("bad", "good")[i % 2]}) + "\n"
        for i in range(first, first + rows)
    )


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `rows` of a bucket."""
    folder = tmp_path / "store/bucket/rows"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text(make_lines(40))
    (folder / "test.jsonl").write_text(make_lines(10, 100))
    (folder / "model.bin").write_bytes(b"x")
    system = fs.SubTreeFileSystem(str(tmp_path / "store"), fs.LocalFileSystem())
    monkeypatch.setattr(remote, "connect", lambda bucket, query: system)
    monkeypatch.setattr(copies, "_addresses", {})
    monkeypatch.setattr(copies, "_copies", {})
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def downloads(store: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of the files that were opened for their bytes, in order."""
    opened: list[str] = []
    real = RemotePath.open

    def count(self: RemotePath, mode: str = "rb") -> object:
        opened.append(self.key)
        return real(self, mode)

    monkeypatch.setattr(RemotePath, "open", count)
    return opened


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another process, which has read nothing yet."""
    monkeypatch.setattr(copies, "_addresses", {})
    copies.ask_stores_again()


def line(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as found:
        call()
    return found.value.line()


def test_a_table_is_that_of_the_local_folder_and_is_called_by_its_address(store: Path) -> None:
    here = open_table(str(store))
    there = open_table(ADDRESS + ENDPOINT)
    assert there.fingerprint == here.fingerprint
    assert there.name == ADDRESS
    assert [note.replace(str(store), ADDRESS) for note in here.notes] == list(there.notes)


def test_a_content_is_downloaded_once(
    store: Path, downloads: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = local_name(ADDRESS)
    forget(monkeypatch)
    assert local_name(ADDRESS) == first
    assert sorted(downloads) == ["bucket/rows/test.jsonl", "bucket/rows/train.jsonl"]
    assert Path(first).is_relative_to(tmp_path / "cache/s3")
    (store / "train.jsonl").write_text(make_lines(50))
    assert local_name(ADDRESS) == first, "a command reads one content from its beginning to its end"
    copies.ask_stores_again()
    changed = local_name(ADDRESS)
    assert changed != first
    assert len(Path(changed, "train.jsonl").read_text().splitlines()) == 50
    assert show_address(f"{changed}/train.jsonl:3") == f"{ADDRESS}/train.jsonl:3"


def test_a_command_asks_the_store_once_for_an_address(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    identify = RemotePath.identify
    monkeypatch.setattr(RemotePath, "identify", lambda self: asked.append(self.name) or identify(self))
    local_name(ADDRESS)
    asked.clear()
    local_name(ADDRESS)
    assert not asked

    @click.command(cls=Command)
    def read() -> None:
        local_name(ADDRESS)

    for _ in range(2):
        read.main([], standalone_mode=False)
    assert sorted(asked) == ["test.jsonl", "test.jsonl", "train.jsonl", "train.jsonl"]


def test_a_download_shows_its_progress(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("compress"), "handlers", [])
    monkeypatch.setattr("compress.console.console.SLOW_SECONDS", 0.0)
    monkeypatch.setattr(copies, "_MB", 1000)
    shown = io.StringIO()
    Console(err=shown).listen()
    local_name(ADDRESS)
    assert f"download {ADDRESS} 0/3" in shown.getvalue()


def test_a_damaged_copy_is_downloaded_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Path(local_name(ADDRESS), "train.jsonl")
    whole = copy.read_bytes()
    copy.write_bytes(whole[:-1])
    forget(monkeypatch)
    local_name(ADDRESS)
    assert copy.read_bytes() == whole


def test_text_without_labels_and_a_corpus_are_read_too(store: Path) -> None:
    (store / "more.txt").write_text("one more text\nand another\n")
    table = open_table(f"{ADDRESS}/train.jsonl", unlabelled=f"{ADDRESS}/more.txt{ENDPOINT}", needed=("train",))
    assert len(table.split("unlabelled")) == 2
    assert f"unlabelled: 2 rows of {ADDRESS}/more.txt" in table.notes
    for stream in (False, True):
        here = file_corpus.open_corpus(str(store / "train.jsonl"), text_column="text", stream=stream)
        there = file_corpus.open_corpus(f"{ADDRESS}/train.jsonl{ENDPOINT}", text_column="text", stream=stream)
        assert (there.fingerprint, there.name) == (here.fingerprint, f"{ADDRESS}/train.jsonl")
        assert list(there.texts()) == list(here.texts())


def test_a_file_called_like_a_split_brings_its_description(store: Path) -> None:
    (store / "info.json").write_text(json.dumps({"task": "classification", "label_names": ["good", "bad"]}))
    assert open_table(f"{ADDRESS}/train.jsonl").label_names == ["good", "bad"]


def test_an_error_of_a_row_names_the_address(store: Path) -> None:
    with (store / "train.jsonl").open("a") as file:
        file.write("{\n")
    assert line(lambda: open_table(ADDRESS + ENDPOINT)).startswith(f"{ADDRESS}/train.jsonl:41: ")
    (store / "broken.jsonl").write_text(make_lines(200) + '{"text": 1}\n')
    corpus = file_corpus.open_corpus(f"{ADDRESS}/broken.jsonl", text_column="text", stream=True)
    assert line(lambda: list(corpus.list_texts())).startswith(f"{ADDRESS}/broken.jsonl: column 'text': ")


def test_what_is_not_there_or_no_data(store: Path) -> None:
    (store / "empty").mkdir()
    assert line(lambda: local_name(f"{ADDRESS}/trains.jsonl")) == (
        f"{ADDRESS}/trains.jsonl: no such file or folder in the store; did you mean {ADDRESS}/train.jsonl?"
    )
    assert line(lambda: local_name("s3://buckets/rows")) == (
        "s3://buckets/rows: no such bucket 'buckets'; check its name and the endpoint"
    )
    known = "known types: .jsonl, .ndjson, .json, .csv, .tsv, .parquet, .arrow, .feather, .txt"
    assert line(lambda: local_name(f"{ADDRESS}/empty")) == (
        f"{ADDRESS}/empty: the folder has no files of data: it is empty; {known}"
    )
    assert line(lambda: local_name(f"{ADDRESS}/model.bin")) == (
        f"{ADDRESS}/model.bin: cannot read '.bin' files as data; {known}"
    )


def test_a_disk_that_is_too_small_is_told_before_anything_is_read(
    store: Path, downloads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compress.storage.atomic.free_bytes", lambda path: 10)
    with pytest.raises(UserError, match=f"{ADDRESS}: no space to download the data: .*set COMPRESS_CACHE") as found:
        local_name(ADDRESS)
    assert found.value.code == ExitCode.RESOURCES
    assert not downloads


def test_a_file_that_changes_meanwhile_leaves_no_copy(
    store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = RemotePath.identify
    monkeypatch.setattr(copies, "_identify", lambda place: (real(place)[0], "an earlier content"))
    assert line(lambda: local_name(f"{ADDRESS}/test.jsonl")) == (
        f"{ADDRESS}/test.jsonl: the file changed while it was downloaded; try again"
    )
    assert not list((tmp_path / "cache").rglob("test.jsonl"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("When … : AWS Error ACCESS_DENIED during HeadObject operation"), "the store denies access"),
        (OSError("When … : AWS Error UNKNOWN (HTTP status 403) during HeadObject"), "AWS_SECRET_ACCESS_KEY"),
        (OSError("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7"), "cannot be reached"),
        (OSError("AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation"), "no such bucket 'bucket'"),
        (FileNotFoundError(2, "gone"), "no such file or folder in the store"),
        (OSError("AWS Error SLOW_DOWN"), "does not answer as expected: AWS Error SLOW_DOWN"),
    ],
)
def test_what_a_store_answers_is_one_line(error: OSError, said: str) -> None:
    found = RemotePath("bucket/x").explain(error).line()
    assert found.startswith("s3://bucket/x: ")
    assert said in found


def test_only_files_that_readers_open_are_copied() -> None:
    table = ["train.csv", "info.json", "model.bin", ".hidden.csv", "raw/a.csv", "README.md"]
    assert select_files(table) == ["info.json", "train.csv"]
    ranked = ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "runs/test.trec", "old/corpus.jsonl"]
    assert select_files(ranked) == ["corpus.jsonl", "qrels/test.tsv", "queries.jsonl", "runs/test.trec"]
    saved = ["dataset_dict.json", "train/state.json", "train/data-00000.arrow", "train/.cache/x.arrow"]
    assert select_files(saved) == ["dataset_dict.json", "train/data-00000.arrow", "train/state.json"]
