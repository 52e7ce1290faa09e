"""The zeros of a 2:4 sparse model live through training, checkpoints, a stop and its continuation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_toy import CLASSES, VOCABULARY, Flag, Source, prints, run

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.masks import mask_of, sparse_parts
from compress.encoder.modules.model import Model
from compress.errors import Stopped
from compress.objectives.hard_labels import Objective as HardLabels
from compress.training.module import StageModule

SPARSE = ("attention.query", "attention.output", "feed_forward.up", "feed_forward.down")
PLAN = {"weight_decay": 0.1, "clip_norm": 0.5}


def student() -> Model:
    config = EncoderConfig.uniform(vocabulary=VOCABULARY, hidden=16, layers=2, heads=2, feed_forward=32)
    values = config.to_dict()
    values["layers"] = [{**shape, "sparse": list(SPARSE)} for shape in values["layers"]]
    heads = {"task": HeadConfig("classification", labels=CLASSES)}
    made = Model(EncoderConfig.from_dict(values), heads).initialize(0)
    with torch.no_grad():
        for part in sparse_parts(made).values():
            part.weight.mul_(mask_of(part.weight))
    return made


def training() -> dict[str, Any]:
    module = StageModule(student(), {"hard_labels": (1.0, HardLabels())})
    return {"module": module, "plan": PLAN, "validate": None, "select": None}


def test_zeros_stay_through_a_stop_and_its_continuation(tmp_path: Path) -> None:
    _, whole = run(tmp_path / "whole", **training())
    flag = Flag()
    source = Source(hooks={4: lambda: setattr(flag, "requested", "SIGTERM")})
    with pytest.raises(Stopped):
        run(tmp_path / "cut", **training(), stop=flag, source=source)
    _, resumed = run(tmp_path / "cut", **training(), resume=True)
    assert prints(tmp_path / "cut", resumed) == prints(tmp_path / "whole", whole)
    masks = {name: mask_of(part.weight) for name, part in sparse_parts(student()).items()}
    for name, part in sparse_parts(resumed.student).items():
        assert (part.weight[~masks[name]] == 0).all()
        assert (part.weight[masks[name]] != 0).all()
    at = "student.encoder.layers.1.feed_forward.up.weight"
    for file in (tmp_path / "cut" / "checkpoints").rglob("*.safetensors"):
        for name, tensor in load_file(file).items():
            if name.endswith((at, f"{at}.exp_avg", f"{at}.exp_avg_sq")):
                assert (tensor[~masks["layer 1 feed_forward.up"]] == 0).all(), file
