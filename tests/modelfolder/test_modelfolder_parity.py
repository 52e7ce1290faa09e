"""Folders that transformers wrote compute the same here, and ours compute the same there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from family_cases import CASES, TOLERANCE, compare, stock_load

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.modules.model import Model
from compress.modelfolder.folder import FolderMeta, inspect, load_model, save_model

CLASSES = {name: CASES[family].heads_of(name) for family in ("bert", "distilbert") for name in CASES[family].names()}


def family_of(name: str) -> str:
    return "bert" if name.startswith("Bert") else "distilbert"


@pytest.mark.parametrize("name", CLASSES)
def test_stock_folder_computes_the_same_here_and_back_there(
    name: str, hf: ModuleType, stock: Callable[..., tuple[Any, Path]], tmp_path: Path
) -> None:
    reference, folder = stock(name)
    loaded = load_model(folder)
    assert set(loaded.heads) == CLASSES[name]
    assert not loaded.model.training
    assert all(p.requires_grad for p in loaded.model.parameters())
    compare(family_of(name), loaded.model, reference, CLASSES[name])

    again = save_model(tmp_path / "again", loaded.model, tokenizer_files={}, meta=loaded.meta)
    assert inspect(again).stock_class == name
    returned = stock_load(hf, name, again)
    for (key, before), after in zip(reference.state_dict().items(), returned.state_dict().values(), strict=True):
        assert torch.equal(before, after), key
    compare(family_of(name), loaded.model, returned, CLASSES[name])


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("BertForSequenceClassification", {"num_labels": 5, "classifier_dropout": 0.3}),
        ("BertForSequenceClassification", {"num_labels": 1}),
        ("BertForSequenceClassification", {"num_labels": 1, "problem_type": "regression"}),
        ("BertForSequenceClassification", {"num_labels": 4, "problem_type": "multi_label_classification"}),
        ("BertForTokenClassification", {"num_labels": 9, "classifier_dropout": 0.3}),
        ("DistilBertForSequenceClassification", {"num_labels": 4, "problem_type": "multi_label_classification"}),
        ("DistilBertForTokenClassification", {"num_labels": 9}),
        ("BertForMaskedLM", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5}),
        ("BertForPreTraining", {"hidden_act": "silu", "type_vocab_size": 3}),
        ("BertModel", {"hidden_act": "relu", "num_attention_heads": 1, "initializer_range": 0.2}),
        ("DistilBertForMaskedLM", {"activation": "relu"}),
        ("DistilBertForSequenceClassification", {"sinusoidal_pos_embds": True, "num_labels": 3}),
    ],
)
def test_config_variants(
    name: str, changes: dict[str, Any], hf: ModuleType, stock: Callable[..., tuple[Any, Path]], tmp_path: Path
) -> None:
    reference, folder = stock(name, **changes)
    loaded = load_model(folder)
    compare(family_of(name), loaded.model, reference, CLASSES[name])
    again = save_model(tmp_path / "again", loaded.model, tokenizer_files={}, meta=loaded.meta)
    compare(family_of(name), loaded.model, stock_load(hf, name, again), CLASSES[name])
    reloaded = load_model(again)
    assert reloaded.config == loaded.config
    # DistilBERT's config always states the dropout of its classifier.
    assert {n: dataclasses.replace(h, dropout=None) for n, h in reloaded.heads.items()} == {
        n: dataclasses.replace(h, dropout=None) for n, h in loaded.heads.items()
    }


def bert_config(**changes: Any) -> EncoderConfig:
    values = {"vocabulary": 61, "hidden": 32, "layers": 2, "heads": 4, "feed_forward": 40, "max_positions": 24}
    return EncoderConfig.uniform(**{**values, "initializer_range": 0.3, **changes})


@pytest.mark.parametrize(
    ("heads", "name"),
    [
        ([], "BertModel"),
        (["masked_lm"], "BertForMaskedLM"),
        (["sentence_pair"], "BertForNextSentencePrediction"),
        (["masked_lm", "sentence_pair"], "BertForPreTraining"),
        (["classification"], "BertForSequenceClassification"),
    ],
)
def test_our_bert_computes_the_same_there(heads: list, name: str, hf: ModuleType, tmp_path: Path) -> None:
    built = {h.name: h for h in (HeadConfig(kind) for kind in heads)}
    pooler = heads != ["masked_lm"]  # BertForMaskedLM has none, and reports one as unexpected
    model = Model(bert_config(pooler=pooler), built).initialize(4).eval()
    folder = save_model(tmp_path / "ours", model, tokenizer_files={}, meta=FolderMeta())
    assert inspect(folder).family == "bert"
    compare(family_of(name), model, stock_load(hf, name, folder), set(built))


@pytest.mark.parametrize(
    ("heads", "name"),
    [
        ([], "DistilBertModel"),
        ([HeadConfig("masked_lm")], "DistilBertForMaskedLM"),
        ([HeadConfig("classification", labels=4, style="distilbert")], "DistilBertForSequenceClassification"),
    ],
)
def test_our_distilbert_computes_the_same_there(heads: list, name: str, hf, tmp_path: Path) -> None:
    built = {h.name: h for h in heads}
    model = Model(bert_config(segments=0, pooler=False), built).initialize(4).eval()
    folder = save_model(tmp_path / "ours", model, tokenizer_files={})
    assert inspect(folder).family == "distilbert"
    compare(family_of(name), model, stock_load(hf, name, folder), set(built))


def test_every_head_of_a_shared_file_is_found_by_its_own_class(hf: ModuleType, tmp_path: Path) -> None:
    kinds = [HeadConfig("masked_lm"), HeadConfig("sentence_pair"), HeadConfig("classification", labels=3)]
    model = Model(bert_config(), {h.name: h for h in kinds}).initialize(4).eval()
    folder = save_model(tmp_path / "all", model, tokenizer_files={})
    assert inspect(folder).stock_class == "BertForSequenceClassification"
    for name in ("BertForSequenceClassification", "BertForPreTraining", "BertForMaskedLM"):
        heads = CLASSES[name]
        compare("bert", model, getattr(hf, name).from_pretrained(folder).eval(), heads)


def test_auto_classes_load_our_folder(hf: ModuleType, tiny_model: Model, toy_tokenizer_files, tmp_path: Path) -> None:
    meta = FolderMeta(label_names=("bad", "mixed", "good"))
    folder = save_model(tmp_path / "ours", tiny_model, tokenizer_files=toy_tokenizer_files, meta=meta)
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    model = hf.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert model.config.id2label == {0: "bad", 1: "mixed", 2: "good"}
    assert model.config.label2id == {"bad": 0, "mixed": 1, "good": 2}
    assert type(hf.AutoModel.from_pretrained(folder)).__name__ == "BertModel"
    inputs = tokenizer(["the film was good", "but i said never"], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model(**inputs).logits
        found = tiny_model.forward_padded(
            inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"], Needs(logits=True)
        )
    assert found.logits is not None
    torch.testing.assert_close(found.logits, expected, **TOLERANCE)


def test_a_folder_that_no_stock_class_computes_gives_its_tokenizer_and_no_weights(
    hf, toy_tokenizer_files, toy_vocabulary, tmp_path
) -> None:
    shapes = (LayerShape(2, 16, 40), LayerShape(1, 16, 8))
    model = Model(EncoderConfig(vocabulary=len(toy_vocabulary), hidden=32, layers=shapes), {})
    folder = save_model(tmp_path / "uneven", model, tokenizer_files=toy_tokenizer_files)
    assert inspect(folder).stock_class is None
    assert len(hf.AutoTokenizer.from_pretrained(folder)) == len(toy_vocabulary)
    assert hf.AutoConfig.from_pretrained(folder).model_type == "bert"
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        hf.AutoModel.from_pretrained(folder)


def test_minilm(minilm: Path, hf: ModuleType, tmp_path: Path) -> None:
    loaded = load_model(minilm)
    assert inspect(minilm).parameters == 22_713_216
    reference = hf.AutoModel.from_pretrained(minilm).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(minilm)
    texts = ["a gripping , if uneven , film", "no", "The quick brown fox jumps over the lazy dog. " * 6]
    inputs = dict(tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt"))
    compare("bert", loaded.model, reference, set(), inputs)
    folder = save_model(tmp_path / "copy", loaded.model, tokenizer_files=loaded.tokenizer_files, meta=loaded.meta)
    returned = stock_load(hf, "BertModel", folder)
    assert all(torch.equal(a, b) for a, b in zip(reference.parameters(), returned.parameters(), strict=True))
    compare("bert", loaded.model, returned, set(), inputs)
