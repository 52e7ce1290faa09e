"""Fine-tuning of few parameters: which ones change, what an adapter computes, and that a saved model is an ordinary
one."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "encoder"))
from encoder_helpers import RELAXED, UNIFORM, VARIATIONS, batch

from compress import registry
from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.lora import AdaptedLinear, Adapter, merge_adapters
from compress.encoder.modules.model import Model
from compress.encoder.modules.tied import check_tied
from compress.errors import UserError
from compress.stages.finetune.flags import TUNINGS

CONFIGS: dict[str, EncoderConfig] = {
    **{name: VARIATIONS[name] for name in ("bert", "factorized", "shared", "modernbert", "distilbert")},
    **RELAXED,
}


def head(config: EncoderConfig) -> HeadConfig:
    return HeadConfig("classification", labels=3, style="bert" if config.pooler else "distilbert")


def build(row: dict[str, Any]) -> Any:
    return registry.build(TUNINGS, registry.schema(TUNINGS, row["kind"]).model_validate(row))


def tuned(config: EncoderConfig, row: dict[str, Any]) -> tuple[Model, Any]:
    model, tuning = Model(config, {"task": head(config)}).eval(), build(row)
    tuning.check(config, "here")
    tuning.apply(model, torch.Generator().manual_seed(1))
    return model, tuning


def logits(model: Model) -> torch.Tensor:
    found = model(batch([4, 3]), Needs(logits=True)).logits
    assert found is not None
    return found


def trained(model: Model) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def take_steps(model: Model) -> None:
    """Three steps of gradient descent that change everything that is trained."""
    for _ in range(3):
        logits(model).square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.05 * parameter.grad.sign())
                    parameter.grad = None


# --- LoRA ---------------------------------------------------------------------------------------------------------


def test_an_adapter_adds_its_scaled_product() -> None:
    adapter = Adapter(torch.empty(7, 5), 2, 6.0, 0.0, torch.Generator().manual_seed(0))
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(2))
    assert adapter(x).abs().max() == 0, "B starts at zero"
    assert adapter.down.weight.abs().max() <= 5**-0.5
    assert adapter.down.weight.abs().max() > 0
    with torch.no_grad():
        adapter.up.weight.normal_(generator=torch.Generator().manual_seed(3))
    expected = 6.0 / 2 * x @ adapter.down.weight.T @ adapter.up.weight.T
    torch.testing.assert_close(adapter(x), expected)
    torch.testing.assert_close(x.double() @ adapter.difference().T, expected.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("targets", ["all", "attention", "query_value"])
@pytest.mark.parametrize("name", CONFIGS)
def test_lora_starts_as_the_model_and_merges_to_what_it_computes(name: str, targets: str) -> None:
    config = CONFIGS[name]
    plain = Model(config, {"task": head(config)}).eval()
    model, tuning = tuned(config, {"kind": "lora", "rank": 2, "targets": targets})
    torch.testing.assert_close(logits(model), logits(plain), rtol=0, atol=0)
    frozen = {k: p.clone() for k, p in model.named_parameters() if not p.requires_grad}
    assert all("adapter" in k or k.startswith("heads.task.") for k in trained(model))
    take_steps(model)
    assert all(torch.equal(frozen[k], p) for k, p in model.named_parameters() if k in frozen)
    unmerged = logits(model).detach()
    assert not torch.allclose(unmerged, logits(plain), atol=1e-3)
    tuning.finish(model)
    torch.testing.assert_close(logits(model), unmerged, rtol=1e-5, atol=1e-6)
    check_tied(model, plain.state_dict(), "here")
    assert not [m for m in model.modules() if isinstance(m, AdaptedLinear | Adapter)]


def test_layers_with_one_matrix_have_one_adapter() -> None:
    model, _ = tuned(RELAXED["residuals"], {"kind": "lora", "rank": 2, "targets": "query_value"})
    adapters = {id(m) for m in model.modules() if isinstance(m, Adapter)}
    assert len(adapters) == 2, "query and value, each once for three layers"
    assert len([m for m in model.modules() if isinstance(m, AdaptedLinear)]) == 6


def test_the_size_of_the_adapters_is_that_of_the_formula() -> None:
    model, _ = tuned(UNIFORM, {"kind": "lora", "rank": 3})
    count = sum(p.numel() for n, p in model.named_parameters() if p.requires_grad and "adapter" in n)
    layer = 4 * 3 * (16 + 16) + 2 * 3 * (16 + 24)
    assert count == 3 * layer + 3 * (16 + 16), "three layers and the pooler"


def test_alpha_is_twice_the_rank_unless_it_is_given() -> None:
    assert build({"kind": "lora", "rank": 5}).alpha == 10
    assert build({"kind": "lora", "rank": 5, "alpha": 1.0}).alpha == 1


def test_merging_a_model_without_adapters_changes_nothing() -> None:
    model = Model(UNIFORM)
    before = {name: p.clone() for name, p in model.named_parameters()}
    merge_adapters(model)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


# --- the others ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if config.bias])
def test_bitfit_trains_biases_and_the_task_head(name: str) -> None:
    model, _ = tuned(CONFIGS[name], {"kind": "bitfit"})
    names = {n for n, _ in model.named_parameters()}
    assert trained(model) == {n for n in names if n.endswith(".bias") or n.startswith("heads.task.")}


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_last_layers_are_trained_with_what_comes_after(layers: int) -> None:
    model, _ = tuned(UNIFORM, {"kind": "last", "layers": layers})
    above = tuple(f"encoder.layers.{n}." for n in range(3 - layers, 3))
    names = {n for n, _ in model.named_parameters()}
    assert trained(model) == {n for n in names if n.startswith((*above, "encoder.pooler.", "heads.task."))}


def test_the_last_layer_trains_the_matrices_that_it_shares() -> None:
    model, _ = tuned(RELAXED["own vectors"], {"kind": "last", "layers": 2})
    # Layers 0 and 1 share their matrices, which lie in layer 0; biases and norms are each layer's own.
    found = trained(model)
    assert "encoder.layers.0.attention.query.weight" in found
    assert "encoder.layers.0.attention.query.bias" not in found
    assert "encoder.layers.0.output_norm.weight" not in found
    assert "encoder.layers.1.attention.query.bias" in found
    assert not [n for n in found if "embeddings" in n]


def test_the_last_of_layers_that_are_one_is_that_one() -> None:
    model, _ = tuned(VARIATIONS["shared"], {"kind": "last", "layers": 1})
    assert {n.split(".")[2] for n in trained(model) if n.startswith("encoder.layers")} == {"0"}


@pytest.mark.parametrize("row", [{"kind": "lora", "rank": 2}, {"kind": "bitfit"}, {"kind": "last", "layers": 1}])
def test_a_new_pooler_is_trained_in_full_as_a_part_of_the_head(row: dict[str, Any]) -> None:
    model = Model(UNIFORM, {"task": head(UNIFORM)})
    build(row).apply(model, torch.Generator().manual_seed(1), new_pooler=True)
    assert {n for n in trained(model) if "pooler" in n} == {"encoder.pooler.dense.weight", "encoder.pooler.dense.bias"}


def test_all_trains_everything() -> None:
    model, _ = tuned(UNIFORM, {"kind": "all"})
    assert trained(model) == {n for n, _ in model.named_parameters()}


# --- what does not fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "config", "message"),
    [
        (
            {"kind": "lora", "rank": 17},
            UNIFORM,
            "rank 17 is too large: the narrowest matrix it adapts has width 16",
        ),
        ({"kind": "lora"}, VARIATIONS["low rank"], "low-rank factors already, and LoRA needs full matrices"),
        ({"kind": "last", "layers": 4}, UNIFORM, "last-4 is more than the model: the model has 3 layers"),
        ({"kind": "bitfit"}, VARIATIONS["modernbert"], "this encoder has no biases"),
    ],
)
def test_what_an_encoder_does_not_allow(row: dict[str, Any], config: EncoderConfig, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(row).check(config, "here")


def test_the_rank_is_held_against_the_matrices_that_are_adapted() -> None:
    narrow = dataclasses.replace(UNIFORM, layers=tuple(dataclasses.replace(s, feed_forward=4) for s in UNIFORM.layers))
    build({"kind": "lora", "rank": 16, "targets": "query_value"}).check(narrow, "here")
    with pytest.raises(UserError, match="width 4"):
        build({"kind": "lora", "rank": 16}).check(narrow, "here")
