"""The journal: any cut yields a prefix, any damage is passed over, and a reader can come back later."""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.errors import ExitCode, UserError
from compress.storage import faults, journal
from compress.storage.journal import Journal, read, read_part

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
RECORDS = st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=3), max_size=5)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journal") / "journal.jsonl"


def lines(records: list[dict[str, Any]]) -> bytes:
    return b"".join(journal.encode_line(record) for record in records)


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    with Journal(path) as writer:
        writer.append({"text": 'new\nline "and" ü \ud800', "n": 1})
        assert read(path)[0][0]["n"] == 1, "handed to the system at once, not at close"
        writer.append({"loss": math.nan, "best": -math.inf})
        assert writer.end == path.stat().st_size
    records, offset = read(path)
    assert records[0] == {"text": 'new\nline "and" ü \ud800', "n": 1}
    assert math.isnan(records[1]["loss"])
    assert offset == path.stat().st_size
    assert len(path.read_bytes().splitlines()) == 2


def test_a_reader_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "j"
    assert read(path) == ([], 0)
    offset = 0
    seen = []
    with Journal(path) as writer:
        for i in range(10):
            writer.append({"i": i})
            if i % 3 == 0:
                records, offset = read(path, offset)
                seen += records
    records, offset = read(path, offset)
    assert seen + records == [{"i": i} for i in range(10)]
    assert read(path, offset) == ([], offset)


@settings(max_examples=scaled(100), deadline=None)
@given(records=RECORDS, data=st.data())
def test_any_truncation_yields_a_prefix_and_the_journal_goes_on(
    records: list[dict[str, Any]], data: st.DataObject, path: Path
) -> None:
    whole = lines(records)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    found, offset = read(path)
    assert found == records[: len(found)]
    assert offset == len(lines(found)) <= cut
    with Journal(path) as writer:
        kept, _ = read(path)
        assert kept[: len(found)] == found
        writer.append({"after": "the cut"})
    assert read_part(path).damaged == []
    assert read(path, offset)[0] == [*kept[len(found) :], {"after": "the cut"}]


@settings(max_examples=scaled(200), deadline=None)
@given(records=RECORDS.filter(bool), data=st.data())
def test_any_changed_byte_costs_at_most_two_records_and_never_changes_one(
    records: list[dict[str, Any]], data: st.DataObject, path: Path
) -> None:
    whole = bytearray(lines(records))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    part = read_part(path)
    rest = iter(records)
    assert all(any(found == record for record in rest) for found in part.records), "some of them, in order"
    assert len(records) - 2 <= len(part.records) < len(records)
    assert part.damaged or part.next_offset < len(whole)


@settings(max_examples=scaled(100), deadline=None)
@given(content=st.binary(max_size=200), offset=st.integers(0, 300))
def test_garbage_is_never_a_record(content: bytes, offset: int, path: Path) -> None:
    path.write_bytes(content)
    part = read_part(path, offset)
    assert part.records == []
    assert part.next_offset <= len(content)
    Journal(path).close()


def test_a_whole_line_without_its_end_is_kept_on_reopening(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(lines([{"i": 0}, {"i": 1}])[:-1])
    assert read(path)[0] == [{"i": 0}]
    with Journal(path) as writer:
        writer.append({"i": 2})
    assert read(path)[0] == [{"i": i} for i in range(3)]


def test_zeros_after_a_power_cut_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(lines([{"i": 0}]) + b"\0" * 200_000)
    assert read(path)[0] == [{"i": 0}]
    with Journal(path) as writer:
        writer.append({"i": 1})
    assert path.read_bytes() == lines([{"i": 0}, {"i": 1}])


def test_an_offset_where_no_line_begins_reads_everything_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(lines([{"i": 0}, {"i": 1}]))
    for offset in (5, path.stat().st_size + 1):
        assert read(path, offset) == ([{"i": 0}, {"i": 1}], path.stat().st_size)


def test_a_full_disk_leaves_no_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j"
    real = os.write
    calls = iter([3])

    def half_then_full(descriptor: int, data: Any) -> int:
        if next(calls, None) is not None:
            return real(descriptor, bytes(data)[:7])
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(path) as writer:
        writer.append({"i": 0})
        monkeypatch.setattr(os, "write", half_then_full)
        with pytest.raises(UserError, match="the disk is full: at least") as caught:
            writer.append({"i": 1})
        assert caught.value.code == ExitCode.RESOURCES
        monkeypatch.setattr(os, "write", real)
        writer.append({"i": 2})
    assert path.read_bytes() == lines([{"i": 0}, {"i": 2}])


def test_it_syncs_in_the_background_and_at_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: threads.append(threading.current_thread().name))
    with Journal(tmp_path / "j", sync_every=0.05) as writer:
        threads.clear()
        writer.append({"i": 0})
        until = time.monotonic() + 120
        while not threads and time.monotonic() < until:
            time.sleep(0.01)
        assert threads == ["journal-sync"]
        time.sleep(0.2)
        assert threads == ["journal-sync"], "nothing new, nothing to sync"
    assert threads == ["journal-sync", "MainThread"]


def test_a_failed_background_sync_is_told_to_the_next_append_once(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", sync_every=0.02) as writer:
        writer.append({"i": 0})
        with faults.arm_fault("journal.after_fsync", "eio"):
            writer.append({"i": 1})
            time.sleep(0.3)
        with pytest.raises(UserError, match="the disk failed"):
            writer.append({"i": 2})
        writer.append({"i": 3})
    assert [r["i"] for r in read(tmp_path / "j")[0]] == [0, 1, 3]


def test_many_threads_append(tmp_path: Path) -> None:
    def work(k: int, writer: Journal) -> None:
        for i in range(50):
            writer.append({"thread": k, "i": i})

    with Journal(tmp_path / "j") as writer:
        threads = [threading.Thread(target=work, args=(k, writer)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    part = read_part(tmp_path / "j")
    assert part.damaged == []
    for k in range(4):
        assert [r["i"] for r in part.records if r["thread"] == k] == list(range(50))


def test_after_close_nothing_is_appended(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "j")
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="is closed"):
        writer.append({})


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("x")
    (tmp_path / "j").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match="loop of symbolic links"):
        Journal(tmp_path / "j")
    assert (tmp_path / "victim").read_text() == "x"
