"""Sizes that must match the published ones, and what a config refuses."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from encoder_helpers import UNIFORM, VARIATIONS, heads
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.modules.model import Model
from compress.errors import ExitCode, UserError


def bert(hidden: int, layers: int, heads: int, feed_forward: int | None = None, **other: Any) -> EncoderConfig:
    sizes: dict[str, Any] = {"vocabulary": 30522, "feed_forward": feed_forward or 4 * hidden, **other}
    return EncoderConfig.uniform(hidden=hidden, layers=layers, heads=heads, **sizes)


def albert(hidden: int, layers: int, heads: int, **other: Any) -> EncoderConfig:
    groups = (0,) * layers
    return bert(hidden, layers, heads, vocabulary=30000, embedding=128, layer_groups=groups, **other)


PUBLISHED = [
    ("BERT-base", bert(768, 12, 12), 109_482_240),
    ("BERT-base without pooler", bert(768, 12, 12, pooler=False), 108_891_648),
    ("BERT-base cased", bert(768, 12, 12, vocabulary=28996), 108_310_272),
    ("BERT-large", bert(1024, 24, 16), 335_141_888),
    ("DistilBERT-base", bert(768, 6, 12, segments=0, pooler=False), 66_362_880),
    ("TinyBERT4", bert(312, 4, 12, 1200), 14_350_248),
    ("MiniLM 6x384", bert(384, 6, 12), 22_713_216),
    ("MiniLM 12x384", bert(384, 12, 12), 33_360_000),
    ("bert tiny", bert(128, 2, 2), 4_385_920),
    ("bert mini", bert(256, 4, 4), 11_170_560),
    ("bert small", bert(512, 4, 8), 28_763_648),
    ("bert medium", bert(512, 8, 8), 41_373_184),
    ("ALBERT-base", albert(768, 12, 12), 11_683_584),
    ("ALBERT-base without pooler", albert(768, 12, 12, pooler=False), 11_092_992),
    ("ALBERT-large", albert(1024, 24, 16), 17_683_968),
    ("ALBERT-xlarge", albert(2048, 24, 16), 58_724_864),
    ("ALBERT-xxlarge", albert(4096, 12, 64), 222_595_584),
]


@pytest.mark.parametrize(("name", "config", "count"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_published_sizes(name: str, config: EncoderConfig, count: int) -> None:
    assert config.count_parameters() == count
    with torch.device("meta"):
        assert sum(p.numel() for p in Model(config).parameters()) == count


def test_published_parts() -> None:
    config = bert(768, 12, 12)
    assert config.layers[0].count_parameters(768) == 7_087_872
    assert bert(1024, 24, 16).layers[0].count_parameters(1024) == 12_596_224
    assert config.count_embeddings() + 2 * 768 == 23_837_184
    mlm, pair, task = HeadConfig("masked_lm"), HeadConfig("sentence_pair"), HeadConfig("classification")
    assert mlm.count_parameters(config) == 622_650
    whole = config.count_parameters()
    assert whole + mlm.count_parameters(config) + pair.count_parameters(config) == 110_106_428
    assert whole + task.count_parameters(config) == 109_483_778
    distilbert = bert(768, 6, 12, segments=0, pooler=False)
    assert distilbert.count_parameters() + mlm.count_parameters(distilbert) == 66_985_530


@pytest.mark.parametrize("name", VARIATIONS)
def test_counted_is_instantiated(name: str) -> None:
    config = VARIATIONS[name]
    built = Model(config, heads(config))
    counted = config.count_parameters() + sum(head.count_parameters(config) for head in heads(config).values())
    assert sum(p.numel() for p in built.parameters()) == counted
    tables = {name: p for name, p in built.named_parameters() if name in built.embedding_parameter_names()}
    assert sum(p.numel() for p in tables.values()) == config.count_embeddings()


@given(
    hidden=st.integers(1, 9),
    shapes=st.lists(st.builds(LayerShape, *[st.integers(1, 5)] * 3), min_size=1, max_size=4),
    embedding=st.none() | st.integers(1, 9),
    segments=st.integers(0, 2),
    offset=st.integers(0, 2),
    norm=st.sampled_from(["post", "pre"]),
    pooler=st.booleans(),
    bias=st.booleans(),
    gated=st.booleans(),
    first_norm=st.booleans(),
    rotary=st.booleans(),
)
@settings(max_examples=scaled(60), deadline=None)
def test_any_config_counts_itself_and_survives_json(
    hidden: int,
    shapes: list[LayerShape],
    embedding: int | None,
    segments: int,
    offset: int,
    norm: Any,
    pooler: bool,
    bias: bool,
    gated: bool,
    first_norm: bool,
    rotary: bool,
) -> None:
    rotary = rotary and all(shape.head_width % 2 == 0 for shape in shapes)
    config = EncoderConfig(
        7,
        hidden,
        tuple(shapes),
        embedding=embedding,
        segments=segments,
        position_offset=offset,
        norm=norm,
        pooler=pooler,
        bias=bias,
        gated=gated,
        first_norm=first_norm or norm == "post",
        positions="rotary" if rotary else "learned",
        rotary_bases=(10.0,) * len(shapes) if rotary else None,
    )
    with torch.device("meta"):
        assert sum(p.numel() for p in Model(config).parameters()) == config.count_parameters()
    assert EncoderConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_equal_encoders_have_equal_configs() -> None:
    assert dataclasses.replace(UNIFORM, embedding=16, layer_groups=(0, 1, 2)) == UNIFORM
    wider = dataclasses.replace(UNIFORM, hidden=32)
    assert wider.width == 32


def test_head_survives_json() -> None:
    head = HeadConfig("classification", labels=5, style="distilbert", dropout=0.2)
    assert HeadConfig.from_dict(json.loads(json.dumps(head.to_dict()))) == head


def refused(message: str, build: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        build()
    assert str(caught.value) == message
    return caught.value


def test_hidden_must_be_divisible_by_heads() -> None:
    refused(
        "encoder.hidden: hidden 100 is not divisible by heads 12; use hidden 96 or 108, or another number of heads",
        lambda: bert(100, 2, 12),
    )
    refused(
        "encoder.hidden: hidden 3 is not divisible by heads 4; use hidden 4, or another number of heads",
        lambda: bert(3, 2, 4),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocabulary": 0}, "encoder.vocabulary: vocabulary is 0: it must be at least 1"),
        ({"hidden": -4}, "encoder.hidden: hidden is -4: it must be at least 1"),
        ({"hidden": 16.0}, "encoder.hidden: hidden must be an integer, not 16.0"),
        ({"max_positions": True}, "encoder.max_positions: max_positions must be an integer, not True"),
        ({"max_positions": 10**9, "positions": "sinusoidal"}, "encoder.max_positions: max_positions is 1000000000: "
         "it must be 1..1048576"),
        ({"position_offset": 10**9}, "encoder.position_offset: position_offset is 1000000000: it must be 0..50"),
        ({"embedding": 0}, "encoder.embedding: embedding is 0: it must be at least 1"),
        ({"segments": -1}, "encoder.segments: segments is -1: it must be at least 0"),
        ({"pad_id": 50}, "encoder.pad_id: pad_id 50 is outside the vocabulary: allowed: 0..49"),
        ({"layers": ()}, "encoder.layers: an encoder needs at least one layer"),
        ({"layers": (LayerShape(0, 4, 8),)}, "encoder.layers.0.heads: heads is 0: it must be at least 1"),
        ({"dropout": 1.0}, "encoder.dropout: dropout is 1.0: it must be at least 0 and below 1"),
        ({"attention_dropout": float("nan")}, "encoder.attention_dropout: attention_dropout is nan: "
         "it must be at least 0 and below 1"),
        ({"norm_eps": 0}, "encoder.norm_eps: norm_eps is 0: it must be above 0 and below 1"),
        ({"pooler": 1}, "encoder.pooler: pooler must be true or false, not 1"),
        ({"activation": "gelo"}, "encoder.activation: unknown activation 'gelo': known: gelu, gelu_new, relu, silu; "
         "did you mean 'gelu'?"),
        ({"norm": 7}, "encoder.norm: unknown norm 7: known: post, pre, none"),
        ({"positions": "learnt"}, "encoder.positions: unknown positions 'learnt': known: learned, sinusoidal, "
         "sinusoidal_start, rotary, none; did you mean 'learned'?"),
        ({"layer_groups": (0, 1)}, "encoder.layer_groups: 2 entries for 3 layers"),
        ({"layer_groups": (0, 2, 1)}, "encoder.layer_groups: entry 1 is 2: groups are numbered 0, 1, 2.. as they "
         "appear; use 1"),
        ({"layers": (LayerShape(4, 4, 8), LayerShape(4, 4, 9)), "layer_groups": (0, 0)}, "encoder.layer_groups: "
         "layers 0 and 1 are in one group but have different shapes: LayerShape(heads=4, head_width=4, feed_forward=8) "
         "and LayerShape(heads=4, head_width=4, feed_forward=9)"),
    ],
)  # fmt: skip
def test_illegal_values(change: dict[str, Any], message: str) -> None:
    refused(message, lambda: dataclasses.replace(UNIFORM, **change))


def test_illegal_heads() -> None:
    refused(
        "head.labels: a regression head has one output: found 2; use 1",
        lambda: HeadConfig("classification", labels=2, problem="regression"),
    )
    refused(
        "head.kind: unknown kind 'classifier': known: classification, token_classification, question_answering, "
        "embedding, masked_lm, sentence_pair, replaced_token; did you mean 'classification'?",
        lambda: HeadConfig.from_dict({"kind": "classifier"}),
    )
    refused("head.labels: a sentence-pair head has two outputs: found 3", lambda: HeadConfig("sentence_pair", labels=3))
    without = dataclasses.replace(UNIFORM, pooler=False)
    refused(
        "heads.task: the classification head needs the pooler, and this encoder has none; use pooler: true, or style: "
        "distilbert",
        lambda: Model(without, {"task": HeadConfig("classification")}),
    )
    refused(
        "heads.classifier: a classification head must be named 'task'",
        lambda: Model(UNIFORM, {"classifier": HeadConfig("classification")}),
    )


def test_foreign_dictionaries() -> None:
    good = UNIFORM.to_dict()
    refused(
        "encoder.hiden: unknown key 'hiden'; did you mean 'hidden'?",
        lambda: EncoderConfig.from_dict({**good, "hiden": 3}),
    )
    refused("encoder: missing key 'layers'", lambda: EncoderConfig.from_dict({"vocabulary": 5, "hidden": 4}))
    refused(
        "encoder.layers: layers must be a list of layer shapes", lambda: EncoderConfig.from_dict({**good, "layers": 3})
    )
    refused(
        "encoder.layers.0: missing key 'feed_forward'",
        lambda: EncoderConfig.from_dict({**good, "layers": [{"heads": 1, "head_width": 2}]}),
    )
    refused(
        "encoder.layer_groups: layer_groups must be a list of integers",
        lambda: EncoderConfig.from_dict({**good, "layer_groups": "012"}),
    )


def test_absurd_sizes_are_refused_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(
        "encoder: the encoder is too large: 1,024,014,174,208 parameters: at most 12,000,000,000 are allowed; check "
        "vocabulary, hidden and layers",
        lambda: bert(1024, 1, 16, vocabulary=1_000_000_000),
    )
    assert error.code == ExitCode.INPUT
    refused("encoder.layers: layers is 100000: it must be 1..512", lambda: bert(16, 100_000, 1))
    with monkeypatch.context() as patch:
        patch.setattr(
            "compress.encoder.modules.model.psutil.virtual_memory", lambda: type("Memory", (), {"total": 10_000})
        )
        with pytest.raises(
            UserError, match=r"not enough memory for a model of [\d,]+ parameters: it needs 0\.0 GB, this machine has"
        ) as e:
            Model(UNIFORM)
        assert e.value.code == ExitCode.RESOURCES
