"""A model whose vectors are multiplied by a matrix."""

import numpy as np
import pytest
import torch

from compress.contracts import Needs
from compress.data.batches.examples import pack
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.heads import DenseShape, HeadConfig
from compress.encoder.modules.model import Model
from compress.encoder.reshape.project import project_vectors
from compress.modelfolder.families.model2vec import make_static_config

WIDTH = 8
ENCODER = EncoderConfig.uniform(vocabulary=20, hidden=WIDTH, layers=1, heads=2, feed_forward=8, pooler=False)
HEADS = {
    "plain": (ENCODER, ()),
    "linear": (ENCODER, (DenseShape(6), DenseShape(7))),
    "tanh": (ENCODER, (DenseShape(6, tanh=True),)),
    "static": (make_static_config(20, WIDTH), ()),
}


def vectors_of(model: Model) -> torch.Tensor:
    ids = np.array([1, 4, 5, 2, 1, 7, 2])
    batch = pack(
        ids, np.array([0, 4, 7]), segments=np.zeros(7, dtype=np.uint8), special=np.isin(ids, [1, 2]),
        row_ids=np.arange(2), labels=None,
    )  # fmt: skip
    with torch.no_grad():
        logits = model.eval()(batch, Needs(logits=True)).logits
    assert logits is not None
    return logits


@pytest.mark.parametrize("cut", [None, 4])
@pytest.mark.parametrize("name", HEADS)
def test_vectors_are_multiplied_and_have_length_1(name, cut):
    config, denses = HEADS[name]
    width = cut or (denses[-1].width if denses else WIDTH)
    head = HeadConfig("embedding", labels=width, pooling="mean", denses=denses, normalize=True, truncate=cut)
    model = Model(config, {"task": head})
    matrix = torch.randn(width, 3, generator=torch.Generator().manual_seed(0))
    made = project_vectors(model, matrix)
    wanted = torch.nn.functional.normalize(vectors_of(model) @ matrix, dim=1)
    np.testing.assert_allclose(vectors_of(made), wanted, atol=1e-5)
    assert made.head_configs["task"].labels == 3
    assert made.head_configs["task"].truncate is None
    # A matrix more only where none is linear.
    assert len(made.head_configs["task"].denses) == {"plain": 1, "linear": 2, "tanh": 2, "static": 0}[name]
