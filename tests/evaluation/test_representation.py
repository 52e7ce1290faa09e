"""Anisotropy before and after evening out; probes and their control tasks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evaluation.representation.anisotropy import BINS, anisotropy, remove_top, whiten
from evaluation.representation.hsic import UndefinedError
from evaluation.representation.probes import probe


def normal(rows: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_shared_direction_is_seen_and_removed() -> None:
    even = normal(400, 12, 0)
    lopsided = even + 20 * torch.eye(12, dtype=torch.float64)[0] * (1 + 0.1 * normal(400, 1, 1))
    before = anisotropy(lopsided)
    assert before.cosine > 0.9
    assert before.shares[1] > anisotropy(even).shares[1]
    assert before.histogram[-1] > 0.8 * sum(before.histogram)
    assert sum(before.histogram) == 400 * 399 // 2
    assert len(before.histogram) == BINS
    for after in (anisotropy(whiten(lopsided)), anisotropy(remove_top(lopsided, 1))):
        assert after.cosine < 0.3
    assert anisotropy(whiten(lopsided)).shares[3] == pytest.approx(3 / 12)


def test_whitening_is_fitted_on_one_set_and_used_on_another() -> None:
    base, other = normal(5_000, 4, 2) * torch.tensor([9.0, 1, 1, 0.1]).double(), normal(10, 4, 3)
    white = whiten(base)
    torch.testing.assert_close(white.T.cov(), torch.eye(4).double(), atol=1e-8, rtol=0)
    torch.testing.assert_close(whiten(base[:10], base), white[:10])
    assert whiten(other, torch.cat([base, base], 0)).shape == (10, 4)
    flat = torch.cat([base, base[:, :1]], 1)
    assert whiten(flat).shape[1] == 4, "a direction without variance is left out"


def test_rounding_is_no_direction() -> None:
    """After a layer norm the numbers of a row have a fixed sum: what varies there is the rounding of fp32."""
    rows = torch.nn.functional.layer_norm(normal(300, 32, 6).float() + 3, (32,)) + 0.1 * torch.arange(32)
    assert whiten(rows).shape == (300, 31)
    saved = whiten(rows + 1e-6 * normal(300, 32, 7).float(), rows)
    assert (saved - whiten(rows)).abs().max() < 1e-3, "nor does rounding change what becomes of a row"
    with pytest.raises(UndefinedError, match="32 components are all that 300 rows of 31 directions have"):
        remove_top(rows, 32)


def test_what_has_no_anisotropy() -> None:
    for rows, message in ((normal(1, 3, 4), "at least 2 rows"), (torch.ones(5, 3), "all the same")):
        with pytest.raises(UndefinedError, match=message):
            anisotropy(rows)


def test_a_probe_finds_what_is_there_and_its_control_what_can_be_memorised() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 300, 3_000)
    classes = words % 3
    x = normal(3_000, 8, 5)
    x[:, :3] += 4 * torch.eye(3).double()[classes]
    split = slice(None, 2_000), slice(2_000, None)
    (a, b) = ((x[s], classes[s]) for s in split)
    found = probe(a, b, (words[split[0]].tolist(), words[split[1]].tolist()))
    assert found.accuracy.value > 0.95
    assert found.control.value < 0.55
    assert found.selectivity > 0.4
    assert found.baseline == pytest.approx(1 / 3, abs=0.05)
    with pytest.raises(ValueError, match="one label and one kind a row"):
        probe(a, (b[0], b[1][:3]), ([], []))
