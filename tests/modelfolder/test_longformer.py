"""Longformer: windows with projections of their own for the first token, by every way that computes or changes them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

import family_cases as cases
import pytest
import torch
from torch import Tensor

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.sharing import Sharing
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import KeptUnits, prune_units
from compress.encoder.reshape.narrow import check_narrowable
from compress.encoder.reshape.students import take_layers
from compress.errors import UserError
from compress.modelfolder.folder import inspect, load_model, save_model

NAME = "LongformerForSequenceClassification"


@pytest.fixture
def folder(hf: ModuleType, tmp_path: Path) -> Path:
    cases.stock(hf, "longformer", NAME, tmp_path / "stock")
    return tmp_path / "stock"


def logits(model: Model) -> tuple[Tensor, Tensor]:
    """In the packed and in the padded layout."""
    inputs, needs = cases.padded_inputs(model.config.pad_id), Needs(logits=True)
    packed = model(cases.packed(inputs), needs).logits
    padded = model.forward_padded(inputs["input_ids"], inputs["attention_mask"], None, needs).logits
    assert packed is not None
    assert padded is not None
    return packed, padded


def test_the_first_token_sees_by_projections_of_its_own_and_they_are_trained_alike(folder: Path) -> None:
    model = load_model(folder).model
    own: Any = model.encoder.layers[1].attention.globals
    gradients = []
    for found in logits(model):
        model.zero_grad()
        found.square().sum().backward()  # pyright: ignore[reportUnknownMemberType]
        gradients.append([part.weight.grad.clone() for part in (own.query, own.key, own.value)])
    for one, other in zip(*gradients, strict=True):
        assert one.abs().max() > 1e-4
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("kind", "tokens"), [("classification", 1), ("token_classification", 0)])
def test_a_new_head_brings_its_classes_global_tokens(kind: str, tokens: int, hf: ModuleType, tmp_path: Path) -> None:
    cases.stock(hf, "longformer", "LongformerForMaskedLM", tmp_path / "stock")
    info = inspect(tmp_path / "stock")
    assert info.config.global_tokens == 0
    head = info.new_head(HeadConfig(kind, labels=3))  # pyright: ignore[reportArgumentType]
    loaded = load_model(tmp_path / "stock", keep=(), new_heads={"task": head})
    assert loaded.config.global_tokens == loaded.model.config.global_tokens == tokens


def test_packed_products_compute_the_same(folder: Path) -> None:
    model = load_model(folder).model
    batch = cases.packed(cases.padded_inputs(1))
    with torch.no_grad():
        found = prepare(model)(batch, Needs(logits=True)).logits
        torch.testing.assert_close(found, logits(model)[0], atol=1e-5, rtol=0)


def test_layers_and_heads_are_cut_with_their_global_projections(folder: Path, hf: ModuleType, tmp_path: Path) -> None:
    loaded = load_model(folder)
    student = save_model(tmp_path / "student", take_layers(loaded.model, [0, 2]), tokenizer_files={}, meta=loaded.meta)
    assert (inspect(student).stock_class, inspect(student).config.windows) == (NAME, (2, 2))
    kept = dataclasses.replace(KeptUnits.everything(loaded.config), heads=((0, 1, 3), (1,), (0, 2)))
    cut = prune_units(loaded.model, kept).eval()
    gone = [{0, 1, 2, 3} - set(heads) for heads in kept.heads]
    with torch.no_grad():
        for layer, heads in zip(loaded.model.encoder.layers, gone, strict=True):
            for head in heads:  # what the output matrix reads of a head that is gone
                layer.attention.output.weight[:, head * 8 : head * 8 + 8] = 0  # pyright: ignore
        for one, other in zip(logits(cut), logits(loaded.model), strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    uneven = save_model(tmp_path / "uneven", cut, tokenizer_files={}, meta=loaded.meta)
    assert (inspect(uneven).family, inspect(uneven).stock_class) == ("longformer", None)
    again = load_model(uneven)
    assert again.config == cut.config
    with torch.no_grad():
        assert torch.equal(logits(again.model)[0], logits(cut)[0])


def test_what_cannot_be_done_is_rejected_by_name(folder: Path) -> None:
    model = load_model(folder).model
    with pytest.raises(UserError, match="projections of their own, as in Longformer: making it narrower is not supp"):
        check_narrowable(model.config)
    with pytest.raises(UserError, match="attention maps of this model are not available: its global tokens"):
        model(cases.packed(cases.padded_inputs(1)), Needs(attentions=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"windows": (2, None)}, "global projections need a window in every layer"),
        ({"windows": None}, "global projections need a window in every layer"),
        ({"global_tokens": 2}, "global projections for 2 tokens: at most 1"),
        ({"sharing": Sharing((0, 0), (0, 1))}, "cannot share some of their matrices"),
        ({"positions": "rotary", "rotary_bases": (10.0, 10.0)}, "rotary positions cannot be used together"),
        ({"global_projections": 1}, "global_projections must be true or false, not 1"),
    ],
)
def test_a_config_that_cannot_be_is_rejected(changes: dict[str, object], message: str) -> None:
    shape = {"vocabulary": 9, "hidden": 8, "layers": 2, "heads": 1, "feed_forward": 8, "windows": (2, 2)}
    with pytest.raises(UserError, match=message):
        EncoderConfig.uniform(**{**shape, "global_projections": True, **changes})  # pyright: ignore[reportArgumentType]


def test_extended_windows_share_their_projections_and_stay_in_our_format() -> None:
    from compress.modelfolder import family

    shape = {"vocabulary": 9, "hidden": 8, "layers": 2, "heads": 1, "feed_forward": 8, "position_offset": 2}
    config = EncoderConfig.uniform(**shape, pad_id=1, segments=1, windows=(2, 2), global_tokens=1, pooler=False)
    _, objection = family.choose(config, {}, "longformer")
    assert objection == "its global tokens share the projections of the others"
