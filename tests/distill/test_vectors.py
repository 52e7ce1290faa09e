"""Students whose vectors have another width than their teacher's."""

import pytest
import torch

from compress.objectives.vector_similarity import Objective as VectorSimilarity
from compress.objectives.vectors import Objective as Vectors
from compress.stages.distill.vectors import find_width_objective, fit_matrix


def test_the_matrix_restores_what_a_linear_map_took():
    generator = torch.Generator().manual_seed(0)
    theirs = torch.nn.functional.normalize(torch.randn(200, 4, generator=generator), dim=1)
    ours = theirs @ torch.linalg.qr(torch.randn(6, 6, generator=generator))[0][:4]
    found = torch.nn.functional.normalize(ours @ fit_matrix(ours, 3 * theirs), dim=1)
    assert torch.nn.functional.cosine_similarity(found, theirs).min() > 0.999


def test_fewer_texts_than_dimensions_give_finite_numbers():
    generator = torch.Generator().manual_seed(0)
    assert fit_matrix(torch.randn(3, 8, generator=generator), torch.randn(3, 5, generator=generator)).abs().max() < 10


@pytest.mark.parametrize(("objective", "found"), [(Vectors(), "it"), (VectorSimilarity(), None)])
def test_only_a_comparison_of_numbers_needs_one_width(objective, found):
    assert find_width_objective({"it": (1.0, objective)}) == found
