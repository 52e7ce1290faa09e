"""What the weights of a student with other vectors than its teacher's are chosen by."""

import numpy as np
import pytest

from compress.stages.shared.validation import mean_distance
from evaluation.representation.neighbours import neighbour_overlap


def test_vectors_of_other_widths_are_compared_by_neighbours() -> None:
    rng = np.random.default_rng(0)
    theirs = rng.normal(size=(40, 8)).astype(np.float32)
    ours = theirs[:, :5] + 0.1
    assert mean_distance(theirs, 2 * theirs) == pytest.approx(0, abs=1e-6)
    assert mean_distance(ours, theirs) == pytest.approx(1 - neighbour_overlap(ours, theirs).mean())
    turned = theirs[:, ::-1]
    assert mean_distance(turned, theirs) > 0.5, "a cosine compares axis with axis"
    assert mean_distance(turned, theirs, by_neighbours=True) == 0
    wide = np.concatenate([theirs, np.zeros((40, 2), dtype=np.float32)], axis=1)
    assert mean_distance(wide, theirs) == pytest.approx(0)
    assert 0 <= mean_distance(ours[:3], theirs[:3]) <= 1
    assert mean_distance(-(ours[:11] ** 3), theirs[:11]) > 0, "few texts are not all neighbours of each other"
    assert mean_distance(ours[:1], theirs[:1]) == 0
