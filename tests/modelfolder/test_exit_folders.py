"""Folders of models with early exits: what is stored where, what reads them, and what rejects them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from early_models import WIRINGS, draw_batch, make_early_model, make_plain_model

from compress.contracts import Needs
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.cascade import depends_on_texts
from compress.modelfolder.folder import FolderMeta, load_model, save_model
from compress.storage import safe


@torch.inference_mode()
@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_folder_computes_what_was_saved(wiring: str, tmp_path: Path) -> None:
    plain = make_plain_model(wiring)
    model, batch = make_early_model(plain), draw_batch()
    folder = save_model(tmp_path / "early", model, tokenizer_files={}, meta=FolderMeta(method="early_exit"))
    other = save_model(tmp_path / "plain", plain, tokenizer_files={})
    with pytest.raises(UserError, match="this model has early exits, which are not supported here"):
        load_model(folder)
    again = load_model(folder, exits=True)
    assert again.heads["task"] == model.head_configs["task"]
    needs = Needs(logits=True)
    torch.testing.assert_close(again.model(batch, needs).logits, model(batch, needs).logits)
    assert (depends_on_texts(folder), depends_on_texts(other)) == (True, False)
    assert modelfolder.fingerprint(folder) != modelfolder.fingerprint(other)
    assert modelfolder.inspect(folder).parameters == sum(p.numel() for p in model.parameters())
    assert load_model(folder, keep=()).heads == {}, "without its head, it is an encoder as any other"
    card = (folder / "README.md").read_text()
    assert "early exits after layers 1, 2" in card
    if wiring == "bert":
        stock = safe.load_safetensors(folder / "model.safetensors")
        assert stock.keys() == safe.load_safetensors(other / "model.safetensors").keys(), "the parent's own file"
        assert "**computes all layers, without the early exits**" in card
        assert "from_pretrained" not in card.partition("## How to use")[2], "no code that computes something else"


def test_a_threshold_is_part_of_the_model(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "early", make_early_model(), tokenizer_files={})
    before = modelfolder.fingerprint(folder)
    file = folder / "compress_config.json"
    values = json.loads(file.read_text())
    (folder / "manifest.json").unlink()
    for exits, message in (
        ([{"layer": 2, "threshold": 0.9}], "exits.1"),
        ([{"layer": 1, "threshold": 2}, {"layer": 2, "threshold": 0.9}], "threshold is 2"),
        ([{"layer": 1, "threshold": 0.5}, {"layer": 3, "threshold": 0.9}], "an exit after layer 3 is not possible"),
    ):
        file.write_text(json.dumps({**values, "exits": exits}))
        with pytest.raises(UserError, match=message):
            load_model(folder, exits=True)
    values["exits"][0]["threshold"] = 0.99
    file.write_text(json.dumps(values))
    assert modelfolder.fingerprint(folder) != before


@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_missing_description_is_named(wiring: str, tmp_path: Path) -> None:
    """The tensors of the exits were reported as too many for config.json."""
    folder = save_model(tmp_path / "early", make_early_model(make_plain_model(wiring)), tokenizer_files={})
    (folder / "compress_config.json").unlink()
    for use in (modelfolder.inspect, load_model, depends_on_texts):
        with pytest.raises(UserError, match=r"early: compress_config\.json is missing: it describes"):
            use(folder)
