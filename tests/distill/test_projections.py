"""Projections between two widths start from least squares on real input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from compress import registry
from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.layer_maps import Choice, ModelPair
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.stages.distill.projections import fit_projections, have_projections
from compress.training.module import StageModule

TEACHER = EncoderConfig.uniform(vocabulary=60, hidden=24, layers=3, heads=4, feed_forward=32)
STUDENT = EncoderConfig.uniform(vocabulary=60, hidden=12, layers=2, heads=4, feed_forward=16)
HEADS = {"task": HeadConfig("classification", labels=3)}
CASES: list[tuple[str, dict[str, Any]]] = [
    *[(kind, {}) for kind in sorted(registry.parts("compress.objectives"))],
    ("hidden_mse", {"projection": "per-layer"}),
    ("contrastive", {"rows": "first"}),
]


def make_model(config: EncoderConfig, seed: int) -> Model:
    made = Model(config, HEADS).initialize(seed).eval()
    with torch.no_grad():  # as drawn, the layers change little
        for name, weight in made.named_parameters():
            if weight.dim() == 2 and "embeddings" not in name:
                weight.mul_(8)
    return made


def batch_of(ids: Tensor) -> Batch:
    """(B, L) token ids."""
    rows, length = ids.shape
    return Batch(
        input_ids=ids.flatten(),
        segment_ids=torch.zeros(rows * length, dtype=torch.int64),
        position_ids=torch.arange(length).repeat(rows),
        cu_seqlens=torch.arange(rows + 1) * length,
        max_length=length,
        row_ids=torch.arange(rows),
    )


def draw_batches(count: int, seed: int = 0) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [batch_of(torch.randint(60, (40, 9), generator=generator)) for _ in range(count)]


def get_first_map(module: StageModule, kind: str) -> Any:
    objective: Any = module.objectives[kind]
    return objective.maps.maps[0]


def read(linear: Any) -> Tensor:
    """(D, d+1) weights and bias."""
    return torch.cat([linear.weight, linear.bias[:, None]], 1).detach().clone()


def make_objective(kind: str, options: dict[str, Any], choice: Choice = "fixed") -> Any:
    made = registry.load("compress.objectives", kind)(**options)
    made.bind(ModelPair(STUDENT, TEACHER, () if choice != "fixed" else ((0, 0), (1, 2)), choice))
    return made


def make_module(kind: str, options: dict[str, Any], choice: Choice = "fixed") -> StageModule:
    objective = make_objective(kind, options, choice)
    return StageModule(make_model(STUDENT, 1), {kind: (1.0, objective)}, prepare(make_model(TEACHER, 2), "fp32"))


PROJECTING = [(kind, options) for kind, options in CASES if have_projections([make_objective(kind, options)])]


@pytest.mark.parametrize(("kind", "options"), PROJECTING, ids=[f"{k}{''.join(o.values())}" for k, o in PROJECTING])
def test_every_objective_with_projections_starts_lower_on_other_text(kind: str, options: dict[str, Any]) -> None:
    module = make_module(kind, options)
    held_out = draw_batches(4, seed=1)

    def measure() -> float:
        with torch.no_grad():
            return float(sum(module(batch)[kind].value for batch in held_out))

    before = measure()
    maps: Any = module.objectives[kind].maps
    assert fit_projections(module, draw_batches(8)) == len(maps)
    assert measure() < 0.95 * before
    assert all(p.requires_grad and p.grad is None for p in maps.parameters())


def test_the_objectives_that_project_are_those_known() -> None:
    assert {kind for kind, _ in PROJECTING} == {"contrastive", "cosine_hidden", "embeddings", "hidden_mse", "pkd"}


def test_a_teacher_whose_states_are_a_linear_map_of_the_students_is_met() -> None:
    student = make_model(STUDENT, 1)
    generator = torch.Generator().manual_seed(3)
    matrix, bias = torch.randn(24, 12, generator=generator), torch.randn(24, generator=generator)

    def answer(batch: Batch, needs: Needs) -> EncoderOutput:
        return EncoderOutput(student(batch, Needs()).last_hidden @ matrix.T + bias)

    objective = make_objective("cosine_hidden", {})
    student.train()
    module = StageModule(student, {"it": (1.0, objective)}, answer)  # pyright: ignore[reportArgumentType]
    assert fit_projections(module, draw_batches(8)) == 1
    assert student.training
    student.eval()
    assert float(module(draw_batches(1, seed=1)[0])["it"].value.detach()) < 1e-3


@pytest.mark.parametrize("choice", ["learned", "smallest"])
def test_layers_chosen_while_training_keep_their_projection(choice: Choice) -> None:
    module = make_module("hidden_mse", {}, choice)
    linear = get_first_map(module, "hidden_mse")
    before = linear.weight.clone()
    assert fit_projections(module, draw_batches(1)) == 0
    assert torch.equal(linear.weight, before)


def test_it_stops_reading_when_it_has_seen_enough() -> None:
    seen = []

    def batches() -> Iterator[Batch]:
        for batch in draw_batches(60):
            seen.append(batch.tokens)
            yield batch

    fit_projections(make_module("cosine_hidden", {}), batches())
    assert 16_384 <= sum(seen) < 16_384 + 360


def test_where_the_text_says_nothing_a_projection_stays_as_it_is() -> None:
    module = make_module("cosine_hidden", {})
    linear = get_first_map(module, "cosine_hidden")
    before = read(linear)
    assert fit_projections(module, []) == 0
    assert torch.equal(read(linear), before)
    one = batch_of(torch.tensor([[7]]))
    assert fit_projections(module, [one]) == 1
    seen = torch.cat([module.student(one, Needs()).last_hidden, torch.ones(1, 1)], 1).detach()
    across = torch.linalg.svd(seen).Vh[1:]  # twelve directions of which one state says nothing
    assert (read(linear) - before).norm() > 0.1
    torch.testing.assert_close(read(linear) @ across.T, before @ across.T, atol=1e-4, rtol=1e-3)
