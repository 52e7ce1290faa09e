"""Folders as they lie on the hub: old spellings, missing and spare tensors, keys that nobody reads, no model_type."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import family_cases as cases
import pytest
import torch
from family_cases import CASES, compare
from safetensors.torch import load_file, save_file
from torch import Tensor

from compress.encoder.config.encoder import HeadConfig
from compress.errors import UserError
from compress.modelfolder.folder import inspect, load_model, save_model
from compress.modelfolder.heads import TASK_CLASSES

STOCK = [family for family in CASES if family != "distilbert"]


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def config(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        values.pop(key, None)
        if value is not ...:
            values[key] = value
    (folder / "config.json").write_text(json.dumps(values))


@pytest.mark.parametrize("family", [f for f in CASES if f not in ("camembert", "xlm-roberta")])
def test_without_a_model_type_the_class_or_the_tensors_decide(family: str, hf: ModuleType, tmp_path: Path) -> None:
    name = CASES[family].classes + "ForMaskedLM"
    reference = cases.stock(hf, family, name, tmp_path)
    for architectures in ([name], ...):
        config(tmp_path, model_type=..., architectures=architectures)
        loaded = load_model(tmp_path)
        assert loaded.family == family
        assert f"config.json names no model_type: read as {family}" in loaded.notes
        compare(family, loaded.model, reference, {"mlm"})


def test_nothing_is_guessed_of_tensors_that_several_families_have(hf: ModuleType, tmp_path: Path) -> None:
    cases.stock(hf, "roberta", "RobertaModel", tmp_path)
    config(tmp_path, model_type=..., architectures=...)
    with pytest.raises(UserError, match="model_type is missing") as error:
        load_model(tmp_path)
    assert 'add it, for example "model_type": "bert"' in str(error.value)


@pytest.mark.parametrize("family", STOCK)
def test_buffers_copies_and_unread_keys_are_no_hindrance(family: str, hf: ModuleType, tmp_path: Path) -> None:
    """What older versions wrote beside the weights: position_ids, the tied matrix and its bias a second time."""
    name = CASES[family].classes + "ForMaskedLM"
    reference = cases.stock(hf, family, name, tmp_path)
    body = reference.base_model_prefix
    table = next(
        t for n, t in reference.state_dict().items() if n.endswith(("word_embeddings.weight", "tok_embeddings.weight"))
    )
    as_bert = {"cls.predictions.decoder.weight": table, "cls.predictions.decoder.bias": reference_bias(reference)}
    extra = {
        "albert": {"predictions.decoder.weight": table, "predictions.decoder.bias": reference_bias(reference)},
        "bert": as_bert,
        "deberta-v2": {"mask_predictions.dense.weight": table, "deberta.embeddings.position_embeddings.weight": table},
        "electra": {"generator_lm_head.weight": table},
        "modernbert": {"decoder.weight": table},
        "ernie": as_bert,
        "nomic_bert": as_bert,
    }.get(family, {"lm_head.decoder.weight": table, "lm_head.decoder.bias": reference_bias(reference)})

    def add(tensors: dict[str, Tensor]) -> None:
        if family != "modernbert":
            tensors[f"{body}.embeddings.position_ids"] = torch.arange(cases.POSITIONS)[None]
        tensors.update({name: tensor.detach().clone() for name, tensor in extra.items()})

    rewrite(tmp_path, add)
    config(tmp_path, directionality="bidi", pooler_fc_size=768, gradient_checkpointing=False, output_past=True)
    compare(family, load_model(tmp_path).model, reference, {"mlm"})


def reference_bias(reference: Any) -> Tensor:
    return reference.get_output_embeddings().bias


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "electra"])
def test_gamma_and_beta_of_tensorflow(family: str, hf: ModuleType, tmp_path: Path) -> None:
    reference = cases.stock(hf, family, CASES[family].classes + "ForMaskedLM", tmp_path)

    def rename(tensors: dict[str, Tensor]) -> None:
        for old in [name for name in tensors if ".LayerNorm." in name]:
            tensors[old.replace(".weight", ".gamma").replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(old)

    rewrite(tmp_path, rename)
    compare(family, load_model(tmp_path).model, reference, {"mlm"})


@pytest.mark.parametrize("family", CASES)
def test_a_bare_class_with_its_bodys_prefix_is_the_same_model(family: str, hf: ModuleType, tmp_path: Path) -> None:
    reference = cases.stock(hf, family, CASES[family].classes + "Model", tmp_path)
    body = getattr(hf, CASES[family].classes + "ForMaskedLM").base_model_prefix

    def prefix(tensors: dict[str, Tensor]) -> None:
        for old in list(tensors):
            tensors[f"{body}.{old}"] = tensors.pop(old)

    rewrite(tmp_path, prefix)
    compare(family, load_model(tmp_path).model, reference, set())


def without_pooler(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if name.startswith("pooler.")]:
        del tensors[name]


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_a_pooler_may_be_missing_or_spare(family: str, hf: ModuleType, tmp_path: Path) -> None:
    """The bare model of a masked-LM checkpoint has none; RoBERTa's on the hub has one that no head of it reads."""
    cases.stock(hf, family, CASES[family].classes + "Model", tmp_path)
    assert load_model(tmp_path).config.pooler
    head = inspect(tmp_path).new_head(HeadConfig("token_classification", labels=5))
    loaded = load_model(tmp_path, new_heads={"task": head})
    assert not loaded.config.pooler
    assert "the checkpoint's pooler was removed: no head uses it" in loaded.notes
    rewrite(tmp_path, without_pooler)
    assert not load_model(tmp_path).config.pooler
    head = inspect(tmp_path).new_head(HeadConfig("classification", labels=5))
    loaded = load_model(tmp_path, new_heads={"task": head})
    assert loaded.config.pooler == (family != "roberta")


NEW_HEADS = [
    (family, kind) for family, case in CASES.items() for name, kind in TASK_CLASSES.items() if name in case.heads
]


@pytest.mark.thorough
@pytest.mark.parametrize(("family", "kind"), NEW_HEADS)
def test_a_new_head_keeps_the_folder_a_stock_one(family: str, kind: Any, hf: ModuleType, tmp_path: Path) -> None:
    cases.stock(hf, family, CASES[family].classes + "ForMaskedLM", tmp_path / "stock")
    labels = 2 if kind == "question_answering" else 5
    head = inspect(tmp_path / "stock").new_head(HeadConfig(kind, labels=labels))
    loaded = load_model(tmp_path / "stock", keep=(), new_heads={"task": head})
    meta = loaded.meta.model_copy(update={"label_names": ()})
    folder = save_model(tmp_path / "tuned", loaded.model, tokenizer_files={}, meta=meta)
    info = inspect(folder)
    assert info.family == family
    assert info.stock_class is not None
    reference = cases.stock_load(hf, info.stock_class, folder)
    compare(family, loaded.model, reference, {"task"})
    assert info.heads["task"].kind == kind


def test_the_first_berts_config_has_another_name(hf: ModuleType, tmp_path: Path) -> None:
    cases.stock(hf, "bert", "BertModel", tmp_path)
    (tmp_path / "config.json").rename(tmp_path / "bert_config.json")
    with pytest.raises(
        UserError, match=r"no config\.json: not a model folder.*rename bert_config\.json to config\.json"
    ):
        load_model(tmp_path)


def test_a_pickle_is_refused_with_the_command_that_converts_it(hf: ModuleType, tmp_path: Path) -> None:
    cases.stock(hf, "xlm-roberta", "XLMRobertaForMaskedLM", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError) as error:
        load_model(tmp_path)
    line = str(error.value)
    assert "pickle files are not supported" in line
    assert f"compress convert {tmp_path} --output {tmp_path}-safetensors" in line
    assert "\n" not in line
