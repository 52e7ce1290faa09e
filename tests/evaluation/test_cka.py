"""CKA against the plain Gram computation, its invariances, its frozen vectors, and where it has no value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evaluation.representation.cka import LayerCKA, LinearCKA
from evaluation.representation.hsic import UndefinedError, hsic


def normal(rows: int, width: int, seed: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def streamed(x: Tensor, y: Tensor, size: int = 1000, debiased: bool = True) -> float:
    cka = LinearCKA()
    for start in range(0, len(x), size):
        cka.update(x[start : start + size], y[start : start + size])
    return cka.value(debiased=debiased)


def plain(x: Tensor, y: Tensor) -> float:
    """Song et al.'s formula on whole Gram matrices."""

    def one(k: Tensor, l: Tensor) -> Tensor:  # noqa: E741
        n, ones = len(k), torch.ones(len(k), dtype=torch.float64)
        k, l = (g - torch.diag(g.diag()) for g in (k, l))  # noqa: E741
        first = torch.trace(k @ l) + ones @ k @ ones * (ones @ l @ ones) / ((n - 1) * (n - 2))
        return (first - 2 / (n - 2) * (ones @ k @ l @ ones)) / (n * (n - 3))

    k, l = x @ x.T, y @ y.T  # noqa: E741
    return float(one(k, l) / (one(k, k) * one(l, l)).sqrt())


def test_the_frozen_vector() -> None:
    x, y = (torch.tensor(v, dtype=torch.float64)[:, None] for v in ((1, 2, 3, 4, 5), (2, 1, 4, 3, 7)))
    grams = [v @ v.T for v in (x, y)]
    assert hsic(grams[0], grams[1]).item() == pytest.approx(157 / 30)
    assert hsic(grams[0], grams[0]).item() == pytest.approx(31 / 6)
    assert hsic(grams[1], grams[1]).item() == pytest.approx(29 / 2)
    assert streamed(x, y) == pytest.approx(0.604629280, abs=1e-9)
    assert streamed(x, y, debiased=False) == pytest.approx(0.679245283, abs=1e-9)


@settings(max_examples=scaled(40))
@given(st.integers(4, 40), st.integers(1, 9), st.integers(1, 9), st.integers(1, 17), st.integers(0, 99))
def test_streaming_is_the_gram_computation_whatever_the_batches(n: int, p: int, q: int, size: int, seed: int) -> None:
    x, y = normal(n, p, seed), normal(n, q, seed + 1) + 5
    y[:, : min(p, q)] += x[:, : min(p, q)]
    k = plain(x, y)
    if math.isnan(k):  # the unbiased estimate of a tiny sample may be negative
        return
    assert streamed(x, y, size) == pytest.approx(k, abs=1e-6)
    whole = LayerCKA(minibatch=n)
    whole.update([x], [y])
    assert float(whole.matrix()[0, 0]) == pytest.approx(k, abs=1e-6)


def test_equal_up_to_rotation_scale_and_shift_is_one() -> None:
    x = normal(200, 6, 0)
    turned = 3.5 * x @ torch.linalg.qr(normal(6, 6, 1)).Q + 7
    for debiased in (True, False):
        assert streamed(x, x, 17, debiased) == pytest.approx(1, abs=1e-9)
        assert streamed(x, turned, 17, debiased) == pytest.approx(1, abs=1e-9)
    assert streamed(x, x @ torch.diag(torch.tensor([9.0, 1, 1, 1, 1, 1]).double())) < 0.95, "not to any linear map"


def test_independent_data_is_zero_without_bias_and_far_from_it_with() -> None:
    x, y = normal(256, 768, 0), normal(256, 768, 1)
    assert abs(streamed(x, y)) < 0.02
    assert streamed(x, y, debiased=False) == pytest.approx(0.7495, abs=0.01)  # √(pq/((n+p)(n+q)))


def test_layers_in_minibatches_are_near_the_exact_value() -> None:
    base = normal(2000, 8, 3)
    layers = [base + a * normal(2000, 8, 10 + i) for i, a in enumerate((0.0, 0.5, 2.0))]
    cka = LayerCKA(minibatch=128)
    for start in range(0, 2000, 300):
        cka.update([x[start : start + 300] for x in layers])
    matrix = cka.matrix()
    exact = np.array([[streamed(a, b) for b in layers] for a in layers])
    np.testing.assert_allclose(matrix, exact, atol=0.02)
    np.testing.assert_allclose(matrix.diagonal(), 1)
    other = LayerCKA(minibatch=128)
    for start in range(0, 2000, 77):
        other.update([x[start : start + 77] for x in layers])
    np.testing.assert_allclose(other.matrix(), matrix, atol=1e-9, err_msg="how rows were batched does not matter")


def test_two_models_give_a_rectangle() -> None:
    cka = LayerCKA()
    x = normal(300, 5, 0)
    cka.update([x, x * 2, normal(300, 5, 1)], [x, normal(300, 9, 2)])
    matrix = cka.matrix()
    assert matrix.shape == (3, 2)
    assert matrix[1, 0] == pytest.approx(1)


def test_where_there_is_no_value() -> None:
    x = normal(50, 3, 0)
    with pytest.raises(UndefinedError, match="at least 4 rows, found 3"):
        streamed(x[:3], x[:3])
    with pytest.raises(UndefinedError, match="constant representation"):
        streamed(x, torch.ones(50, 4, dtype=torch.float64) * 3.3)
    with pytest.raises(UndefinedError, match="not finite"):
        streamed(x, x / 0)
    with pytest.raises(UndefinedError, match="found none"):
        LayerCKA().matrix()
    cka = LayerCKA(minibatch=16)
    cka.update([x, torch.full((50, 4), 2.0)])
    matrix = cka.matrix()
    assert matrix.mask.tolist() == [[False, True], [True, True]]


@settings(max_examples=scaled(20))
@given(st.floats(-9, 9), st.floats(-9, 9), st.booleans())
def test_scale_is_no_matter_however_small_or_large(one: float, other: float, debiased: bool) -> None:
    x = normal(60, 5, 6)
    y = x + normal(60, 5, 7)
    a, b = 10**one, 10**other
    assert streamed(a * x, b * y, 17, debiased) == pytest.approx(streamed(x, y, 17, debiased), abs=1e-9)
    plain_one, scaled = LayerCKA(minibatch=20), LayerCKA(minibatch=20)
    plain_one.update([x, y])
    scaled.update([a * x, b * y])
    assert not scaled.matrix().mask.any()
    np.testing.assert_allclose(scaled.matrix(), plain_one.matrix(), atol=1e-9)


def test_rounding_is_no_representation() -> None:
    x = normal(64, 8, 8)
    noise = (3.3 * (1 + 3e-8 * normal(64, 8, 9))).float()
    assert noise.std() > 0, "as a model gives [CLS] at its embeddings: the same but for the last bit"
    with pytest.raises(UndefinedError, match="constant representation"):
        streamed(x, noise)
    for kernel in ("linear", "rbf"):
        cka = LayerCKA(minibatch=16, kernel=kernel)
        cka.update([x, noise, 1e-7 * x])
        assert cka.matrix().mask.tolist() == [[False, True, False], [True, True, True], [False, True, False]]
    with pytest.raises(ValueError, match=r"layers of \[64, 63\] rows"):
        LayerCKA().update([x, noise[1:]])
