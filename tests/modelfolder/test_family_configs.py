"""A family's config.json both ways, without weights: what it describes, what it writes for that, and odd values."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.sharing import Sharing
from compress.errors import UserError
from compress.modelfolder.families import (
    compress_encoder,
    deberta_v2,
    distilbert,
    gte,
    longformer,
    modernbert,
    nomic_bert,
)
from compress.modelfolder.family import Description, Family, Shapes
from compress.modelfolder.fields import Fields
from compress.modelfolder.private import values_of

BERT: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 40, "pad_token_id": 0,
}  # fmt: skip
BASES = {"full_attention": {"rope_theta": 1000.0}, "sliding_attention": {"rope_theta": 10.0}}
FAMILIES: dict[str, tuple[Family, dict[str, Any]]] = {
    "deberta-v2": (
        deberta_v2.Family(),
        BERT | {
            "type_vocab_size": 0, "relative_attention": True, "share_att_key": True, "pos_att_type": "p2c|c2p",
            "position_buckets": 8, "max_relative_positions": -1, "norm_rel_ebd": "layer_norm", "cls_dropout": 0.3,
            "position_biased_input": False, "pooler_hidden_act": "gelu", "pooler_hidden_size": 16, "pooler_dropout": 0,
            "conv_kernel_size": 0, "embedding_size": 16, "attention_head_size": 4, "legacy": True,
        },
    ),
    "distilbert": (
        distilbert.Family(),
        {
            "vocab_size": 50, "dim": 16, "n_layers": 3, "n_heads": 4, "hidden_dim": 24, "activation": "relu",
            "max_position_embeddings": 40, "dropout": 0.3, "attention_dropout": 0.1, "seq_classif_dropout": 0.25,
            "qa_dropout": 0.15, "sinusoidal_pos_embds": False,
        },
    ),
    "gte": (gte.Family(), BERT | {"type_vocab_size": 0, "rope_parameters": {"rope_theta": 99.0}}),
    "longformer": (
        longformer.Family(),
        BERT | {"pad_token_id": 1, "max_position_embeddings": 42, "type_vocab_size": 1, "attention_window": [8, 6, 8]},
    ),
    "modernbert": (
        modernbert.Family(),
        BERT | {
            "local_attention": 8, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "rope_parameters": BASES, "hidden_activation": "gelu", "classifier_activation": "relu",
            "classifier_pooling": "mean", "classifier_dropout": 0.25, "norm_eps": 1e-6, "embedding_dropout": 0.1,
            "mlp_dropout": 0.1, "global_attn_every_n_layers": 3, "norm_bias": False, "decoder_bias": True,
        },
    ),
    "nomic_bert": (
        nomic_bert.Family(),
        BERT | {"type_vocab_size": 2, "head_dim": 6, "hidden_act": "silu", "rope_parameters": {"rope_theta": 99.0}},
    ),
}  # fmt: skip


def described(name: str, changes: dict[str, Any] | None = None, shapes: Shapes | None = None) -> Description:
    made, values = FAMILIES[name]
    return made.describe(Fields(values | (changes or {}), "config.json"), shapes or {})


def classes(name: str) -> list[str]:
    return list(FAMILIES[name][0].architectures)


def ids_of(name: str) -> list[tuple[str, str]]:
    return [(name, architecture) for architecture in classes(name)]


@pytest.mark.parametrize(("name", "architecture"), [pair for name in FAMILIES for pair in ids_of(name)])
def test_what_is_written_is_read_as_the_same(name: str, architecture: str) -> None:
    family = FAMILIES[name][0]
    found = described(name, {"architectures": [architecture]})
    assert family.objection(found.encoder, found.heads) is None
    written = family.config_values(found.encoder, found.heads)
    assert written["architectures"] == [architecture]
    again = family.describe(Fields(written, "again"), {})
    assert again.encoder == found.encoder
    assert again.heads == found.heads
    assert again.names == found.names
    assert len(set(found.stored)) == len(found.stored), "two of our tensors would be one of theirs"


def understood(family: Family, config: dict[str, Any]) -> Description | None:
    """None where it is refused, in an error that names the file."""
    try:
        return family.describe(Fields(config, "config.json"), {})
    except UserError as error:
        if "config.json" in error.line() or (error.where or "").startswith(("encoder", "head")):  # `open` adds the file
            return None
        raise


ODD = [None, True, 0, -1, 1, 10**30, 0.5, float("nan"), float("inf"), "", "x", [], [1], [None], {}, {"a": [1]}]


@pytest.mark.parametrize("name", FAMILIES)
def test_whatever_one_key_says_it_is_understood_or_refused_by_its_name(name: str) -> None:
    family, values = FAMILIES[name]
    architecture = next(a for a in classes(name) if a.endswith("ForSequenceClassification"))
    for key in [*values, "architectures", "id2label", "num_labels", "problem_type"]:
        for odd in ODD:
            config = values | {"architectures": [architecture]} | {key: odd}
            found = understood(family, config)
            if found is None:
                continue
            if family.objection(found.encoder, found.heads) is None:
                written = family.config_values(found.encoder, found.heads)
                assert family.describe(Fields(written, "again"), {}).encoder == found.encoder, (key, odd)


# --- what is each family's own --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "bases"),
    [
        ({}, (160_000.0, 10_000.0, 10_000.0)),
        ({"global_rope_theta": 500.0}, (500.0, 10_000.0, 10_000.0)),
        ({"local_rope_theta": 500.0}, (160_000.0, 500.0, 500.0)),
        ({"global_rope_theta": 500.0, "local_rope_theta": None}, (500.0,) * 3),
        ({"local_rope_theta": None}, (160_000.0,) * 3),
        ({"rope_parameters": {}, "global_rope_theta": 500.0}, (160_000.0, 10_000.0, 10_000.0)),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 7}}}, (160_000.0, 7.0, 7.0)),
        ({"rope_parameters": {"full_attention": None}}, (160_000.0, 10_000.0, 10_000.0)),
    ],
    ids=str,
)
def test_modernberts_rotary_bases_in_both_spellings(changes: dict[str, Any], bases: tuple[float, ...]) -> None:
    """An absent local base is the default; a null one is the global one, as transformers 4 had it."""
    assert described("modernbert", {"rope_parameters": None} | changes).encoder.rotary_bases == bases


def test_modernberts_layers_by_number_and_by_name() -> None:
    every = {"layer_types": None, "rope_parameters": None}
    assert described("modernbert", every).encoder.windows == (None, 4, 4)
    assert described("modernbert", every | {"global_attn_every_n_layers": 2}).encoder.windows == (None, 4, None)
    assert described("modernbert", every | {"global_attn_every_n_layers": 1}).encoder.windows in (None, (None,) * 3)


def encoder(name: str, **changes: Any) -> EncoderConfig:
    return dataclasses.replace(described(name).encoder, **changes)


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("modernbert", {"rotary_bases": (1000.0, 10.0, 20.0)}, "its layers of one type have different rotary bases"),
        ("modernbert", {"windows": (None, 4, 5)}, "its attention windows have different widths"),
        ("modernbert", {"gated": False}, "its layers are not ModernBERT's"),
        ("modernbert", {"segments": 2}, "it has segment embeddings or a pooler"),
        ("gte", {"rotary_bases": (1.5, 1.5, 2.5)}, "its layers have different rotary bases"),
        ("gte", {"gate_bias": True}, "its layers are not GTE's"),
        ("gte", {"positions": "learned", "rotary_bases": None}, "its positions are not rotary"),
        ("nomic_bert", {"rotary_bases": (1.5, 1.5, 2.5)}, "its layers have different rotary bases"),
        ("nomic_bert", {"linear_bias": True}, "its layers are not NomicBERT's"),
        ("deberta-v2", {"disentangled": None, "positions": "learned"}, "it has no disentangled attention"),
        ("deberta-v2", {"pooler": True}, "it has a pooler"),
        ("distilbert", {"norm_eps": 1e-6}, "its norm epsilon is 1e-06, where DistilBERT's is 1e-12"),
        ("distilbert", {"segments": 1}, "it has segment embeddings"),
        ("longformer", {"global_tokens": 1}, "it has 1 global tokens"),
        ("longformer", {"windows": None, "global_projections": False}, "some of its layers have full attention"),
    ],
)
def test_what_a_family_has_no_words_for(name: str, changes: dict[str, Any], why: str) -> None:
    reason = FAMILIES[name][0].objection(encoder(name, **changes), {})
    assert reason is not None
    assert reason.startswith(why)


def test_debertas_terms_are_read_in_every_spelling() -> None:
    terms = {}
    for said in ("c2p|p2c", "P2C|C2P", ["p2c", "c2p"], [" c2p ", "p2c"]):
        table = described("deberta-v2", {"pos_att_type": said}).encoder.disentangled
        assert table is not None
        terms[str(said)] = table.content_to_position, table.position_to_content
    assert set(terms.values()) == {(True, True)}
    for bad in ("c2p|", "c2p,p2c", "", ["c2p", None], {"c2p": True}, 3):
        with pytest.raises(UserError, match=r"config\.json: pos_att_type is "):
            described("deberta-v2", {"pos_att_type": bad})


def test_debertas_masked_lm_head_is_that_of_the_stored_tensors() -> None:
    """The config's `legacy` says nothing of a file that holds the other one."""
    named = {"architectures": ["DebertaV2ForMaskedLM"]}
    old, new = {"cls.predictions.bias": (50,)}, {"lm_predictions.lm_head.bias": (50,)}
    assert described("deberta-v2", named | {"legacy": False}, old).heads["mlm"].style == "bert"
    assert described("deberta-v2", named | {"legacy": True}, new).heads["mlm"].style == "deberta"
    assert described("deberta-v2", named | {"legacy": False}).heads["mlm"].style == "deberta"
    ignored = described("deberta-v2", named, old | {"mask_predictions.dense.weight": (1,)}).ignored
    assert "mask_predictions.dense.weight" in ignored


def test_a_table_of_positions_that_deberta_uses_is_not_passed_over() -> None:
    table = {"deberta.embeddings.position_embeddings.weight": (40, 16)}
    assert set(table) <= described("deberta-v2", {"position_biased_input": False}, table).ignored
    assert not set(table) & described("deberta-v2", {"position_biased_input": True}, table).ignored


@pytest.mark.parametrize(
    ("kind", "class_name", "dropout"), [("classification", "Sequence", 0.25), ("question_answering", "Question", 0.15)]
)
def test_distilberts_heads_have_dropouts_of_their_own(kind: str, class_name: str, dropout: float) -> None:
    (architecture,) = [name for name in classes("distilbert") if class_name in name]
    head = described("distilbert", {"architectures": [architecture]}).heads["task"]
    assert (head.kind, head.dropout) == (kind, dropout)
    absent = {"architectures": [architecture], "seq_classif_dropout": None, "qa_dropout": None}
    assert described("distilbert", absent).heads["task"].dropout == {0.25: 0.2, 0.15: 0.1}[dropout]


@pytest.mark.parametrize("said", [None, 0, 7, "8", [8, 8], [8, 8, 8.0], [8, 8, True], 10**9, [[8]] * 3])
def test_longformers_windows_are_even_numbers_for_every_layer(said: Any) -> None:
    assert described("longformer").encoder.windows == (4, 3, 4)
    assert described("longformer", {"attention_window": 8}).encoder.windows == (4, 4, 4)
    with pytest.raises(UserError, match=r"attention_window is .*: allowed: an even number, or 3 of them"):
        described("longformer", {"attention_window": said})


def test_longformers_first_token_is_global_where_it_is_classified() -> None:
    for ending, tokens in (("ForSequenceClassification", 1), ("ForTokenClassification", 0), ("ForMaskedLM", 0)):
        assert described("longformer", {"architectures": [f"Longformer{ending}"]}).encoder.global_tokens == tokens


def nomic_by_authors(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": 50, "n_embd": 16, "n_layer": 3, "n_head": 4, "n_inner": 24, "n_positions": 40,
        "type_vocab_size": 2, "activation_function": "swiglu", "rotary_emb_fraction": 1.0, "rotary_emb_base": 99,
    } | changes  # fmt: skip


def test_the_authors_keys_of_nomicbert_describe_the_same_model() -> None:
    family = FAMILIES["nomic_bert"][0]
    stock = described("nomic_bert", {"head_dim": None, "layer_norm_eps": 1e-12}).encoder
    assert family.describe(Fields(nomic_by_authors(), "c"), {}).encoder == stock
    with pytest.raises(UserError, match="n_head 5"):
        family.describe(Fields(nomic_by_authors(n_head=5), "c"), {})
    for changes, positions in (
        ({"max_trained_positions": 8}, 40),
        ({"rotary_scaling_factor": 2, "max_trained_positions": 8}, 8),
        ({"rotary_scaling_factor": 2, "max_trained_positions": 999}, 40),
        ({"rotary_scaling_factor": 2}, 40),
    ):
        assert family.describe(Fields(nomic_by_authors(**changes), "c"), {}).encoder.max_positions == positions


# --- our own description --------------------------------------------------------------------------------------------

SHARED = EncoderConfig.uniform(vocabulary=9, hidden=8, layers=3, heads=2, feed_forward=8)
HEADS = {"task": HeadConfig("classification", labels=3)}


def own(config: EncoderConfig = SHARED, **changes: Any) -> Description:
    values = values_of(config, HEADS, fits=False) | changes
    return compress_encoder.Family().describe(Fields(values, "own.json"), {})


def test_our_own_description_is_read_back() -> None:
    found = own()
    assert (found.encoder, found.heads, found.copies) == (SHARED, HEADS, {})
    assert found.names["encoder.layers.2.output_norm.bias"] == "encoder.layers.2.output_norm.bias"


@pytest.mark.parametrize(
    "changes",
    [{"encoder": None}, {"encoder": []}, {"heads": None}, {"heads": {"task": 3}}, {"heads": "x"}, {"encoder": {}},
     {"heads": {"task": {"kind": "embedding", "labels": 2, "denses": [{"wide": 2}]}}},
     {"heads": {"task": {"kind": "embedding", "labels": 2, "denses": [[2]]}}},
     {"compress_version": 2}, {"compress_version": None}],
    ids=str,
)  # fmt: skip
def test_an_own_description_that_is_none(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        own(**changes)


@pytest.mark.parametrize(
    ("sharing", "copies"),
    [
        (Sharing((0, 0, 1), (0, 1, 2)), {("1", "0")}),
        (Sharing((0, 1, 2), (0, 0, 0)), {("1", "0"), ("2", "0")}),
        (Sharing((0, 1, 2), (0, 1, 2)), set()),
    ],
)
def test_a_matrix_that_layers_share_has_one_place(sharing: Sharing, copies: set[tuple[str, str]]) -> None:
    found = compress_encoder.list_tied_copies(dataclasses.replace(SHARED, sharing=sharing))
    assert {(ours.split(".")[2], kept.split(".")[2]) for ours, kept in found.items()} == copies
    assert all(ours.split(".")[3:] == kept.split(".")[3:] for ours, kept in found.items())
    assert not any(name.endswith("bias") or "norm" in name for name in found), "those are each layer's own"


def test_with_shared_norms_and_biases_these_have_one_place_too() -> None:
    sharing = Sharing((0, 0, 1), (0, 1, 2), own_vectors=False)
    found = compress_encoder.list_tied_copies(dataclasses.replace(SHARED, sharing=sharing))
    assert found["encoder.layers.1.attention.query.bias"] == "encoder.layers.0.attention.query.bias"
    assert found["encoder.layers.1.attention_norm.bias"] == "encoder.layers.0.attention_norm.bias"
    bare = dataclasses.replace(SHARED, sharing=sharing, bias=False)
    assert not any(name.endswith("bias") for name in compress_encoder.list_tied_copies(bare))
    assert not set(found) & set(own(dataclasses.replace(SHARED, sharing=sharing)).names), "and are stored once"


@pytest.mark.parametrize(
    ("changes", "style"),
    [
        ({}, "bert"),
        ({"segments": 0, "pooler": False}, "distilbert"),
        ({"position_offset": 2, "pad_id": 1}, "roberta"),
        ({"positions": "rotary", "rotary_bases": (9.0,) * 3, "segments": 0, "pooler": False}, "modernbert"),
    ],
)
def test_a_new_head_has_the_style_of_the_encoders_wiring(changes: dict[str, Any], style: str) -> None:
    fields = Fields(values_of(dataclasses.replace(SHARED, **changes), {}, fits=False), "own.json")
    head = HeadConfig("classification", labels=3, style="electra")
    assert compress_encoder.Family().adapt(head, fields).style == style
