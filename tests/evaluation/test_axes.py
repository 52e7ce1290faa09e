"""Vectors that were rotated are told from vectors that were changed."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.representation.axes import have_same_axes

RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.normal(size=(64, 32)) + 0.5
ROTATION = np.linalg.qr(RANDOM.normal(size=(32, 32)))[0]


@pytest.mark.parametrize(
    ("ours", "same"),
    [
        (VECTORS, True),
        (3 * VECTORS + 0.2 * RANDOM.normal(size=VECTORS.shape), True),
        (VECTORS @ ROTATION, False),
        ((VECTORS + 0.2 * RANDOM.normal(size=VECTORS.shape)) @ ROTATION, False),
        (RANDOM.normal(size=VECTORS.shape), True),  # of a model that knows nothing: its cosine says so
    ],
)
def test_rotated_vectors_have_other_axes(ours: np.ndarray, same: bool) -> None:
    assert have_same_axes(ours, VECTORS) is same


def test_few_texts_say_nothing() -> None:
    assert have_same_axes((VECTORS @ ROTATION)[:11], VECTORS[:11])
