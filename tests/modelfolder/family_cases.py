"""Every family with every class of it that we read, tiny and random, and the comparison of both sides' numbers."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from stock_classes import config_class
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.modules.answers import needs_of
from compress.encoder.modules.model import Model

VOCABULARY, POSITIONS = 61, 24
TOLERANCE = {"atol": 1e-5, "rtol": 0}

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.3,  # large, so that a wrong wiring cannot hide in small numbers
}
TASKS = {name: {"task"} for name in ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")}
BARE = {"Model": set(), "ForMaskedLM": {"mlm"}}


@dataclass(frozen=True)
class Case:
    """classes: how its class names begin.  values: of its config.  heads: class → names of its heads.

    segments: whether its classes take token_type_ids of two kinds.  published: of the config that its checkpoints have,
    where that is not its class's own.
    """

    classes: str
    values: Mapping[str, Any]
    heads: Mapping[str, set[str]]
    segments: bool = True
    published: Mapping[str, Any] = field(default_factory=dict)

    def names(self) -> list[str]:
        return [self.classes + name for name in self.heads]

    def heads_of(self, name: str) -> set[str]:
        return self.heads[name.removeprefix(self.classes)]


ROBERTA = {**SHAPE, "max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1, "pad_token_id": 1}
DEBERTA = {
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}
CASES: Mapping[str, Case] = {
    "albert": Case(
        "Albert",
        {**SHAPE, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2, "embedding_size": 12},
        {**BARE, "ForPreTraining": {"mlm", "pair"}, **TASKS},
    ),
    "bert": Case(
        "Bert",
        SHAPE,
        {**BARE, "ForPreTraining": {"mlm", "pair"}, "ForNextSentencePrediction": {"pair"}, **TASKS},
    ),
    "camembert": Case("Camembert", ROBERTA, {**BARE, **TASKS}, segments=False),
    "deberta-v2": Case(
        "DebertaV2",
        {**SHAPE, **DEBERTA, "position_buckets": 8, "max_relative_positions": 20, "legacy": False}
        | {"initializer_range": 0.2},  # with 0.3 its logits reach 6, where fp32 keeps five digits
        {**BARE, **TASKS},
        published={**DEBERTA, "position_buckets": 256, "vocab_size": 128_100, "hidden_size": 768},
    ),
    "distilbert": Case(
        "DistilBert",
        {
            "vocab_size": VOCABULARY,
            "dim": 32,
            "n_layers": 3,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": POSITIONS,
            "initializer_range": 0.3,
        },
        {**BARE, **TASKS},
        segments=False,
    ),
    "electra": Case("Electra", {**SHAPE, "embedding_size": 12}, {**BARE, "ForPreTraining": {"rtd"}, **TASKS}),
    "ernie": Case(
        "Ernie",
        {**SHAPE, "type_vocab_size": 4},
        {**BARE, "ForPreTraining": {"mlm", "pair"}, "ForNextSentencePrediction": {"pair"}, **TASKS},
    ),
    "gte": Case(
        "Gte",
        {**SHAPE, "initializer_range": 0.2, "type_vocab_size": 2}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 20.0}},
        {**BARE, **{name: {"task"} for name in TASKS if name != "ForQuestionAnswering"}},
    ),
    "longformer": Case(
        "Longformer",
        {**ROBERTA, "attention_window": [4, 8, 4]},
        {**BARE, **{name: {"task"} for name in TASKS if name != "ForQuestionAnswering"}},
        segments=False,
    ),
    "modernbert": Case(
        "ModernBert",
        {
            **{key: value for key, value in SHAPE.items() if key != "num_hidden_layers"},
            "num_hidden_layers": 4,
            "local_attention": 6,
            "pad_token_id": 0,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 160.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
            },
        },
        {**BARE, **TASKS},
        segments=False,
    ),
    "mpnet": Case(
        "MPNet",
        {**SHAPE, "max_position_embeddings": POSITIONS + 2, "pad_token_id": 1},
        {**BARE, **TASKS},
        segments=False,
    ),
    "nomic_bert": Case(
        "NomicBert",
        {**SHAPE, "initializer_range": 0.2, "rope_parameters": {"rope_type": "default", "rope_theta": 20.0}},
        {**BARE, **{name: {"task"} for name in TASKS if name != "ForQuestionAnswering"}},
    ),
    "roberta": Case("Roberta", ROBERTA, {**BARE, **TASKS}, segments=False),
    "xlm-roberta": Case("XLMRoberta", ROBERTA, {**BARE, **TASKS}, segments=False),
}
GRID = [(family, name) for family, case in CASES.items() for name in case.names()]
FIRST_CLASSES = [(family, next(iter(case.names()))) for family, case in CASES.items()]


def stock(hf: ModuleType, family: str, name: str, folder: Path, **changes: Any) -> Any:
    """The transformers model, random in every number, saved to `folder`."""
    case = CASES[family]
    values = deepcopy({**case.values, **changes})  # some versions write into the mappings they are given
    config = config_class(hf, case.classes)(**values)
    torch.manual_seed(5)
    model = getattr(hf, name)(config).eval()
    with torch.no_grad():  # biases and norms start at 0 and 1, where a swap would not show
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return model


def require_layers_of_one_kind(hf: ModuleType) -> None:
    """Skip the test where transformers rejects the config of a ModernBERT without layers of both kinds of attention.

    Releases from 5.4 on do (5.16 still, 5.23 no longer): their own changes to `rope_parameters` fail their type check.
    """
    from huggingface_hub.errors import StrictDataclassError

    try:
        hf.ModernBertConfig(num_hidden_layers=1, layer_types=["full_attention"])
    except StrictDataclassError:
        pytest.skip(f"transformers {hf.__version__} rejects a ModernBERT whose layers all attend alike")


def stock_load(hf: ModuleType, name: str, folder: Path) -> Any:
    """The folder in a transformers class, with every tensor accounted for."""
    model, report = getattr(hf, name).from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    return model.eval()


def padded_inputs(pad_id: int) -> dict[str, Tensor]:
    """Four sequences of different lengths, right-padded, some with a second segment; the padding id stands nowhere
    else, since RoBERTa counts its positions by it."""
    lengths = torch.tensor([24, 1, 7, 16])
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(2, VOCABULARY, (4, 24), generator=generator)
    mask = (torch.arange(24) < lengths[:, None]).long()
    segments = (torch.arange(24) >= lengths[:, None] // 2).long() * mask
    return {"input_ids": ids * mask + pad_id * (1 - mask), "attention_mask": mask, "token_type_ids": segments}


def theirs(model: Any, inputs: Mapping[str, Tensor], heads: set[str]) -> dict[str, Tensor]:
    """What the transformers model computes, by our names."""
    with torch.no_grad():
        output = model(**inputs)
    if not heads:
        found = {"last": output.last_hidden_state}
        return found | ({"pooled": output.pooler_output} if output.get("pooler_output") is not None else {})
    if heads == {"mlm", "pair"}:
        pair = output.sop_logits if "sop_logits" in output else output.seq_relationship_logits
        return {"mlm": output.prediction_logits, "pair": pair}
    if "start_logits" in output:
        return {"task": torch.stack([output.start_logits, output.end_logits], -1)}
    return {next(iter(heads)): output.logits}


def ours(output: EncoderOutput) -> dict[str, Tensor | None]:
    vocabulary = None if output.vocabulary is None else output.vocabulary.logits()
    found = {"last": output.last_hidden, "pooled": output.pooled, "mlm": vocabulary, "rtd": output.replaced}
    return found | {"pair": output.pair_logits, "task": output.logits}


def packed(inputs: Mapping[str, Tensor]) -> Batch:
    mask = inputs["attention_mask"].bool()
    lengths = mask.sum(1)
    return Batch(
        input_ids=inputs["input_ids"][mask],
        segment_ids=inputs["token_type_ids"][mask],
        position_ids=torch.arange(mask.shape[1]).expand_as(mask)[mask],
        cu_seqlens=torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]),
        max_length=int(lengths.max()),
        row_ids=torch.arange(len(lengths)),
    )


def compare(
    family: str, model: Model, reference: Any, heads: set[str], inputs: Mapping[str, Tensor] | None = None
) -> None:
    """Both layouts against transformers, on real tokens.  inputs: None for `padded_inputs`."""
    inputs = padded_inputs(model.config.pad_id) if inputs is None else inputs
    mask = inputs["attention_mask"].bool()
    expected = theirs(
        reference, inputs if CASES[family].segments else {k: inputs[k] for k in ("input_ids", "attention_mask")}, heads
    )
    needs = needs_of(heads) | Needs(pooled="pooled" in expected)
    with torch.no_grad():
        loose = ours(model(packed(inputs), needs))
        tight = ours(
            model.forward_padded(inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"], needs)
        )
    for name, wanted in expected.items():
        found, square = loose[name], tight[name]
        assert found is not None
        assert square is not None
        if wanted.shape[:2] == mask.shape:
            wanted, square = wanted[mask], square[mask]
        assert wanted.abs().max() > 0.05
        torch.testing.assert_close(found, wanted, **TOLERANCE)
        torch.testing.assert_close(square, wanted, **TOLERANCE)
