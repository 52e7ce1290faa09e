"""Large arrays in files without names: the same numbers, in memory only while they are read."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from compress.storage import spill
from compress.storage.spill import Spool


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path))
    monkeypatch.setattr(spill, "LARGE", 1000)
    monkeypatch.setattr(spill, "PIECE", 64)


def is_mapped(array: np.ndarray) -> bool:
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("kind", [np.int64, np.float32, bool, np.uint8])
def test_a_spool_gives_what_was_appended(kind: type, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    parts = [random.integers(0, 2, (n, *shape)).astype(kind) for n in (1, 0, 7, 500, 2000, 3)]
    spool = Spool(kind, shape)
    for part in parts:
        spool.append(part)
    found = spool.finish()
    assert is_mapped(found)
    assert found.dtype == kind
    np.testing.assert_array_equal(found, np.concatenate(parts))


def test_few_numbers_stay_in_memory() -> None:
    spool = Spool(np.int64)
    spool.append(np.arange(5))
    assert not is_mapped(spool.finish())
    assert Spool(np.int64).finish().shape == (0,)
    array = np.arange(5)
    assert spill.spill(array) is array


def test_arrays_are_joined_as_numpy_joins_them() -> None:
    parts = [np.arange(300, dtype=np.int32), np.arange(200, dtype=np.int64)]
    found = spill.concatenate(parts)
    assert is_mapped(found)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.concatenate(parts))


def test_rows_are_taken_as_numpy_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "TAKEN", 10)
    whole = spill.spill(np.random.default_rng(0).random((900, 2)))
    chosen = np.random.default_rng(1).integers(-900, 900, 333)
    np.testing.assert_array_equal(spill.take(whole, chosen), whole[chosen])
    assert spill.take(whole, chosen[:0]).shape == (0, 2)


def test_what_was_released_is_read_again() -> None:
    found = spill.spill(np.arange(5000))
    assert found.sum() == np.arange(5000).sum()
    spill.release()
    assert found.sum() == np.arange(5000).sum()


def test_what_was_read_is_released_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(spill, "release", lambda: calls.append(1))
    monkeypatch.setattr(spill, "_read", 0)
    for _ in range(8):
        spill.note_read(spill.HELD // 2)
    assert len(calls) == 2


def test_the_file_has_no_name(tmp_path: Path) -> None:
    held = spill.spill(np.arange(5000))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert held[-1] == 4999
