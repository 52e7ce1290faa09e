"""Folders that transformers wrote compute the same here, and ours compute the same there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.config import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.model import Model
from compress.modelfolder.folder import FolderMeta, inspect, load_model, save_model

CLASSES = {
    "BertModel": set(),
    "BertForMaskedLM": {"mlm"},
    "BertForPreTraining": {"mlm", "pair"},
    "BertForNextSentencePrediction": {"pair"},
    "BertForSequenceClassification": {"task"},
    "BertForTokenClassification": {"task"},
    "BertForQuestionAnswering": {"task"},
    "DistilBertModel": set(),
    "DistilBertForMaskedLM": {"mlm"},
    "DistilBertForSequenceClassification": {"task"},
    "DistilBertForTokenClassification": {"task"},
    "DistilBertForQuestionAnswering": {"task"},
}
TOLERANCE = {"atol": 1e-5, "rtol": 0}


def needs_of(heads: set[str]) -> Needs:
    return Needs(mlm="all" if "mlm" in heads else None, pair_logits="pair" in heads, logits="task" in heads)


def theirs(model: Any, padded: Mapping[str, Tensor], heads: set[str]) -> dict[str, Tensor]:
    """What the transformers model computes, by our names."""
    inputs = {k: v for k, v in padded.items() if k != "token_type_ids" or "Distil" not in type(model).__name__}
    with torch.no_grad():
        output = model(**inputs)
    if not heads:
        found = {"last": output.last_hidden_state}
        return found | ({"pooled": output.pooler_output} if "pooler_output" in output else {})
    if heads == {"mlm", "pair"}:
        return {"mlm": output.prediction_logits, "pair": output.seq_relationship_logits}
    if "start_logits" in output:
        return {"task": torch.stack([output.start_logits, output.end_logits], -1)}
    return {next(iter(heads)): output.logits}


def ours(output: EncoderOutput) -> dict[str, Tensor]:
    vocabulary = None if output.vocabulary is None else output.vocabulary.logits()
    found = {"last": output.last_hidden, "pooled": output.pooled, "mlm": vocabulary}
    return found | {"pair": output.pair_logits, "task": output.logits}  # pyright: ignore[reportReturnType]


def packed(padded: Mapping[str, Tensor]) -> Batch:
    mask = padded["attention_mask"].bool()
    lengths = mask.sum(1)
    return Batch(
        input_ids=padded["input_ids"][mask],
        segment_ids=padded["token_type_ids"][mask],
        position_ids=torch.arange(mask.shape[1]).expand_as(mask)[mask],
        cu_seqlens=torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]),
        max_length=int(lengths.max()),
        row_ids=torch.arange(len(lengths)),
    )


def compare(model: Model, stock: Any, padded: Mapping[str, Tensor], heads: set[str]) -> None:
    """Both layouts against transformers, on real tokens."""
    mask = padded["attention_mask"].bool()
    expected = theirs(stock, padded, heads)
    needs = needs_of(heads) | Needs(pooled="pooled" in expected)
    with torch.no_grad():
        loose = ours(model(packed(padded), needs))
        tight = ours(
            model.forward_padded(padded["input_ids"], padded["attention_mask"], padded["token_type_ids"], needs)
        )
    for name, wanted in expected.items():
        if wanted.dim() == 3:
            wanted, tight[name] = wanted[mask], tight[name][mask]
        assert wanted.abs().max() > 0.05
        torch.testing.assert_close(loose[name], wanted, **TOLERANCE)
        torch.testing.assert_close(tight[name], wanted, **TOLERANCE)


def stock_load(hf: ModuleType, name: str, folder: Path) -> Any:
    """The folder in a transformers class, with every tensor accounted for."""
    model, report = getattr(hf, name).from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    return model.eval()


@pytest.mark.parametrize("name", CLASSES)
def test_stock_folder_computes_the_same_here_and_back_there(
    name: str, hf: ModuleType, stock: Callable[..., tuple[Any, Path]], padded: dict[str, Tensor], tmp_path: Path
) -> None:
    reference, folder = stock(name)
    loaded = load_model(folder)
    assert set(loaded.heads) == CLASSES[name]
    assert not loaded.model.training
    assert all(p.requires_grad for p in loaded.model.parameters())
    compare(loaded.model, reference, padded, CLASSES[name])

    again = save_model(tmp_path / "again", loaded.model, tokenizer_files={}, meta=loaded.meta)
    assert inspect(again).stock_class == name
    returned = stock_load(hf, name, again)
    for (key, before), after in zip(reference.state_dict().items(), returned.state_dict().values(), strict=True):
        assert torch.equal(before, after), key
    compare(loaded.model, returned, padded, CLASSES[name])


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
        ("BertModel", {"hidden_act": "relu", "num_attention_heads": 1}),
        ("DistilBertForMaskedLM", {"activation": "relu"}),
        ("DistilBertForSequenceClassification", {"sinusoidal_pos_embds": True, "num_labels": 3}),
    ],
)
def test_config_variants(
    name: str, changes: dict[str, Any], hf: ModuleType, stock: Callable[..., tuple[Any, Path]], padded, tmp_path: Path
) -> None:
    reference, folder = stock(name, **changes)
    loaded = load_model(folder)
    compare(loaded.model, reference, padded, CLASSES[name])
    again = save_model(tmp_path / "again", loaded.model, tokenizer_files={}, meta=loaded.meta)
    compare(loaded.model, stock_load(hf, name, again), padded, CLASSES[name])
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
def test_our_bert_computes_the_same_there(heads: list, name: str, hf: ModuleType, padded, tmp_path: Path) -> None:
    built = {h.name: h for h in (HeadConfig(kind) for kind in heads)}
    pooler = heads != ["masked_lm"]  # BertForMaskedLM has none, and reports one as unexpected
    model = Model(bert_config(pooler=pooler), built).initialize(4).eval()
    folder = save_model(tmp_path / "ours", model, tokenizer_files={}, meta=FolderMeta())
    assert inspect(folder).family == "bert"
    compare(model, stock_load(hf, name, folder), padded, set(built))


@pytest.mark.parametrize(
    ("heads", "name"),
    [
        ([], "DistilBertModel"),
        ([HeadConfig("masked_lm")], "DistilBertForMaskedLM"),
        ([HeadConfig("classification", labels=4, style="distilbert")], "DistilBertForSequenceClassification"),
    ],
)
def test_our_distilbert_computes_the_same_there(heads: list, name: str, hf, padded, tmp_path: Path) -> None:
    built = {h.name: h for h in heads}
    model = Model(bert_config(segments=0, pooler=False), built).initialize(4).eval()
    folder = save_model(tmp_path / "ours", model, tokenizer_files={})
    assert inspect(folder).family == "distilbert"
    compare(model, stock_load(hf, name, folder), padded, set(built))


def test_every_head_of_a_shared_file_is_found_by_its_own_class(hf: ModuleType, padded, tmp_path: Path) -> None:
    kinds = [HeadConfig("masked_lm"), HeadConfig("sentence_pair"), HeadConfig("classification", labels=3)]
    model = Model(bert_config(), {h.name: h for h in kinds}).initialize(4).eval()
    folder = save_model(tmp_path / "all", model, tokenizer_files={})
    assert inspect(folder).stock_class == "BertForSequenceClassification"
    for name in ("BertForSequenceClassification", "BertForPreTraining", "BertForMaskedLM"):
        heads = CLASSES[name]
        compare(model, getattr(hf, name).from_pretrained(folder).eval(), padded, heads)


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


def test_a_folder_in_our_own_format_still_gives_its_tokenizer(
    hf, toy_tokenizer_files, toy_vocabulary, tmp_path
) -> None:
    shapes = (LayerShape(2, 16, 40), LayerShape(1, 16, 8))
    model = Model(EncoderConfig(vocabulary=len(toy_vocabulary), hidden=32, layers=shapes), {})
    folder = save_model(tmp_path / "uneven", model, tokenizer_files=toy_tokenizer_files)
    assert inspect(folder).stock_class is None
    assert len(hf.AutoTokenizer.from_pretrained(folder)) == len(toy_vocabulary)
    with pytest.raises(ValueError, match="compress-encoder"):
        hf.AutoModel.from_pretrained(folder)


def test_minilm(minilm: Path, hf: ModuleType, tmp_path: Path) -> None:
    loaded = load_model(minilm)
    assert inspect(minilm).parameters == 22_713_216
    reference = hf.AutoModel.from_pretrained(minilm).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(minilm)
    texts = ["a gripping , if uneven , film", "no", "The quick brown fox jumps over the lazy dog. " * 6]
    inputs = dict(tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt"))
    compare(loaded.model, reference, inputs, set())
    folder = save_model(tmp_path / "copy", loaded.model, tokenizer_files=loaded.tokenizer_files, meta=loaded.meta)
    returned = stock_load(hf, "BertModel", folder)
    assert all(torch.equal(a, b) for a, b in zip(reference.parameters(), returned.parameters(), strict=True))
    compare(loaded.model, returned, inputs, set())
