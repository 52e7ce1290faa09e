"""Shapes that no stock BERT folder has, against transformers: pre-norm, factorized embeddings, shared layers."""

from __future__ import annotations

import pytest
import torch
from encoder_helpers import batch, padded

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.modules.model import Model

transformers = pytest.importorskip("transformers")

EMBEDDINGS = {
    "embeddings.word.weight": "embeddings.word_embeddings.weight",
    "embeddings.position.weight": "embeddings.position_embeddings.weight",
    "embeddings.segment.weight": "embeddings.token_type_embeddings.weight",
    "embeddings.norm": "embeddings.LayerNorm",
    "pooler.dense": "pooler.dense",
}


def copied(ours: Model, theirs: torch.nn.Module, names: dict[str, str]) -> None:
    """Random weights into `theirs`, the same into `ours`; names: our prefix → theirs."""
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    state, foreign = {}, theirs.state_dict()
    for ours_, theirs_ in names.items():
        for ending in ("", ".weight", ".bias"):
            if theirs_ + ending in foreign:
                state[f"encoder.{ours_}{ending}"] = foreign[theirs_ + ending]
    ours.load_state_dict(state)


def layer_names(index: int, prefix: str, inner: dict[str, str]) -> dict[str, str]:
    return {f"layers.{index}.{ours}": f"{prefix}.{theirs}" for ours, theirs in inner.items()}


def check(ours: Model, theirs: torch.nn.Module) -> None:
    b = batch([9, 4, 4, 20], ours.config)
    b.input_ids.clamp_(min=2)  # transformers keeps the gradient from the padding row even where it is a real token
    ids, mask, segments = padded(b)
    ids[mask == 0] = ours.config.pad_id  # RoBERTa counts positions by it
    expected = theirs.eval()(ids, attention_mask=mask, token_type_ids=segments)
    got = ours.eval()(b, Needs(pooled=True))
    real = mask.bool()
    torch.testing.assert_close(got.last_hidden, expected.last_hidden_state[real], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.pooled, expected.pooler_output, rtol=1e-4, atol=1e-5)
    (got.last_hidden**2).sum().backward()
    (expected.last_hidden_state[real] ** 2).sum().backward()
    a, e = ours.encoder.embeddings.word.weight.grad, theirs.get_parameter("embeddings.word_embeddings.weight").grad
    assert a is not None
    assert e is not None
    torch.testing.assert_close(a, e, rtol=1e-3, atol=1e-3 * float(e.abs().max()))


def test_pre_norm_as_in_roberta_prelayernorm() -> None:
    foreign = transformers.RobertaPreLayerNormModel(
        transformers.RobertaPreLayerNormConfig(
            vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
            max_position_embeddings=42, type_vocab_size=2, layer_norm_eps=1e-5, pad_token_id=1,
        )
    )  # fmt: skip
    config = EncoderConfig.uniform(
        vocabulary=60, hidden=16, layers=2, heads=4, feed_forward=24, max_positions=40, position_offset=2, pad_id=1,
        norm="pre", norm_eps=1e-5,
    )  # fmt: skip
    inner = {
        **{f"attention.{n}": f"attention.self.{n}" for n in ("query", "key", "value")},
        "attention.output": "attention.output.dense",
        "attention_norm": "attention.LayerNorm",
        "feed_forward.up": "intermediate.dense",
        "feed_forward.down": "output.dense",
        "output_norm": "intermediate.LayerNorm",
    }
    names = {**EMBEDDINGS, "final_norm": "LayerNorm"}
    for i in range(2):
        names |= layer_names(i, f"encoder.layer.{i}", inner)
    ours = Model(config)
    copied(ours, foreign, names)
    check(ours, foreign)


def test_sharing_and_factorized_embeddings_as_in_albert() -> None:
    foreign = transformers.AlbertModel(
        transformers.AlbertConfig(
            vocab_size=60, embedding_size=8, hidden_size=16, num_hidden_layers=3, num_attention_heads=4,
            intermediate_size=24, max_position_embeddings=40, hidden_act="gelu_new", layer_norm_eps=1e-12,
        )
    )  # fmt: skip
    config = EncoderConfig.uniform(
        vocabulary=60, hidden=16, layers=3, heads=4, feed_forward=24, max_positions=40, embedding=8,
        layer_groups=(0, 0, 0), activation="gelu_new",
    )  # fmt: skip
    inner = {
        **{f"attention.{n}": f"attention.{n}" for n in ("query", "key", "value")},
        "attention.output": "attention.dense",
        "attention_norm": "attention.LayerNorm",
        "feed_forward.up": "ffn",
        "feed_forward.down": "ffn_output",
        "output_norm": "full_layer_layer_norm",
    }
    names = {**EMBEDDINGS, "embeddings.projection": "encoder.embedding_hidden_mapping_in", "pooler.dense": "pooler"}
    names |= layer_names(0, "encoder.albert_layer_groups.0.albert_layers.0", inner)
    ours = Model(config)
    copied(ours, foreign, names)
    check(ours, foreign)
