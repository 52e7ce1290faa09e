"""Families × heads: each class of each family computes the same here as in transformers, and back there."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import family_cases as cases
import pytest
import torch
from example_counts import thorough_but
from family_cases import CASES, FIRST_CLASSES, GRID, compare, stock_load
from stock_classes import config_class

from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.relative import Disentangled
from compress.encoder.modules.model import Model
from compress.encoder.modules.relative import number_buckets, number_distances
from compress.errors import UserError
from compress.modelfolder.families import albert, mpnet
from compress.modelfolder.family import NATIVE, load_families
from compress.modelfolder.fields import Fields
from compress.modelfolder.folder import inspect, load_model, save_model
from compress.modelfolder.stock import Stock


def test_every_family_and_every_class_that_we_read_is_compared() -> None:
    stock = {kind: family for kind, family in load_families().items() if isinstance(family, Stock)}
    assert {(kind, name) for kind, family in stock.items() for name in family.architectures} == set(GRID)
    assert load_families().keys() - stock.keys() == {NATIVE, "model2vec"}  # transformers has no class of the second


@pytest.mark.parametrize(("family", "name"), thorough_but(FIRST_CLASSES, GRID))
def test_a_class_computes_the_same_here_and_back_there(family: str, name: str, hf: ModuleType, tmp_path: Path) -> None:
    heads = CASES[family].heads_of(name)
    reference = cases.stock(hf, family, name, tmp_path / "stock")
    loaded = load_model(tmp_path / "stock")
    assert loaded.family == family
    assert set(loaded.heads) == heads
    compare(family, loaded.model, reference, heads)
    again = save_model(tmp_path / "again", loaded.model, tokenizer_files={}, meta=loaded.meta)
    info = inspect(again)
    assert (info.family, info.stock_class) == (family, name)
    assert info.parameters == sum(p.numel() for p in reference.parameters())
    returned = stock_load(hf, name, again)
    for (key, before), after in zip(reference.state_dict().items(), returned.state_dict().values(), strict=True):
        assert torch.equal(before, after), key
    compare(family, loaded.model, returned, heads)
    reloaded = load_model(again)
    assert reloaded.config == loaded.config
    assert reloaded.heads == loaded.heads


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "name", "changes"),
    [
        ("roberta", "RobertaForMaskedLM", {"hidden_act": "relu", "layer_norm_eps": 1e-5}),
        ("roberta", "RobertaForSequenceClassification", {"hidden_act": "gelu_new", "num_labels": 5}),
        ("roberta", "RobertaModel", {"pad_token_id": 0, "max_position_embeddings": 25}),
        ("roberta", "RobertaForTokenClassification", {"classifier_dropout": 0.3, "num_labels": 7}),
        ("albert", "AlbertForMaskedLM", {"num_hidden_groups": 1, "inner_group_num": 1}),
        ("albert", "AlbertForPreTraining", {"num_hidden_layers": 5, "num_hidden_groups": 3, "inner_group_num": 1}),
        ("albert", "AlbertForSequenceClassification", {"num_hidden_groups": 4, "inner_group_num": 1}),
        ("albert", "AlbertModel", {"num_hidden_groups": 1, "inner_group_num": 2, "hidden_act": "relu"}),
        ("modernbert", "ModernBertForMaskedLM", {"hidden_activation": "gelu_new", "classifier_activation": "relu"}),
        ("modernbert", "ModernBertForSequenceClassification", {"classifier_pooling": "mean", "num_labels": 3}),
        ("modernbert", "ModernBertForTokenClassification", {"layer_types": ["sliding_attention"] * 4, "num_labels": 5}),
        ("modernbert", "ModernBertModel", {"layer_types": ["full_attention"] * 4, "rope_parameters": None}),
        ("modernbert", "ModernBertModel", {"num_hidden_layers": 5, "global_attn_every_n_layers": 2}),
        ("deberta-v2", "DebertaV2Model", {"position_buckets": -1, "max_relative_positions": 9}),
        ("deberta-v2", "DebertaV2Model", {"pos_att_type": ["c2p"], "norm_rel_ebd": "none", "hidden_act": "relu"}),
        ("deberta-v2", "DebertaV2Model", {"pos_att_type": "p2c", "max_relative_positions": -1}),
        ("deberta-v2", "DebertaV2ForTokenClassification", {"position_biased_input": True, "num_labels": 7}),
        ("deberta-v2", "DebertaV2ForMaskedLM", {"legacy": True, "type_vocab_size": 2}),
        ("deberta-v2", "DebertaV2ForSequenceClassification", {"cls_dropout": 0.3, "num_labels": 5}),
        ("mpnet", "MPNetForMaskedLM", {"hidden_act": "relu", "layer_norm_eps": 1e-5}),
        ("mpnet", "MPNetForSequenceClassification", {"num_labels": 5, "hidden_dropout_prob": 0.3}),
        ("longformer", "LongformerForMaskedLM", {"attention_window": 6, "hidden_act": "relu"}),
        ("longformer", "LongformerForSequenceClassification", {"attention_window": [64, 4, 8], "num_labels": 5}),
        ("longformer", "LongformerModel", {"layer_norm_eps": 1e-5}),
        ("nomic_bert", "NomicBertForMaskedLM", {"hidden_act": "gelu", "layer_norm_eps": 1e-5}),
        ("nomic_bert", "NomicBertForSequenceClassification", {"head_dim": 6, "num_labels": 3}),
        ("nomic_bert", "NomicBertForTokenClassification", {"classifier_dropout": 0.3, "num_labels": 7}),
        ("nomic_bert", "NomicBertModel", {"hidden_size": 30, "head_dim": 8, "rope_parameters": None}),
        ("electra", "ElectraForMaskedLM", {"embedding_size": 32, "hidden_act": "silu"}),
        ("electra", "ElectraForPreTraining", {"hidden_act": "relu"}),
        ("electra", "ElectraForSequenceClassification", {"hidden_act": "relu", "num_labels": 1}),
    ],
)
def test_config_variants(family: str, name: str, changes: dict[str, Any], hf: ModuleType, tmp_path: Path) -> None:
    heads = CASES[family].heads_of(name)
    if "layer_types" in changes:
        cases.require_layers_of_one_kind(hf)
    reference = cases.stock(hf, family, name, tmp_path / "stock", **changes)
    loaded = load_model(tmp_path / "stock")
    compare(family, loaded.model, reference, heads)
    again = save_model(tmp_path / "again", loaded.model, tokenizer_files={}, meta=loaded.meta)
    assert inspect(again).stock_class == name
    compare(family, loaded.model, stock_load(hf, name, again), heads)
    assert load_model(again).config == loaded.config


@pytest.mark.parametrize(("span", "most"), [(256, 512), (8, 20), (50, None)])
def test_debertas_buckets_of_distances(span: int, most: int | None, hf: ModuleType) -> None:
    from transformers.models.deberta_v2 import modeling_deberta_v2 as theirs

    length = torch.empty(600, 1)
    wanted = theirs.build_relative_position(length, length, -1 if most is None else span, most or span)[0]
    steps = torch.arange(600)
    found = number_distances(steps[:, None] - steps, Disentangled(span, most))
    assert torch.equal(found, (wanted + span).clamp(0, 2 * span - 1))


def test_mpnets_buckets_of_distances(hf: ModuleType) -> None:
    distance = torch.arange(-600, 601)
    theirs = hf.MPNetModel(hf.MPNetConfig(num_hidden_layers=0)).encoder.relative_position_bucket(distance)
    assert torch.equal(number_buckets(distance, mpnet.BIAS), theirs)


@pytest.mark.parametrize("family", CASES)
def test_the_size_that_a_family_is_published_with_is_counted_exactly(family: str, hf: ModuleType) -> None:
    config = config_class(hf, CASES[family].classes)(**CASES[family].published)
    with torch.device("meta"):
        reference = getattr(hf, CASES[family].classes + "Model")(config)
    known_as = load_families()[family]
    shapes = {known_as.canonical(name): tuple(tensor.shape) for name, tensor in reference.state_dict().items()}
    found = known_as.describe(Fields(config.to_dict(), "config.json"), shapes)
    assert found.encoder.count_parameters() == sum(p.numel() for p in reference.parameters())


def test_albert_base_has_as_many_parameters_as_published() -> None:
    shape = {"vocabulary": 30_000, "hidden": 768, "layers": 12, "heads": 12, "feed_forward": 3072}
    config = EncoderConfig.uniform(**shape, embedding=128, layer_groups=(0,) * 12, activation="gelu_new")
    assert config.count_parameters() == 11_683_584


@pytest.mark.parametrize(
    ("layers", "groups", "inner", "wired"),
    [(4, 1, 1, (0, 0, 0, 0)), (4, 2, 1, (0, 0, 1, 1)), (2, 1, 2, (0, 1, 0, 1)), (5, 3, 1, (0, 0, 1, 1, 2))],
)
def test_groups_and_inner_groups_follow_from_the_wiring(layers: int, groups: int, inner: int, wired: tuple) -> None:
    assert albert.layer_groups(layers, groups, inner) == wired
    config = EncoderConfig.uniform(
        vocabulary=9, hidden=8, layers=len(wired), heads=1, feed_forward=8, embedding=4, layer_groups=wired
    )
    found = albert.layout(config)
    assert found is not None
    assert albert.layer_groups(*found) == wired


def test_shared_layers_are_stored_once(hf: ModuleType, tmp_path: Path) -> None:
    cases.stock(hf, "albert", "AlbertModel", tmp_path / "stock", num_hidden_groups=1, inner_group_num=1)
    loaded = load_model(tmp_path / "stock")
    assert (loaded.config.depth, len(loaded.model.encoder.layers)) == (4, 1)
    folder = save_model(tmp_path / "again", loaded.model, tokenizer_files={}, meta=loaded.meta)
    assert inspect(folder).disk_mb == pytest.approx(inspect(tmp_path / "stock").disk_mb, rel=0.05)


@pytest.mark.parametrize(
    ("family", "changes", "parts"),
    [
        ("roberta", {"max_position_embeddings": 2}, ["max_position_embeddings is 2", "positions start at row 2"]),
        ("albert", {"num_hidden_groups": 9}, ["num_hidden_groups 9 is above num_hidden_layers 4"]),
        ("albert", {"embedding_size": 32}, ["embedding_size 32 equal to hidden_size is not supported"]),
        ("modernbert", {"norm_bias": True}, ["norm_bias True is not supported", "no bias"]),
        ("modernbert", {"embedding_dropout": 0.1}, ["embedding_dropout 0.1, mlp_dropout 0 are not supported"]),
        ("modernbert", {"layer_types": ["full_attention"]}, ["layer_types is ['full_attention']", "4 times"]),
        ("modernbert", {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, ["rope_type 'yarn' is not sup"]),
        ("modernbert", {"rope_parameters": [1]}, ["rope_parameters is [1]", "an object with full_attention"]),
        ("modernbert", {"decoder_bias": False, "architectures": ["ModernBertForMaskedLM"]}, ["decoder_bias False"]),
        (
            "modernbert",
            {"classifier_pooling": "max", "architectures": ["ModernBertForSequenceClassification"]},
            ["classifier_pooling is 'max'", "allowed: cls, mean"],
        ),
        (
            "deberta-v2",
            {"conv_kernel_size": 3},
            ["conv_kernel_size 3 is not supported", "a convolution after the first"],
        ),
        ("deberta-v2", {"share_att_key": False}, ["share_att_key false is not supported"]),
        ("deberta-v2", {"relative_attention": False}, ["relative_attention false is not supported in a DeBERTa-v2"]),
        ("deberta-v2", {"pos_att_type": []}, ["pos_att_type is []", "c2p, p2c or both"]),
        ("deberta-v2", {"pos_att_type": ["p2p"]}, ["pos_att_type is ['p2p']", "allowed: c2p, p2c"]),
        ("deberta-v2", {"embedding_size": 16}, ["embedding_size 16 is not supported"]),
        ("mpnet", {"relative_attention_num_buckets": 64}, ["relative_attention_num_buckets 64 is not supported", "32"]),
        ("mpnet", {"pad_token_id": 0}, ["pad_token_id 0 is not supported in an MPNet", "padding id 1"]),
        ("mpnet", {"max_position_embeddings": 2}, ["max_position_embeddings is 2", "positions start at row 2"]),
        ("longformer", {"attention_window": 5}, ["attention_window is 5", "an even number, or 3 of them"]),
        ("longformer", {"attention_window": [4, 4]}, ["attention_window is [4, 4]", "an even number, or 3 of them"]),
        ("longformer", {"architectures": ["LongformerForQuestionAnswering"]}, ["is not supported: its global tokens"]),
        ("nomic_bert", {"rope_parameters": {"rope_type": "dynamic"}}, ["rope_type 'dynamic' is not supported"]),
        ("nomic_bert", {"rope_parameters": [1]}, ["rope_parameters is [1]", "allowed: an object"]),
        ("nomic_bert", {"head_dim": 5}, ["a head width of 5 is odd", "rotary positions rotate pairs"]),
        ("nomic_bert", {"hidden_size": 30, "head_dim": None}, ["hidden_size 30 is not divisible by num_attention_hea"]),
        ("nomic_bert", {"architectures": ["NomicBertForQuestionAnswering"]}, ["NomicBertForQuestionAnswering is not"]),
        ("electra", {"embedding_size": 0}, ["embedding_size is 0"]),
        ("electra", {"architectures": ["ElectraForMultipleChoice"]}, ["class ElectraForMultipleChoice is not support"]),
    ],
)
def test_bad_config(family: str, changes: dict[str, Any], parts: list[str], hf: ModuleType, tmp_path: Path) -> None:
    cases.stock(hf, family, CASES[family].names()[0], tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(UserError) as error:
        load_model(tmp_path)
    assert str(path) in str(error.value)
    assert all(part in str(error.value) for part in parts), error.value


def test_a_model_without_a_family_of_its_own_goes_to_the_one_that_computes_it() -> None:
    shape = {"vocabulary": 9, "hidden": 8, "layers": 2, "heads": 1, "feed_forward": 8}
    from compress.modelfolder import family

    narrow = EncoderConfig.uniform(**shape, embedding=4, pooler=False)
    assert family.choose(narrow, {}, "bert")[0].model_type == "albert"
    assert family.choose(narrow, {}, "electra")[0].model_type == "electra"
    offset = EncoderConfig.uniform(**shape, position_offset=2, pad_id=1)
    assert family.choose(offset, {}, "xlm-roberta")[0].model_type == "xlm-roberta"
    assert isinstance(Model(offset, {}), Model)
