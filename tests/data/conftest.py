"""Small files to open."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Row = dict[str, Any]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """write("a.jsonl", [rows]) or write("a.csv", "text") or write("a.bin", b"bytes") → the path."""

    def write_file(name: str, content: Sequence[Row] | str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_bytes(content.encode())
        else:
            path.write_bytes("".join(json.dumps(row) + "\n" for row in content).encode())
        return path

    return write_file


@pytest.fixture
def folder(write: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """folder(train=[rows], test=[rows]) → a folder of jsonl files; splits not given get two good rows each."""

    def make(**splits: Sequence[Row]) -> Path:
        good = {"train": rows_of("train"), "validation": rows_of("validation"), "test": rows_of("test")}
        for name, rows in (good | splits).items():
            write(f"set/{name}.jsonl", rows)
        return tmp_path / "set"

    return make


def rows_of(name: str, count: int = 4) -> list[Row]:
    return [{"text": f"{name} text number {i}", "label": ("no", "yes")[i % 2]} for i in range(count)]
