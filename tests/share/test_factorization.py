"""Embeddings as a product: exact where the tables have that rank, better where the text is, else refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from test_conversion import CONFIG, batch, outputs, parent

from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.folder import FolderMeta, load_model, save_model
from compress.stages.share import factorization
from compress.stages.share.factorization import Counts


def low_rank(rank: int) -> Model:
    """A model whose tables, each about a mean of its own, lie in one space of this rank."""
    model = parent()
    random = torch.Generator().manual_seed(5)
    directions = torch.randn(rank, 16, generator=random)
    embeddings = model.encoder.embeddings
    with torch.no_grad():
        for table in (embeddings.word, embeddings.position, embeddings.segment):
            assert table is not None
            rows = torch.randn(table.weight.shape[0], rank, generator=random)  # pyright: ignore
            table.weight.copy_(rows @ directions + torch.randn(16, generator=random))  # pyright: ignore
    return model


def counts(seed: int = 0) -> Counts:
    random = np.random.default_rng(seed)
    rows = {"word": random.zipf(1.3, 60) % 3000, "position": np.r_[np.full(9, 50), np.zeros(23)], "segment": [90, 0]}
    return Counts({name: np.asarray(used, float) for name, used in rows.items()}, int(np.sum(rows["word"])))


@pytest.mark.parametrize("weighted", [True, False])
def test_tables_of_that_rank_are_exact_and_so_is_the_masked_lm_head(weighted: bool) -> None:
    model = low_rank(5)
    made = factorization.factorize(model, counts() if weighted else None, size=5)
    assert made.error < 1e-10
    built = factorization.apply(model, made)
    assert (built.config.width, built.config.project_first) == (5, True)
    logits, vocabulary = outputs(built)
    expected, theirs = outputs(model)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(vocabulary.log_softmax(-1), theirs.log_softmax(-1), rtol=1e-4, atol=1e-4)


def test_the_head_stays_tied_to_the_table() -> None:
    built = factorization.apply(parent(), factorization.factorize(parent(), None, size=4))
    out = built(batch(), factorization_needs())
    assert out.vocabulary is not None
    assert out.vocabulary.weight is built.encoder.embeddings.word.weight
    assert out.vocabulary.features.shape == (14, 4)


def factorization_needs():
    from compress.contracts import Needs

    return Needs(mlm="all")


def test_weights_buy_accuracy_where_the_text_is() -> None:
    model, used = parent(), counts()
    plain = factorization.factorize(model, None, size=6)
    weighted = factorization.factorize(model, used, size=6)
    share = torch.from_numpy(used.rows["word"]) + 1
    rows = model.encoder.embeddings.word.weight.detach().double()

    def missed(made: factorization.Factorization) -> float:
        again = made.tables["word"] @ made.projection.T + made.centre
        return float((share * (rows - again).square().sum(1)).sum())

    assert missed(weighted) < missed(plain)


def test_bands_hold_every_row_once() -> None:
    model, used = parent(), counts()
    bands = factorization.bands(model, factorization.factorize(model, used, size=6), used)
    assert sum(band.rows for band in bands) == 60
    assert sum(band.share for band in bands) == pytest.approx(1)
    assert all(band.error >= 0 for band in bands)
    assert len({band.key for band in bands}) == len(bands)


@pytest.mark.parametrize("error", [0.5, 0.1, 0.01])
def test_the_smallest_size_within_an_error(error: float) -> None:
    model, used = parent(), counts()
    made = factorization.factorize(model, used, error=error)
    assert made.error <= error
    if made.size > 1:
        assert factorization.factorize(model, used, size=made.size - 1).error > error


def test_the_largest_size_within_megabytes() -> None:
    size = factorization.size_for(CONFIG, 0.003, "here")
    rows = 60 + 32 + 2
    assert 4 * (rows * size + 16 * size + 16) <= 3000 < 4 * (rows * (size + 1) + 16 * (size + 1) + 16)
    with pytest.raises(UserError, match=r"here: 0.0001 MB for the embeddings: E = 1 takes 0.00 MB"):
        factorization.size_for(CONFIG, 0.0001, "here")


@pytest.mark.parametrize("size", [0, 16, 17])
def test_a_size_that_is_not_below_the_width(size: int) -> None:
    with pytest.raises(UserError) as error:
        factorization.factorize(parent(), None, size=size)
    assert str(error.value) == (
        f"embedding: an embedding size of {size}: the product must be smaller than the tables, whose width is 16; "
        "use 1..15, or remove it to keep the tables"
    )


def test_what_cannot_be_factorized() -> None:
    with pytest.raises(UserError, match="the embeddings are already factorized, 8 x 16"):
        factorization.refuse_factorized(dataclasses.replace(CONFIG, embedding=8), "m")
    with pytest.raises(UserError, match="fixed sinusoids"):
        factorization.refuse_factorized(dataclasses.replace(CONFIG, positions="sinusoidal"), "m")


def test_round_trip(tmp_path) -> None:
    built = factorization.apply(parent(), factorization.factorize(parent(), counts(), size=6))
    folder = save_model(tmp_path / "m", built, tokenizer_files={}, meta=FolderMeta(task="classification"))
    again = load_model(folder)
    assert again.config == built.config
    for ours, theirs in zip(outputs(again.model), outputs(built), strict=True):
        assert torch.equal(ours, theirs)
    assert "its embedding width 6 differs from its hidden size 16" in (folder / "README.md").read_text(encoding="utf-8")
