"""The length that a model is fine-tuned for, by that of the training texts."""

from __future__ import annotations

import numpy as np
import pytest

from compress.stages.shared.text_length import choose_length


@pytest.mark.parametrize(
    ("needed", "most", "expected"),
    [
        ([5] * 100, 512, 64),
        ([5] * 99 + [65], 512, 64),  # one in a hundred
        ([5] * 98 + [65] * 2, 512, 128),
        ([65] * 98 + [300] * 2, 512, 512),
        ([300] * 100, 300, 300),
        ([5] * 100, 32, 32),
        ([700] * 100, 4096, 1024),
    ],
)
def test_choose_length(needed: list[int], most: int, expected: int) -> None:
    assert choose_length(np.array(needed), most) == expected
