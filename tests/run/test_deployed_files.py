"""Which quantized models get an ONNX file before they are measured, and what happens where one cannot be written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compress.errors import ExitCode, UserError
from compress.run import deploy as deploying
from compress.run.deploy import deploy, require_writer


class Rows(list[int]):
    """Rows of a table, as far as they are looked at."""

    def take(self, places: np.ndarray) -> Rows:
        return Rows(self[i] for i in places)


@pytest.fixture
def wrote(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the folders that got a file. `float` is not quantized, `done` has one, `odd` cannot have one."""
    from compress.onnx import writer

    found: list[str] = []

    def write_into(folder: Path, batches: list[Any], what: str) -> Any:
        if folder.name == "odd":
            raise UserError("this layer cannot be expressed")
        found.append(folder.name)
        return SimpleNamespace(findings=[f"{folder.name} on {what}"], content=b"0" * 2_500_000)

    kinds: Any = lambda f: SimpleNamespace(config=SimpleNamespace(quantization=None if f.name == "float" else 8))  # noqa: E731
    monkeypatch.setattr(deploying.modelfolder, "inspect", kinds)
    monkeypatch.setattr(deploying, "_has_file", lambda folder: folder.name == "done")
    monkeypatch.setattr(deploying, "can_write", lambda: True)
    monkeypatch.setattr(deploying, "ROWS", 2)
    monkeypatch.setattr(deploying, "evaluation_batches", lambda examples, _: examples)
    encode = lambda rows, max_length: np.array(list(rows))  # noqa: E731
    monkeypatch.setattr(deploying, "Predictor", lambda *_, **__: SimpleNamespace(encode_rows=encode))
    monkeypatch.setattr(writer, "write_into", write_into)
    return found


def run(*names: str, asked: bool | None = None) -> tuple[list[str], list[str]]:
    said: list[str] = []
    warned: list[str] = []
    deploy([Path(n) for n in names], Rows(range(9)), "x/test", 32, asked, said.append, warned.append)  # type: ignore[arg-type]
    return said, warned


def test_quantized_models_without_a_file_get_one(wrote: list[str]) -> None:
    said, warned = run("float", "done", "student", "control")
    assert wrote == ["student", "control"]
    assert said[:2] == ["student on x/test", "wrote student/model.onnx, 2.5 MB"]
    assert warned == []
    assert run("student", asked=False) == ([], [])


def test_one_that_cannot_be_written_is_a_warning_unless_it_was_asked_for(wrote: list[str]) -> None:
    _, warned = run("odd", "student")
    assert warned == ["no model.onnx in odd: this layer cannot be expressed"]
    assert wrote == ["student"], "the others get theirs"
    with pytest.raises(UserError, match="this layer cannot be expressed"):
        run("odd", asked=True)


def test_without_a_writer_integers_are_simulated(wrote: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploying, "can_write", lambda: False)
    assert run("student")[0] == [
        "model.onnx is not written and quantization is simulated: pip install 'compress-bert[onnx]'"
    ]
    assert run("float") == ([], []), "nothing is said where nothing was to be written"
    assert wrote == []
    require_writer(None)
    require_writer(False)
    with pytest.raises(UserError) as missing:
        require_writer(True)
    assert missing.value.code == ExitCode.ENVIRONMENT


def test_a_file_counts_where_it_is_of_these_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploying.modelfolder, "fingerprint", lambda _: "weights")
    monkeypatch.setattr(deploying, "file_digest", lambda _: "file")
    assert not deploying._has_file(tmp_path)
    (tmp_path / deploying.RECORD).write_text("{}", encoding="utf-8")
    for record, has in (
        ({"model": "weights", "sha256": "file"}, True), ({"model": "other", "sha256": "file"}, False),
        ({"model": "weights", "sha256": "other"}, False), ({}, False),
    ):  # fmt: skip
        monkeypatch.setattr(deploying, "read_record", lambda _, r=record: r)
        assert deploying._has_file(tmp_path) is has
