"""Files of an object store are read like files of this machine; a folder stands for the store."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from compress.data.reading import remote
from compress.data.reading.remote import RemotePath, parse_place
from compress.errors import UserError
from compress.predict.rows.inputs import EMBEDDED, PredictionInput
from compress.predict.rows.plan import Plan, plan_shards
from compress.predict.rows.reading import list_files
from compress.predict.rows.shards import ShardReader


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bucket with rows in every format."""
    folder = tmp_path / "bucket/rows"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"text": "0"}\n{"text": "1"}\n{"text": "2"}\n')
    (folder / "b.csv").write_text('text,id\n"3\n",1\n4,2\n')
    pq.write_table(pa.table({"text": ["5", "6"]}), folder / "c.parquet")
    (folder / "d.txt").write_text("7\n8")
    (folder / ".hidden.txt").write_text("9")
    system = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(remote, "connect", lambda bucket, query: system)
    return folder


def test_shards_of_a_store_have_the_rows_of_its_files(store: Path) -> None:
    files = list_files(parse_place("s3://bucket/rows/?region=x"))
    assert [str(file) for file in files] == [
        f"s3://bucket/rows/{name}?region=x" for name in ("a.jsonl", "b.csv", "c.parquet", "d.txt")
    ]
    plan = plan_shards(files, EMBEDDED, 2)
    plan = Plan.from_json(json.loads(json.dumps(plan.as_json())))
    reader = ShardReader(plan, EMBEDDED)
    rows = [[row.text.strip() for row in reader.read(s) if isinstance(row, PredictionInput)] for s in plan.shards]
    assert rows == [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"], ["8"]]
    assert all(file.is_unchanged() for file in plan.files)
    (store / "d.txt").write_text("7\n9")
    assert [file.is_unchanged() for file in plan.files] == [True, True, True, False]
    (store / "d.txt").unlink()
    assert not plan.files[3].is_unchanged()


def test_what_is_there(store: Path) -> None:
    for name, there in (("rows", (True, True)), ("rows/a.jsonl", (True, False)), ("x", (False, False))):
        place = parse_place(f"s3://bucket/{name}")
        assert (place.exists(), place.is_dir()) == there, name


def test_an_address_with_keys_is_rejected() -> None:
    with pytest.raises(UserError, match="s3://bucket/x: the address contains keys; set AWS_ACCESS_KEY_ID") as found:
        parse_place("s3://key:secret@bucket/x")
    assert "secret" not in found.value.line()
    for sign in ("@", "%40"):
        with pytest.raises(UserError, match="s3://bucket/x: the address contains keys") as found:
            parse_place(f"s3://bucket/x?endpoint_override=key:secret{sign}host:9000")
        assert "secret" not in found.value.line()
    assert parse_place("a/b") == Path("a/b")


def test_an_address_that_pyarrow_does_not_know_is_one_line() -> None:
    with pytest.raises(UserError, match=r"s3://bucket\?nothing=1: the store cannot be opened: "):
        RemotePath.parse("s3://bucket/x?nothing=1").exists()
