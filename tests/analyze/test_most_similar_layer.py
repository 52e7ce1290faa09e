"""Which layer of a smaller model is most like each layer of the one it was made from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compress.analyze import similarity
from compress.analyze.similarity import find_most_similar
from compress.analyze.subject import Analysis

CKA = np.ma.masked_invalid([[0.2, 0.9, 0.4], [np.nan, np.nan, np.nan], [np.nan, 0.1, -0.3]])


def test_the_largest_of_each_row() -> None:
    (first, a), (second, b), (third, c) = find_most_similar(CKA)
    assert (first, a, third, c) == (1, 0.9, 1, 0.1)
    assert second is None
    assert b is np.ma.masked


@pytest.mark.parametrize(
    ("matrix", "line"),
    [
        (CKA, ["layer 1 is preserved least: CKA 0.100 with layer 0"]),
        (np.ma.masked_all((3, 3)), []),
    ],
)
def test_a_layer_whose_similarity_is_undefined_is_not_the_least_preserved(
    monkeypatch: pytest.MonkeyPatch, matrix: Any, line: list[str]
) -> None:
    made = SimpleNamespace(update=lambda *_: None, matrix=lambda: matrix)
    monkeypatch.setattr(similarity, "LayerCKA", lambda *_, **__: made)
    monkeypatch.setattr(similarity, "_matrix", lambda *_: None)
    one: Any = SimpleNamespace(layers=("emb", "0", "1"), name="small", states=lambda _: iter(()))
    other: Any = SimpleNamespace(layers=("emb", "0", "1"), name="large")
    found = Analysis()
    examples: Any = SimpleNamespace(offsets=[0, 9])
    similarity.measure_similarity(one, other, examples, found)
    rows = found.tables["lost"][1][1]
    assert rows[1] == ("0", "", "undefined")
    assert found.lines == line
