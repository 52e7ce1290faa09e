"""Optimizer, schedule, precision, random generators, module: each against what it is written to be."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from training_toy import CLASSES, Source, Student, run, toy_batch, toy_module, toy_teacher

from compress.contracts import Batch, EncoderOutput, Needs, TrainingPlan
from compress.errors import ExitCode, UserError
from compress.objectives import cosine_hidden, hard_labels, soft_targets
from compress.quantizers import lsq
from compress.training import environment, precision, rng
from compress.training.module import StageModule
from compress.training.optimizer import Optimizer
from compress.training.schedule import learning_rate, total_steps
from compress.training.state import load_model, model_tensors

CPU = torch.device("cpu")


def plan(**values: Any) -> TrainingPlan:
    return TrainingPlan(**{"steps": 10, "learning_rate": 5e-5, **values})


# --- optimizer --------------------------------------------------------------------------------------------------


def adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: int, lr: float, decay: float, spec: TrainingPlan) -> None:
    """Loshchilov and Hutter, algorithm 2, in place."""
    b1, b2 = spec.betas
    p -= lr * decay * p
    m.mul_(b1).add_(g, alpha=1 - b1)
    v.mul_(b2).add_(g * g, alpha=1 - b2)
    p -= lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + spec.eps)


@pytest.mark.parametrize("clip", [None, 0.5, 100.0])
def test_steps_are_the_written_formula(clip: float | None) -> None:
    spec = plan(learning_rate=0.01, betas=(0.8, 0.95), eps=1e-7, weight_decay=0.1, clip_norm=clip)
    module = nn.Linear(5, 4).double()
    optimizer = Optimizer(module, spec)
    weights = {name: p.detach().clone() for name, p in module.named_parameters()}
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in weights.items()}
    for t, lr in enumerate((0.01, 0.02, 0.005), start=1):
        gradients = {name: torch.randn_like(p) for name, p in weights.items()}
        for name, p in module.named_parameters():
            p.grad = gradients[name].clone()
        want_norm = torch.cat([g.flatten() for g in gradients.values()]).norm()
        optimizer.set_rate(lr)
        norm = optimizer.step(torch.zeros(()))
        torch.testing.assert_close(norm, want_norm)
        scale = 1.0 if clip is None else min(1.0, clip / float(want_norm))
        for name, p in weights.items():
            adamw(p, gradients[name] * scale, *moments[name], t, lr, 0.1 if name == "weight" else 0.0, spec)
    for name, p in module.named_parameters():
        torch.testing.assert_close(p.detach(), weights[name], rtol=1e-6, atol=1e-9)


def test_only_matrices_decay() -> None:
    module = nn.ModuleDict({"dense": nn.Linear(3, 3), "norm": nn.LayerNorm(3), "table": nn.Embedding(4, 3)})
    optimizer = Optimizer(module, plan(learning_rate=0.1, weight_decay=0.5))
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step(torch.zeros(()))
    for name, p in module.named_parameters():
        factor = 0.95 if p.ndim == 2 else 1.0
        torch.testing.assert_close(p.detach(), before[name] * factor)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_learned_step_sizes_of_groups_do_not_decay(optimizer: str) -> None:
    quantizer = lsq.Quantizer((4, 8), bits=4, per="group", group=4)
    assert quantizer.scale.ndim == 2
    nn.init.ones_(quantizer.scale)
    rule = Optimizer(quantizer, plan(optimizer=optimizer, learning_rate=0.1, weight_decay=0.5))
    before = quantizer.scale.detach().clone()
    quantizer.scale.grad = torch.zeros_like(quantizer.scale)
    rule.step(torch.zeros(()))
    torch.testing.assert_close(quantizer.scale.detach(), before)


def test_moments_go_out_and_in() -> None:
    first, second = toy_module(), toy_module()
    one, two = Optimizer(first, plan()), Optimizer(second, plan())
    for p in first.parameters():
        p.grad = torch.ones_like(p)
    one.step(torch.zeros(()))
    two.load({name: value.clone() for name, value in one.state().items()})
    for (name, value), (other, again) in zip(one.state().items(), two.state().items(), strict=True):
        assert name == other
        assert torch.equal(value, again)
    assert "student.table.weight.exp_avg_sq" in one.state()


def test_moments_of_another_model_are_refused() -> None:
    optimizer = Optimizer(nn.Linear(2, 2), plan())
    with pytest.raises(UserError, match=r"does not match this model: unexpected other\.exp_avg") as caught:
        optimizer.load({"other.exp_avg": torch.zeros(2)})
    assert caught.value.code == ExitCode.REFUSED
    moments = {"step": torch.ones(()), "exp_avg": torch.zeros(3), "exp_avg_sq": torch.zeros(3)}
    with pytest.raises(UserError, match=r"bias has shape \(3,\) in the checkpoint, \(2,\) in the model"):
        optimizer.load({f"bias.{name}": value for name, value in moments.items()})
    with pytest.raises(UserError, match="bias is missing exp_avg_sq, step"):
        optimizer.load({"bias.exp_avg": torch.zeros(2)})


# --- schedule ---------------------------------------------------------------------------------------------------


@given(
    total=st.integers(1, 3000),
    warmup=st.floats(0, 0.99),
    shape=st.sampled_from(["linear", "cosine", "constant"]),
)
def test_the_rate_rises_to_the_peak_and_falls(total: int, warmup: float, shape: Any) -> None:
    spec = plan(learning_rate=0.5, warmup=warmup, schedule=shape)
    rates = [learning_rate(spec, step, total) for step in range(total)]
    rise = math.ceil(warmup * total)
    assert all(0 < rate <= 0.5 for rate in rates)
    assert rates[: rise + 1] == sorted(rates[: rise + 1])
    assert rates[rise:] == sorted(rates[rise:], reverse=True)
    assert max(rates) == 0.5
    assert all(rate == 0.5 for rate in rates[rise:]) or shape != "constant"


def test_rates_of_a_short_run() -> None:
    spec = plan(learning_rate=1e-3, warmup=0.2)
    rates = [learning_rate(spec, step, 10) for step in range(10)]
    assert rates == pytest.approx([1e-3 * f for f in (0.5, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125)])


def test_epochs_of_different_length_are_added_up() -> None:
    class Uneven:
        fingerprint = "x"

        def steps(self, epoch: int) -> int:
            return (10, 20, 40)[epoch]

        def step(self, epoch: int, index: int) -> list[Batch]:
            return []

    assert total_steps(TrainingPlan(epochs=2.5), Uneven()) == 50
    assert total_steps(TrainingPlan(steps=7), Uneven()) == 7


# --- precision, environment, randomness -------------------------------------------------------------------------


def test_auto_follows_the_device(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(precision, "computes_bf16", lambda device: True)
    assert precision.resolve("auto", CPU) == "bf16"
    assert precision.resolve("fp32", CPU) == "fp32"
    monkeypatch.setattr(precision, "computes_bf16", lambda device: False)
    assert precision.resolve("auto", CPU) == "fp32"
    assert precision.resolve("bf16", CPU) == "bf16"
    assert "this CPU has no bf16 instructions" in caplog.text
    with pytest.raises(UserError, match="this device cannot compute in bf16: cuda:0") as caught:
        precision.resolve("bf16", torch.device("cuda:0"))
    assert caught.value.code == ExitCode.ENVIRONMENT


def test_finished_models_compute_in_what_the_device_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "computes_bf16", lambda device: True)
    assert precision.serving_precision("auto", "cpu") == "fp32"
    assert precision.serving_precision("bf16", "cpu") == "bf16"
    assert precision.serving_precision("auto", "cuda") == "bf16"
    assert precision.serving_precision("fp32", "cuda") == "fp32"
    monkeypatch.setattr(precision, "computes_bf16", lambda device: False)
    assert precision.serving_precision("auto", "cuda") == "fp32"
    with pytest.raises(UserError, match="cannot compute in bf16"):
        precision.serving_precision("bf16", "cuda")


@pytest.mark.parametrize(("device", "how", "inside"), [("cuda", "bf16", "high"), ("cuda", "fp32", "highest"),
                                                       ("cpu", "bf16", "highest")])  # fmt: skip
def test_tf32_is_for_what_a_gpu_leaves_in_fp32(device: str, how: precision.Resolved, inside: str) -> None:
    with precision.allow_tf32(how, torch.device(device)):
        assert torch.get_float32_matmul_precision() == inside
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="Linux tells what its CPU can do")
def test_the_cpu_is_asked_what_it_can_do() -> None:
    flags = Path("/proc/cpuinfo").read_text()
    assert precision.computes_bf16(CPU) == any(flag in flags for flag in ("avx512_bf16", "amx_bf16"))


def test_the_environment_names_what_bits_depend_on() -> None:
    here = environment.describe(CPU, "fp32")
    assert set(here) == {"torch", "device", "precision", "threads", "isa"}
    assert here["threads"] == str(torch.get_num_threads())


def draw() -> list[float]:
    return [random.gauss(0, 1), random.random(), float(np.random.standard_normal()), float(torch.rand(()))]


def test_generators_come_back_where_they_were() -> None:
    rng.seed(3)
    random.gauss(0, 1)  # leaves half a pair behind, in both libraries
    np.random.standard_normal()
    state = rng.capture(CPU)
    assert {tensor.dtype for tensor in state.values()} == {torch.uint8}
    first = draw()
    rng.restore(state, CPU)
    assert draw() == first


def test_what_runs_in_between_leaves_no_trace() -> None:
    rng.seed(3)
    want = draw()
    rng.seed(3)
    with rng.preserve_generators(CPU):
        draw()
    assert draw() == want


# --- module -----------------------------------------------------------------------------------------------------


class Projection(nn.Module):
    """An objective with weights of its own, as methods that match different widths have."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(8, 8)
        self.student_needs = Needs(hidden_states=True)
        self.teacher_needs: Needs | None = Needs(pooled=True)

    def count(self, batch: Batch) -> int:
        return batch.tokens

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        assert teacher is not None
        return (self.map(student.last_hidden) - teacher.last_hidden).square().mean()


def test_projections_train_and_are_saved(tmp_path: Path) -> None:
    module = StageModule(Student(), {"match": (1.0, Projection())}, toy_teacher)
    before = {name: tensor.clone() for name, tensor in model_tensors(module).items()}
    run(tmp_path, module=module, validate=None)
    after = model_tensors(module)
    assert "objectives.match.map.weight" in after
    assert not torch.equal(after["objectives.match.map.weight"], before["objectives.match.map.weight"])


def test_the_teacher_is_neither_trained_nor_saved() -> None:
    teacher = Student(seed=9)
    module = StageModule(Student(), {"soft_targets": (1.0, soft_targets.Objective())}, teacher)
    assert module.teacher is teacher
    names = [name for name, _ in module.named_parameters()]
    assert all(name.startswith("student.") for name in names)
    torch.stack([term.value for term in module(toy_batch(1)).values()]).sum().backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert any(p.grad is not None for p in module.parameters())
    assert teacher.training  # nor is its mode touched: that is its owner's business
    module.eval()
    assert teacher.training


def test_models_are_asked_once_for_the_union_of_needs() -> None:
    asked: dict[str, list[Needs]] = {"student": [], "teacher": []}

    class Spy(Student):
        def forward(self, batch: Batch, needs: Needs = Needs()) -> EncoderOutput:  # noqa: B008
            asked["student"].append(needs)
            return super().forward(batch, needs)

    def teacher(batch: Batch, needs: Needs) -> EncoderOutput:
        asked["teacher"].append(needs)
        assert not torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
        return toy_teacher(batch, needs)

    objectives = {"a": (1.0, hard_labels.Objective()), "b": (1.0, Projection()), "c": (2.0, cosine_hidden.Objective())}
    module = StageModule(Spy(), objectives, teacher)
    with torch.autocast("cpu", torch.bfloat16):
        module(toy_batch(0))
    wanted = Needs(logits=True, hidden_states=True, last_hidden=True)
    assert asked == {"student": [wanted], "teacher": [Needs(pooled=True, last_hidden=True)]}


def test_a_teacher_in_inference_mode_can_be_learned_from() -> None:
    def teacher(batch: Batch, needs: Needs) -> EncoderOutput:
        with torch.inference_mode():
            return toy_teacher(batch, needs)

    objectives = {"a": (1.0, soft_targets.Objective()), "b": (1.0, cosine_hidden.Objective()), "c": (1.0, Projection())}
    module = StageModule(Student(), objectives, teacher)
    torch.stack([term.value for term in module(toy_batch(0)).values()]).sum().backward()


def test_a_term_that_counts_nothing_is_left_out() -> None:
    batch = toy_batch(0)
    assert batch.labels is not None
    batch.labels[:] = -100
    terms = toy_module()(batch)
    assert list(terms) == ["soft_targets"]
    assert (terms["soft_targets"].count, terms["soft_targets"].weight) == (batch.rows, 1.0)


@pytest.mark.parametrize("weight", [math.nan, math.inf, -1.0])
def test_bad_weights_are_refused(weight: float) -> None:
    with pytest.raises(UserError, match=r"objective x\.weight: a weight must be 0 or more"):
        StageModule(Student(), {"x": (weight, hard_labels.Objective())})


def test_missing_parts_are_refused() -> None:
    with pytest.raises(UserError, match="objective x: needs a teacher, but none is given"):
        StageModule(Student(), {"x": (1.0, soft_targets.Objective())})
    with pytest.raises(UserError, match="objectives: no objectives"):
        StageModule(Student(), {})


def test_shared_tensors_are_stored_once_and_stay_shared() -> None:
    student = Student()
    tensors = model_tensors(student)
    assert "dense.weight" in tensors
    assert "again.weight" not in tensors
    load_model(student, {name: tensor + 1 for name, tensor in tensors.items()})
    assert student.again.weight is student.dense.weight
    with pytest.raises(UserError, match=r"weights do not match this model: 'head\.bias'"):
        load_model(student, {**model_tensors(student), "head.bias": torch.zeros(CLASSES + 1)})


def test_the_source_of_the_toy_is_a_pure_function() -> None:
    assert torch.equal(Source().step(1, 2)[0].input_ids, Source().step(1, 2)[0].input_ids)
