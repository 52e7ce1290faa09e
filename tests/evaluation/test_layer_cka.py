"""CKA of all layers: intervals, kernels, outlier dimensions, closed forms; angles; which rows stand for a layer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from evaluation.representation.angles import LayerAngles
from evaluation.representation.cka import BLOCKS, LayerCKA, LinearCKA
from evaluation.representation.hsic import NonFiniteError, UndefinedError, hsic, linear_gram, rbf_gram
from evaluation.representation.rows import rows_of


def normal(rows: int, width: int, seed: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole(x: Tensor, y: Tensor, *, debiased: bool) -> float:
    cka = LinearCKA()
    cka.update(x, y)
    return cka.value(debiased=debiased)


def of_grams(k: Tensor, l: Tensor, debiased: bool) -> float:  # noqa: E741
    parts = (hsic(a, b, debiased=debiased) for a, b in ((k, l), (k, k), (l, l)))
    cross, own, other = (float(p) for p in parts)
    return cross / math.sqrt(own * other)


@pytest.mark.parametrize("debiased", [True, False])
def test_feature_space_is_the_gram_matrix_way(debiased: bool) -> None:
    x = normal(60, 5, 0)
    y = x[:, :3] ** 2 + normal(60, 3, 1)
    assert whole(x, y, debiased=debiased) == pytest.approx(of_grams(x @ x.T, y @ y.T, debiased), abs=1e-9)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_against_the_first_principal_components(k: int) -> None:
    """Biased CKA of X with its top k components is √(Σ_{i≤k} λ² / Σ λ²)."""
    x = normal(400, 6, 2) * torch.tensor([5.0, 3, 2, 1, 1, 0.5], dtype=torch.float64)
    x = x - x.mean(0)
    _, singular, vectors = torch.linalg.svd(x, full_matrices=False)
    squared = singular.pow(4)
    wanted = float((squared[:k].sum() / squared.sum()).sqrt())
    assert whole(x, x @ vectors[:k].T, debiased=False) == pytest.approx(wanted, abs=1e-9)


def test_a_noisy_copy_is_its_share_of_signal() -> None:
    """y = ax + √(1−a²)e, isotropic: a²."""
    x, e = normal(20_000, 20, 3), normal(20_000, 20, 4)
    assert whole(x, 0.8 * x + 0.6 * e, debiased=True) == pytest.approx(0.64, abs=0.01)


def test_an_interval_holds_the_value_and_narrows_with_rows() -> None:
    base = normal(20_000, 8, 5)
    other = base + normal(20_000, 8, 6)
    widths = []
    for rows in (1_600, 20_000):
        cka = LayerCKA(minibatch=100)
        cka.update([base[:rows], other[:rows]])
        low, high = cka.interval()
        assert (low <= cka.matrix()).all()
        assert (cka.matrix() <= high).all()
        assert low[0, 0] == pytest.approx(1)
        widths.append(float(high[0, 1] - low[0, 1]))
        assert low[0, 1] < whole(base, other, debiased=True) < high[0, 1]
    assert widths[1] < widths[0] / 2


def test_memory_stays_the_same_and_the_value_too_when_blocks_are_joined() -> None:
    x = normal(4 * 3 * BLOCKS, 3, 7)
    cka, kept = LayerCKA(minibatch=4), 0
    for start in range(0, len(x), 4):
        cka.update([x[start : start + 4], x[start : start + 4] ** 3])
        kept = max(kept, len(cka._blocks))
    assert kept <= 2 * BLOCKS
    assert cka.rows == len(x)
    parts = [torch.stack([hsic(linear_gram(a), linear_gram(b)) for b in (c, c**3)]) for c in x.split(4) for a in (c,)]
    total = torch.stack(parts).sum(0)
    assert total[1] / total[0] == pytest.approx(
        float(cka.matrix()[0, 1]) * math.sqrt(float(torch.stack(cka._blocks).sum(0)[1, 1] / total[0]))
    )


def test_one_minibatch_has_a_value_and_no_interval() -> None:
    cka = LayerCKA(minibatch=50)
    cka.update([normal(50, 3, 8)])
    assert cka.matrix()[0, 0] == pytest.approx(1)
    with pytest.raises(UndefinedError, match="an interval of CKA needs 400 rows in minibatches of 50"):
        cka.interval()


def test_rbf_is_one_for_rotations_and_near_zero_for_independent_rows() -> None:
    x = normal(600, 4, 9)
    turned = 3 * x @ torch.linalg.qr(normal(4, 4, 10)).Q + 1
    cka = LayerCKA(minibatch=200, kernel="rbf", bandwidth=0.5)
    cka.update([x, turned, normal(600, 4, 11), torch.ones(600, 2, dtype=torch.float64)])
    matrix = cka.matrix()
    assert matrix[0, 1] == pytest.approx(1, abs=1e-9)
    assert abs(matrix[0, 2]) < 0.05
    assert matrix.mask[3].all(), "a constant representation has no value under any kernel"
    k = rbf_gram(x[:50], 2.0)
    assert k.diagonal().tolist() == pytest.approx([1] * 50)


def test_a_shared_outlier_dimension_is_seen_through_without_it() -> None:
    shared = 1000 * normal(2_000, 1, 12)
    layers = [torch.cat([shared, normal(2_000, 6, seed)], 1) for seed in (13, 14)]
    plain, without = LayerCKA(), LayerCKA(without=1)
    for cka in (plain, without):
        cka.update(layers)
    assert plain.matrix()[0, 1] > 0.99
    assert abs(without.matrix()[0, 1]) < 0.05
    with pytest.raises(UndefinedError, match="7 of 7 dimensions"):
        LayerCKA(minibatch=8, without=7).update(layers)


def test_a_layer_that_is_not_finite_is_named() -> None:
    x = normal(300, 3, 15)
    for instrument in (LayerCKA(), LayerAngles()):
        with pytest.raises(NonFiniteError, match="representation 1 is not finite") as caught:
            instrument.update([x, x / 0, x])
        assert caught.value.layer == 1


def test_angles() -> None:
    x = torch.tensor([[1.0, 0], [0, 2]], dtype=torch.float64)
    y = torch.tensor([[0.0, 3], [0, 1]], dtype=torch.float64)
    angles = LayerAngles()
    angles.update([x[:1], y[:1]])
    angles.update([x[1:], y[1:]])
    np.testing.assert_allclose(angles.cosines(), [[1, 0.5], [0.5, 1]])
    np.testing.assert_allclose(angles.angles(), [[0, 0.25], [0.25, 0]], atol=1e-9)
    with pytest.raises(UndefinedError, match="no rows"):
        LayerAngles().angles()


def test_rows_that_stand_for_a_layer() -> None:
    state = torch.arange(10.0).view(5, 2)
    bounds = torch.tensor([0, 2, 5])
    assert rows_of(state, bounds) is state
    assert rows_of(state, bounds, "cls").tolist() == [[0, 1], [4, 5]]
    assert rows_of(state, bounds, "mean").tolist() == [[1, 2], [6, 7]]
