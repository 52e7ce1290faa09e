"""`compress evaluate --vectors` rejects what it could not write or compute before any model is asked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.commands import stored_vectors
from compress.contracts import RunOptions
from compress.encoder.config.heads import HeadConfig
from compress.errors import UserError


@pytest.fixture
def embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose vectors have 8 dimensions, and data that nobody may open."""
    head = HeadConfig("embedding", labels=8)
    monkeypatch.setattr(stored_vectors, "resolve", lambda *_: Path("m"))
    monkeypatch.setattr(stored_vectors.modelfolder, "inspect", lambda _: SimpleNamespace(heads={"task": head}))
    monkeypatch.setattr(stored_vectors, "open_labelled", lambda *_, **__: pytest.fail("the data was opened"))


def evaluate(dimensions: tuple[int, ...] = (), **options: Any) -> None:
    stored_vectors.evaluate_vectors("m", None, "test", 10, ("int8",), dimensions, RunOptions(**options))


@pytest.mark.usefixtures("embedder")
def test_an_output_that_is_there_is_rejected_first(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="exists already"):
        evaluate(output=tmp_path)


@pytest.mark.usefixtures("embedder")
@pytest.mark.parametrize("size", [0, 9])
def test_dimensions_that_the_vectors_do_not_have(size: int) -> None:
    with pytest.raises(UserError, match=rf"{size} dimensions.*give 1 to 8"):
        evaluate((4, size))


def test_a_classifier_has_no_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    head = HeadConfig("classification", labels=8)
    monkeypatch.setattr(stored_vectors, "resolve", lambda *_: Path("m"))
    monkeypatch.setattr(stored_vectors.modelfolder, "inspect", lambda _: SimpleNamespace(heads={"task": head}))
    with pytest.raises(UserError, match="needs a model for sentence embeddings"):
        evaluate()


def test_names_of_kinds() -> None:
    assert stored_vectors.read_kinds("int8, binary") == ("int8", "binary")
    with pytest.raises(UserError, match="did you mean 'int8'"):
        stored_vectors.read_kinds("int9")
