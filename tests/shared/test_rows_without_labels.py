"""Which rows without labels are used, and when a person is warned of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compress.data.tables.table import Rows
from compress.errors import UserError
from compress.stages.shared.unlabelled_rows import draw_unlabelled_rows, find_unlabelled_rows, warn_of_unknown_tokens


def rows(texts: Sequence[str]) -> Rows:
    column = pa.chunked_array([pa.array(list(texts), pa.large_string())])
    return Rows({"text": column}, np.full(len(texts), -100), np.arange(1, len(texts) + 1))


def context(said: list[str], *, seed: int = 0, overlap: bool = False, limit: int | None = None) -> Any:
    data = SimpleNamespace(allow_overlap=overlap, unlabelled_rows=limit)
    return SimpleNamespace(recipe=SimpleNamespace(data=data, seed=seed), say=said.append)


def find(unlabelled: Sequence[str], said: list[str], *, overlap: bool = False) -> list[str]:
    splits = {"unlabelled": rows(unlabelled), "train": rows(["a"]), "validation": rows(["b"]), "test": rows(["c"])}
    table: Any = SimpleNamespace(splits=splits, split=splits.__getitem__, name="d")
    return find_unlabelled_rows(table, context(said, overlap=overlap)).texts


def test_texts_that_are_measured_on_are_left_out() -> None:
    said: list[str] = []
    assert find(["a", "b", "c", "new"], said) == ["a", "new"], "those of the training rows may stay"
    assert said[0].startswith("2 unlabelled rows left out")
    said.clear()
    assert find(["a", "b", "c", "new"], said, overlap=True) == ["a", "b", "c", "new"]
    assert find(["new"], said) == ["new"]
    assert not said
    with pytest.raises(UserError, match="all unlabelled rows are also in the validation or test split"):
        find(["b", "c"], said)


def test_a_draw_keeps_the_order_and_depends_on_the_seed() -> None:
    said: list[str] = []
    many = rows([str(i) for i in range(100)])
    first, again, other = (draw_unlabelled_rows(many, context(said, seed=s, limit=10)).texts for s in (0, 0, 1))
    assert len(set(first)) == 10
    assert first == again != other
    assert first == sorted(first, key=int)
    assert said[0] == "10 of 100 unlabelled rows are used"


@pytest.mark.parametrize(("limit", "warned"), [(None, False), (3, False), (4, True)])
def test_fewer_rows_than_requested(limit: int | None, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []
    with caplog.at_level(logging.WARNING, "compress.stages"):
        assert len(draw_unlabelled_rows(rows("abc"), context(said, limit=limit))) == 3
    assert [r.getMessage() for r in caplog.records] == (
        ["only 3 of the 4 unlabelled rows requested are there"] if warned else []
    )
    assert not said


@pytest.mark.parametrize(
    ("ours", "theirs", "warned"),
    [(0, 6, True), (0, 5, False), (10, 30, False), (10, 31, True)],
)
def test_text_in_another_script_has_more_unknown_tokens(
    ours: int, theirs: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def examples(unknown: int) -> Any:
        return SimpleNamespace(ids=np.array([1] * unknown + [7] * (1000 - unknown)))

    known: Any = SimpleNamespace(specials={"unk": 1}, unk_id=1)
    none: Any = SimpleNamespace(specials={})
    with caplog.at_level(logging.WARNING, "compress.stages"):
        warn_of_unknown_tokens(none, examples(0), examples(990))
        assert not caplog.records, "a tokenizer of bytes knows everything"
        warn_of_unknown_tokens(known, examples(ours), examples(theirs))
    assert bool(caplog.records) == warned
