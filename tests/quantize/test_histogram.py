"""Counts of activations in bins, beside numpy's, and the ranges chosen by them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compress.contracts import Scheme
from compress.errors import UserError
from compress.quantizers._base import affine, symmetric
from compress.quantizers._histogram import FRACTIONS, HALF, Histogram, least_square, scale_for
from compress.quantizers._rounding import codes_of, numbers_of
from compress.quantizers._static import require_range

VALUES = st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20), min_size=1, max_size=4)


def counted(parts: list[list[float]]) -> Histogram:
    seen = Histogram()
    for part in parts:
        seen.add(torch.tensor(part))
    return seen


@given(VALUES)
def test_every_value_is_counted_in_its_bin(parts: list[list[float]]) -> None:
    """Rounding may put a value on an edge into the neighbouring bin: sums up to each edge agree within such values."""
    seen, values = counted(parts), np.array([x for part in parts for x in part])
    assert seen.counts.sum() == len(values)
    assert (seen.low, seen.high) == (values.min(), values.max())
    assert seen.reach >= np.abs(values).max()
    width = seen.reach / HALF
    bins = np.repeat(seen.centers.numpy().astype(float), seen.counts.long().numpy())
    np.testing.assert_allclose(bins, np.sort(values), atol=width * 0.51 + 1e-30)


def test_bins_are_at_most_a_2048th_of_the_widest_value() -> None:
    seen = counted([[0.001], [1.7]])
    assert seen.reach / HALF <= 1.7 / 2048
    assert seen.counts.sum() == 2


def test_percentiles_leave_out_the_ends() -> None:
    values = np.random.default_rng(0).normal(size=20_000)
    seen = counted([values.tolist()])
    low, high = seen.percentile(99)
    bin_width = seen.reach / HALF
    np.testing.assert_allclose([low, high], np.quantile(values, [0.01, 0.99]), atol=2 * bin_width)
    assert seen.percentile(100) == pytest.approx((values.min(), values.max()), abs=2 * bin_width)


@given(st.floats(-5, 5), st.floats(-5, 5), st.sampled_from([symmetric(8, "tensor"), affine(8), affine(4)]))
def test_codes_cover_the_range_and_hit_zero(a: float, b: float, scheme: Scheme) -> None:
    low, high = min(a, b), max(a, b)
    scale, zero = scale_for(low, high, scheme)
    ends = torch.tensor([min(low, 0.0), max(high, 0.0)])
    back = numbers_of(codes_of(ends, scale, zero, scheme), scale, zero, scheme)
    assert (back - ends).abs().max() <= scale * 0.51 + 1e-6
    assert numbers_of(codes_of(torch.zeros(1), scale, zero, scheme), scale, zero, scheme).item() == 0


def test_the_range_of_least_error_is_the_best_of_those_tried() -> None:
    values = torch.cat([torch.linspace(-1, 1, 500), torch.tensor([8.0])])
    seen, scheme = counted([values.tolist()]), symmetric(4, "tensor")

    def error(part: float) -> float:
        scale, zero = scale_for(seen.low * part, seen.high * part, scheme)
        return float((numbers_of(codes_of(values, scale, zero, scheme), scale, zero, scheme) - values).square().sum())

    high = least_square(seen, scheme)[1]
    assert high < 8, "one outlier does not stretch the range"
    assert error(high / 8) <= 1.01 * min(error(part) for part in FRACTIONS)


def test_what_gives_no_range() -> None:
    for seen in (None, Histogram(), counted([[]])):
        with pytest.raises(UserError, match="no activations were observed"):
            require_range(seen)
    with pytest.raises(UserError, match="its input is always 2 on the calibration rows"):
        require_range(counted([[2.0, 2.0]]))
    with pytest.raises(UserError, match="its input contains NaN or infinity"):
        require_range(counted([[1.0], [float("inf")]]))
    assert require_range(counted([[1.0, 2.0]])).high == 2
