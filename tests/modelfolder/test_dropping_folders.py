"""Folders of models that drop tokens: they compute what was saved, and other programs are not given anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from early_models import draw_batch, make_plain_model

from compress.contracts import Needs
from compress.encoder.reshape.dropped_tokens import drop_tokens
from compress.encoder.reshape.students import take_layers
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import load_model, save_model


@torch.inference_mode()
def test_a_folder_computes_what_was_saved(tmp_path: Path) -> None:
    model, batch, needs = drop_tokens(make_plain_model(), (70, 30, 30)), draw_batch(), Needs(logits=True)
    folder = save_model(tmp_path / "fewer", model, tokenizer_files={})
    again = load_model(folder)
    assert again.config.kept_tokens == (70, 30, 30)
    torch.testing.assert_close(again.model(batch, needs).logits, model(batch, needs).logits)
    whole = save_model(tmp_path / "whole", make_plain_model(), tokenizer_files={})
    assert modelfolder.fingerprint(folder) != modelfolder.fingerprint(whole)
    assert "kept_tokens" not in (whole / "config.json").read_text()
    assert not (folder / "model.safetensors").exists(), "no stock class loads it without dropping tokens"
    assert "load this folder**: it drops tokens between its layers." in (folder / "README.md").read_text()
    assert take_layers(again.model, (0, 2)).config.kept_tokens is None, "a student begins with all tokens"


def test_shares_are_checked_when_they_are_read(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "fewer", drop_tokens(make_plain_model(), (70, 30, 30)), tokenizer_files={})
    file = folder / "compress_config.json"
    values = json.loads(file.read_text())
    (folder / "manifest.json").unlink()
    for kept, message in (([70, 30], "one percentage for each layer"), ([30, 70, 70], "cannot come back")):
        file.write_text(json.dumps({**values, "encoder": {**values["encoder"], "kept_tokens": kept}}))
        with pytest.raises(UserError, match=message):
            load_model(folder)
