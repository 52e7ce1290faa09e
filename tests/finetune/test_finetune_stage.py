"""The fine-tuning stage: what it plans, what it rejects before a model is loaded, and which parameters it trains."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.stages.finetune import stage as module
from compress.stages.finetune.spec import Spec
from compress.stages.finetune.stage import Stage
from compress.stages.shared.model_shape import ModelShape

LORA = {"kind": "lora", "rank": 2}


def stage(max_length: int = 16, **keys: Any) -> Stage:
    spec = Spec.model_validate({"kind": "finetune", "training": {"steps": 10}, **keys})
    recipe = SimpleNamespace(data=SimpleNamespace(max_length=max_length))
    context: Any = SimpleNamespace(recipe=recipe, model=None, opened=lambda: None, seed=0)
    return Stage(spec, context)


def test_the_plan_names_what_is_trained() -> None:
    (line,) = stage().plan()
    assert line == "fine-tune: 10 steps, 32 rows a step, learning rate by the hidden size of the encoder"
    assert ", lora (rank 2" in stage(tune=LORA).plan()[0]
    assert stage(tune={"kind": "bitfit"}).plan()[0].endswith(", bitfit")


def test_texts_must_fit_the_model() -> None:
    shape = ModelShape(2, 16)
    assert stage(16).plan_shape(shape, None, None) is shape
    assert stage(17).plan_shape(None, shape, shape) is None, "it starts from no teacher"
    with pytest.raises(UserError, match=r"data\.max_length"):
        stage(17).plan_shape(shape, None, None)


def test_a_tuning_must_fit_the_model(tiny_config: EncoderConfig) -> None:
    shape = ModelShape(2, 32, config=tiny_config)
    assert stage(tune={"kind": "last", "layers": 2}).plan_shape(shape, None, None) is shape
    with pytest.raises(UserError, match="tune"):
        stage(tune={"kind": "last", "layers": 3}).plan_shape(shape, None, None)


@pytest.mark.parametrize("tune", [{"kind": "all"}, LORA, {"kind": "bitfit"}])
def test_parameters_are_counted_once(
    tune: dict[str, Any], tiny_config: EncoderConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(tiny_config, {"task": HeadConfig("classification", labels=2)}).initialize(0)
    whole = module._count(model)
    assert whole == sum(p.numel() for p in model.parameters())
    loaded: Any = SimpleNamespace(model=model, config=tiny_config, path=Path("m"))
    monkeypatch.setattr(module, "inspect", lambda _: loaded)
    trained = stage(tune=tune)._choose_trained(loaded)
    assert trained == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert (trained == whole) == (tune["kind"] == "all")


def test_the_same_seed_tunes_alike(tiny_config: EncoderConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        model = Model(tiny_config, {"task": HeadConfig("classification", labels=2)}).initialize(0)
        loaded: Any = SimpleNamespace(model=model, config=tiny_config, path=Path("m"))
        monkeypatch.setattr(module, "inspect", lambda _: loaded)
        made = stage(tune=LORA)
        made.context.__dict__["seed"] = seed
        made._choose_trained(loaded)
        return [p.detach() for p in model.parameters() if p.requires_grad]

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))
