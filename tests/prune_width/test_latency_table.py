"""A latency table: time between two timed sizes grows evenly and never falls; a damaged file is reported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress.encoder.config.encoder import EncoderConfig
from compress.errors import UserError
from compress.stages.prune_width.costs import Counts
from compress.stages.prune_width.latency import Table, _curve, _read


@given(st.lists(st.floats(0, 10), min_size=1, max_size=5), st.integers(0, 6))
def test_curves_never_fall_and_pass_through_rising_times(ms: list[float], more: int) -> None:
    counts = list(range(1, 3 * len(ms), 3))
    most = counts[-1] + more
    found = _curve(counts, ms, most)
    assert found.shape == (most + 1,)
    assert (np.diff(found) >= 0).all()
    np.testing.assert_allclose(found[counts], [max(ms[: i + 1]) for i in range(len(ms))])


def test_between_two_sizes_time_grows_evenly() -> None:
    np.testing.assert_allclose(_curve([1, 4], [2.0, 5.0], 5), [2, 2, 3, 4, 5, 5])


def test_blocks_and_a_rest_make_the_whole() -> None:
    config = EncoderConfig.uniform(vocabulary=9, hidden=8, layers=2, heads=2, feed_forward=4, max_positions=8)
    costs = Table({"None": ([1, 2], [1.0, 2.0])}, ([2, 4], [0.5, 1.0]), 10.0, False)
    found = costs.costs(config)
    assert found.of(Counts.of(config)) == pytest.approx(10)
    assert found.fixed == pytest.approx(10 - 2 * (2 + 1))
    assert Table(costs.attention, costs.feed_forward, 1.0, False).costs(config).fixed == 0, (
        "noise makes no negative rest"
    )


def test_a_table_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    rows = {"attention": {"None": [[1], [0.5]]}, "feed_forward": [[4], [0.25]], "whole": 2, "busy": False}
    path.write_text(json.dumps(rows))
    assert _read(path) == Table({"None": ([1], [0.5])}, ([4], [0.25]), 2.0, False)
    for key, value in (("attention", []), ("attention", {"None": [1]}), ("feed_forward", None), ("whole", "fast")):
        path.write_text(json.dumps(rows | {key: value}))
        with pytest.raises(UserError, match="not a latency table; remove the file to have it measured again"):
            _read(path)
