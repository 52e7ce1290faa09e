"""Stored vectors against what they stand for: codes, their sizes, and searches over them, computed here by hand."""

import numpy as np
import pytest

from evaluation.quality import compact_vectors
from evaluation.quality.compact_vectors import (
    KINDS,
    StoredVectors,
    cut,
    fit_ranges,
    from_bits,
    from_int8,
    to_bits,
    to_int8,
)
from evaluation.quality.retrieval import search


@pytest.fixture
def vectors() -> np.ndarray:
    """(200, 20) of length 1."""
    return cut(np.random.default_rng(0).normal(size=(200, 20)), 20)


def test_int8_codes_are_those_of_sentence_transformers(vectors):
    ranges = fit_ranges(vectors)
    codes = to_int8(vectors, ranges)
    starts, steps = vectors.min(0), (vectors.max(0) - vectors.min(0)) / 255
    np.testing.assert_array_equal(codes, np.clip(np.floor((vectors - starts) / steps), 0, 255) - 128)
    assert (np.abs(from_int8(codes, ranges) - vectors) <= steps * 0.501).all(), "half a step"
    assert to_int8(np.array([[9.0], [-9.0]]), np.array([[0.0], [1.0]])).tolist() == [[127], [-128]]
    assert np.isfinite(from_int8(to_int8(np.ones((3, 2)), fit_ranges(np.ones((3, 2)))), np.ones((2, 2)))).all()


def test_bits_are_signs(vectors):
    bits = to_bits(vectors)
    assert bits.shape == (200, 3)  # 20 bits
    np.testing.assert_array_equal(from_bits(bits, 20), np.where(vectors > 0, 1, -1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_ranks_by_what_is_stored(vectors, kind, monkeypatch):
    monkeypatch.setattr(compact_vectors, "RESCORED", 1000)  # all are candidates: then the decoded vectors decide
    monkeypatch.setattr(compact_vectors, "_ROWS", 7)
    stored = StoredVectors(vectors, kind)
    assert stored.bytes_per_vector == {"float32": 80, "int8": 20, "binary": 3, "binary+int8": 23}[kind]
    queries = vectors[:30]
    found = stored.search(queries, 5, skip=list(range(30)))
    scores = queries @ stored.decode().T
    scores[np.arange(30), np.arange(30)] = -np.inf
    np.testing.assert_allclose(np.take_along_axis(scores, found, 1), -np.sort(-scores, axis=1)[:, :5], atol=1e-6)
    many = stored.repeat(450)
    assert len(many) == 450
    np.testing.assert_array_equal(many.decode(np.array([0, 200, 449])), stored.decode(np.array([0, 0, 49])))


@pytest.mark.parametrize("counted", ["bitwise_count", "unpackbits"])
def test_hamming_distances(vectors, counted, monkeypatch):
    if counted == "unpackbits":  # numpy 1
        monkeypatch.delattr(np, "bitwise_count", raising=False)
    bits = to_bits(vectors)
    found, scores = search(bits[:9], bits, 4, similarity="hamming")
    signs = vectors > 0
    distances = (signs[:9, None] != signs[None]).sum(2)
    np.testing.assert_array_equal(-scores, np.sort(distances, axis=1)[:, :4])
    np.testing.assert_array_equal(np.take_along_axis(distances, found, 1), -scores)


def test_first_dimensions_have_length_1_again(vectors):
    np.testing.assert_allclose(cut(vectors, 3), vectors[:, :3] / np.linalg.norm(vectors[:, :3], axis=1)[:, None], 1e-5)
    with pytest.raises(ValueError, match="21 of 20"):
        cut(vectors, 21)
