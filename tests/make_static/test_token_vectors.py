"""The steps from token vectors to a static model's table."""

import numpy as np
import pytest
import torch

from compress.data.text.tokenizer import Tokenizer
from compress.stages.make_static.token_vectors import build_table, compute_sif_weights, fit_pca, wrap_tokens


def test_each_token_stands_between_the_special_tokens():
    tokenizer = Tokenizer.train(["a good film", "a bad film"], vocabulary_size=60)
    examples = wrap_tokens(tokenizer, 7)
    assert len(examples) == 7
    wanted = [[tokenizer.cls_id, i, tokenizer.sep_id] for i in range(7)]
    assert examples.ids.reshape(7, 3).tolist() == wanted


def test_sif_weights_follow_the_counts():
    weights = compute_sif_weights(torch.tensor([0, 100, 1900]), 0.01)
    shares = np.array([0.5, 100.5, 1900.5]) / 2001.5
    np.testing.assert_allclose(weights, 0.01 / (0.01 + shares), rtol=1e-6)


def test_pca_is_that_of_scikit_learn():
    from sklearn.decomposition import PCA

    vectors = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7)
    mean, directions = fit_pca(vectors, 3)
    pca = PCA(3).fit(vectors.numpy())
    np.testing.assert_allclose(mean, pca.mean_, atol=1e-5)
    np.testing.assert_allclose(np.abs(directions.numpy().T @ pca.components_.T), np.eye(3), atol=1e-4)


def test_a_table_has_zeros_for_silent_tokens_and_weights_for_the_others():
    vectors = torch.randn(12, 5, generator=torch.Generator().manual_seed(1))
    silent, weights = torch.tensor([0, 3]), torch.linspace(0.1, 1, 12)
    heard = [i for i in range(12) if i not in (0, 3)]
    table = build_table(vectors, weights, silent, 2)
    assert table.shape == (12, 2)
    assert not table[silent].any()
    assert float(table[heard].norm(dim=1).mean()) == pytest.approx(1)
    plain = build_table(vectors, None, silent, 2)
    ratio = (table / plain)[heard]
    np.testing.assert_allclose(ratio[:, 0] / weights[heard], ratio[0, 0] / weights[heard[0]], rtol=1e-4)


def test_vectors_of_the_parents_width_stay_on_its_axes():
    """Their cosine to the parent's vectors would say nothing otherwise; how alike texts are is the same."""
    vectors = torch.randn(40, 5, generator=torch.Generator().manual_seed(2)) + 3
    none = torch.tensor([], dtype=torch.int64)
    table, centred = build_table(vectors, None, none, 5), vectors - vectors.mean(0)
    assert torch.allclose(torch.cosine_similarity(table, centred), torch.ones(40), atol=1e-5)
