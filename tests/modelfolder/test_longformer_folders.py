"""Longformer folders that no class describes, and what is left of one: what is read computes what was saved."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.modelfolder.folder import FolderMeta, inspect, load_model, save_model


def model(global_tokens: int, heads: dict[str, HeadConfig]) -> Model:
    config = EncoderConfig.uniform(
        vocabulary=30, hidden=16, layers=2, heads=2, feed_forward=24, max_positions=40, segments=1, position_offset=2,
        pad_id=1, windows=(2, 2), global_projections=True, global_tokens=global_tokens, pooler=False, dropout=0.1,
    )  # fmt: skip
    made = Model(config, heads).initialize(3).eval()
    for parameter in made.parameters():
        parameter.data.mul_(5)
    return made


@pytest.mark.parametrize(
    ("global_tokens", "heads"),
    [
        (1, {"task": HeadConfig("token_classification", labels=3)}),
        (1, {}),
        (0, {"task": HeadConfig("classification", labels=2, style="roberta")}),
        (1, {"task": HeadConfig("classification", labels=2, style="roberta")}),
    ],
)
def test_global_tokens_are_those_that_were_saved(
    global_tokens: int, heads: dict[str, HeadConfig], tmp_path: Path
) -> None:
    made = model(global_tokens, heads)
    save_model(tmp_path / "m", made, tokenizer_files={}, meta=FolderMeta(family="longformer"))
    again = load_model(tmp_path / "m").model.eval()
    assert again.config.global_tokens == global_tokens
    ids = torch.arange(4, 24)[None]
    with torch.inference_mode():
        ours, theirs = (m.forward_padded(ids, torch.ones_like(ids), needs=Needs()).last_hidden for m in (made, again))
    assert torch.equal(ours, theirs)


def test_a_dropout_of_the_head_alone_is_kept(tmp_path: Path) -> None:
    head = HeadConfig("classification", labels=2, style="roberta", dropout=0.3)
    save_model(tmp_path / "m", model(1, {"task": head}), tokenizer_files={}, meta=FolderMeta(family="longformer"))
    assert inspect(tmp_path / "m").heads["task"].dropout == 0.3


def test_positions_that_started_as_sinusoids_are_saved_as_learned_ones(tmp_path: Path) -> None:
    config = EncoderConfig.uniform(vocabulary=20, hidden=16, layers=1, heads=2, feed_forward=24)
    config = dataclasses.replace(config, positions="sinusoidal_start")
    save_model(tmp_path / "m", Model(config, {}).initialize(0), tokenizer_files={})
    assert inspect(tmp_path / "m").config.positions in ("learned", "sinusoidal_start")
