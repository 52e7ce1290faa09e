"""Principal directions of vectors."""

import numpy as np
import torch

from compress.stages.reduce_dimensions.rotation import find_directions


def test_directions_keep_the_largest_part_and_all_of_them_keep_cosines():
    vectors = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 3, 0.1, 2, 0.5])
    whole = find_directions(vectors, 5)
    np.testing.assert_allclose(whole.T @ whole, np.eye(5), atol=1e-5)
    units = torch.nn.functional.normalize(vectors, dim=1)
    kept = (units @ whole).square().mean(0)
    assert kept.tolist() == sorted(kept.tolist(), reverse=True)
    _, values, found = torch.linalg.svd(units)
    np.testing.assert_allclose(kept, values.square() / 40, atol=1e-5)
    np.testing.assert_allclose(np.abs((found @ whole).numpy()), np.eye(5), atol=1e-3)
