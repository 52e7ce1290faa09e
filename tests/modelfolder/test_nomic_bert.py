"""NomicBERT folders as the authors' own code wrote them: GPT-2's keys, a body called `bert`, a masked-LM head without
biases. transformers' class, given the same numbers, is the reference."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import family_cases as cases
import pytest
import torch
from family_cases import compare, stock_load
from safetensors.torch import load_file, save_file

from compress.encoder.config.encoder import HeadConfig
from compress.errors import UserError
from compress.modelfolder.folder import inspect, load_model, save_model

KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
    "layer_norm_eps": "layer_norm_epsilon",
    "max_position_embeddings": "n_positions",
}
# What nomic-ai/nomic-bert-2048 says beside its sizes.
SAID = {
    "activation_function": "swiglu",
    "causal": False,
    "embd_pdrop": 0.0,
    "fused_bias_fc": True,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "pad_vocab_size_multiple": 64,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 20,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_weights": True,
    "use_flash_attn": True,
    "use_rms_norm": False,
}
GONE = ("head_dim", "hidden_act", "rope_parameters", "tie_word_embeddings", "transformers_version")


def rewrite_as_authors(folder: Path, architecture: str | None = None, **changes: Any) -> None:
    """The folder that transformers saved, as the authors' code saves the same model."""
    path = folder / "config.json"
    values = json.loads(path.read_text())
    values = {KEYS.get(key, key): value for key, value in values.items() if key not in GONE} | SAID | changes
    if architecture is not None:
        values["architectures"] = [architecture]
    path.write_text(json.dumps(values))
    tensors = load_file(folder / "model.safetensors")
    unbiased = ("cls.predictions.bias", "cls.predictions.transform.dense.bias")
    tensors = {name.replace("nomic_bert.", "bert."): tensor for name, tensor in tensors.items() if name not in unbiased}
    if "bert.embeddings.word_embeddings.weight" in tensors and architecture is not None:
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("name", ["NomicBertModel", "NomicBertForSequenceClassification"])
def test_the_authors_folders_compute_the_same(name: str, hf: ModuleType, tmp_path: Path) -> None:
    reference = cases.stock(hf, "nomic_bert", name, tmp_path / "stock")
    heads = cases.CASES["nomic_bert"].heads_of(name)
    plain = load_model(tmp_path / "stock")
    rewrite_as_authors(tmp_path / "stock")
    loaded = load_model(tmp_path / "stock")
    assert loaded.config == plain.config
    compare("nomic_bert", loaded.model, reference, heads)
    again = save_model(tmp_path / "again", loaded.model, tokenizer_files={}, meta=loaded.meta)
    compare("nomic_bert", loaded.model, stock_load(hf, name, again), heads)


def test_the_authors_masked_lm_head_has_no_biases(hf: ModuleType, tmp_path: Path) -> None:
    """They are zero then: a checkpoint that has them is read with them."""
    reference = cases.stock(hf, "nomic_bert", "NomicBertForMaskedLM", tmp_path / "stock")
    with torch.no_grad():
        reference.cls.predictions.bias.zero_()
        reference.cls.predictions.transform.dense.bias.zero_()
    rewrite_as_authors(tmp_path / "stock", "NomicBertForPreTraining")
    loaded = load_model(tmp_path / "stock")
    assert not loaded.model.heads["mlm"].bias.any()  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    compare("nomic_bert", loaded.model, reference, {"mlm"})
    again = save_model(tmp_path / "again", loaded.model, tokenizer_files={}, meta=loaded.meta)
    assert inspect(again).stock_class == "NomicBertForMaskedLM"
    compare("nomic_bert", loaded.model, stock_load(hf, "NomicBertForMaskedLM", again), {"mlm"})

    tensors = load_file(tmp_path / "stock" / "model.safetensors")
    tensors["cls.predictions.decoder.bias"] = torch.full((cases.VOCABULARY,), 0.5)
    save_file(tensors, tmp_path / "stock" / "model.safetensors", {"format": "pt"})
    biased = load_model(tmp_path / "stock").model.heads["mlm"].bias
    assert torch.equal(biased, tensors["cls.predictions.decoder.bias"])  # pyright: ignore[reportArgumentType]


def test_with_scaled_positions_the_texts_of_training_are_the_longest(hf: ModuleType, tmp_path: Path) -> None:
    """Above max_trained_positions the authors' code turns all queries and keys by other angles."""
    cases.stock(hf, "nomic_bert", "NomicBertModel", tmp_path)
    rewrite_as_authors(tmp_path, rotary_scaling_factor=2, max_trained_positions=16)
    assert load_model(tmp_path).config.max_positions == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prenorm": True}, "prenorm True is not supported: only norms after each block"),
        ({"qkv_proj_bias": True}, "qkv_proj_bias True is not supported: NomicBERT's layers have no biases"),
        ({"moe_every_n_layers": 2}, "moe_every_n_layers 2 is not supported: layers of experts"),
        ({"rotary_emb_fraction": 0.5}, "rotary_emb_fraction is 0.5: allowed: 1.0"),
        ({"activation_function": "gelu"}, "activation_function is 'gelu': allowed: geglu, swiglu"),
        ({"n_head": 5}, "n_embd 32 is not divisible by n_head 5"),
        ({"n_layer": None}, "n_layer is missing"),
    ],
)
def test_what_the_encoder_lacks_is_rejected_by_the_files_own_key(
    changes: dict[str, Any], message: str, hf: ModuleType, tmp_path: Path
) -> None:
    cases.stock(hf, "nomic_bert", "NomicBertModel", tmp_path)
    rewrite_as_authors(tmp_path, **changes)
    with pytest.raises(UserError) as error:
        load_model(tmp_path)
    assert message in str(error.value)


def test_a_head_that_no_class_has_is_saved_in_our_format_and_the_card_says_why(hf: ModuleType, tmp_path: Path) -> None:
    cases.stock(hf, "nomic_bert", "NomicBertForMaskedLM", tmp_path / "stock")
    head = inspect(tmp_path / "stock").new_head(HeadConfig("question_answering"))
    loaded = load_model(tmp_path / "stock", keep=(), new_heads={"task": head})
    folder = save_model(tmp_path / "tuned", loaded.model, tokenizer_files={}, meta=loaded.meta)
    info = inspect(folder)
    assert (info.family, info.stock_class) == ("nomic_bert", None)
    assert "no NomicBert class has a question-answering head" in (folder / "README.md").read_text()
    assert load_model(folder).config == loaded.config
