"""The `albert` recipe is the published model: as many parameters, and a folder that transformers computes alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.modelfolder.folder import inspect, save_model
from compress.recipe import load_recipe


def encoder(vocabulary: int = 30_000, **changes: object) -> EncoderConfig:
    spec = load_recipe("albert").stages[1].encoder
    shape = spec.model_dump(exclude={"groups", "inner", "intermediate_size"})
    shape |= {"feed_forward": spec.intermediate_size, **changes}
    groups = spec.model_copy(update={"layers": shape["layers"]}).layer_groups()
    return EncoderConfig.uniform(
        vocabulary=vocabulary, attention_dropout=shape["dropout"], layer_groups=groups, **shape
    )  # fmt: skip


def test_it_counts_as_published() -> None:
    """ALBERT-base v2 with pooler; the other sizes of the paper by their hidden widths."""
    assert encoder().count_parameters() == 11_683_584
    sizes = {
        (24, 1024, 16, 4096): 17_683_968, (24, 2048, 16, 8192): 58_724_864, (12, 4096, 64, 16384): 222_595_584
    }  # fmt: skip
    for (layers, hidden, heads, wide), published in sizes.items():
        made = encoder(layers=layers, hidden=hidden, heads=heads, feed_forward=wide)
        assert made.count_parameters() == published


def test_the_recipe_says_what_the_paper_says() -> None:
    stage = load_recipe("albert").stages[1]
    assert (stage.masking.whole_word, stage.masking.ngrams, stage.sentence_pairs) == (True, 3, "sop")
    assert (stage.training.optimizer, stage.training.learning_rate, stage.training.batch_rows) == (
        "lamb",
        1.76e-3,
        4096,
    )


def test_a_folder_of_it_loads_as_albert_with_equal_logits(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    small = encoder(80, layers=4, hidden=16, heads=2, feed_forward=24, embedding=8, max_positions=32)
    model = Model(small, {"mlm": HeadConfig("masked_lm"), "pair": HeadConfig("sentence_pair")}).initialize(1).eval()
    folder = save_model(tmp_path / "albert", model, tokenizer_files={})
    assert inspect(folder).stock_class == "AlbertForPreTraining"
    theirs = transformers.AutoModelForPreTraining.from_pretrained(folder).eval()
    ids = torch.arange(10)[None] + 5
    with torch.no_grad():
        stock = theirs(input_ids=ids)
        ours = model.forward_padded(ids, torch.ones_like(ids), None, Needs(mlm="all", pair_logits=True))
    assert ours.vocabulary is not None
    torch.testing.assert_close(ours.vocabulary.logits()[0], stock.prediction_logits[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.pair_logits, stock.sop_logits, rtol=1e-5, atol=1e-5)
    alone = transformers.AlbertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = alone(input_ids=ids).last_hidden_state[0]
    torch.testing.assert_close(model.forward_padded(ids).last_hidden[0], expected, rtol=1e-5, atol=1e-5)
