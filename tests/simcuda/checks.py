"""Checks on the simulated device, all in one process: prints {check: traceback or null} as one line of JSON."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import device  # first: it loads the shim before torch
import graphed_steps
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from step_cases import CASES

from compress.contracts import Needs, TrainingPlan, VocabularyOutput
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import Examples
from compress.data.tables.table import Rows
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.infer.graphs import WARM_UPS, prepare_graphed, record_graph
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.objectives._vocabulary import cross_entropy, divergence, logits_at
from compress.predict.predictor import Predictor
from compress.stages.shared import validation
from compress.stages.shared.divergence import ReferenceAnswers
from compress.training.graphed import RejectHostCopies
from compress.training.keeper import Keeper
from compress.training.lamb import Lamb
from compress.training.optimizer import Optimizer
from compress.training.staging import HostCopy
from compress.training.state import TrainState
from evaluation.cost.gpu import count_waits

CHECKS: list[Callable[[device.Record], None]] = []


def check(function: Callable[[device.Record], None]) -> Callable[[device.Record], None]:
    """Add to what runs."""
    CHECKS.append(function)
    return function


def _raises(kind: type[Exception], words: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=words):
        call()


@check
def gradients_equal_those_of_the_cpu(record: device.Record) -> None:
    def compute(where: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(8, 4)
        x = torch.randn(3, 8)
        layer, x = layer.to(where), x.to(where)
        (F.cross_entropy(layer(x), torch.tensor([0, 1, 2], device=where)) + layer(x).square().mean()).backward()
        assert layer.weight.device.type == where.partition(":")[0]
        return [p.grad.cpu() for p in layer.parameters() if p.grad is not None]

    for one, other in zip(compute("cpu"), compute("cuda"), strict=True):
        assert torch.equal(one, other)


@check
def tensors_of_two_devices_do_not_mix(record: device.Record) -> None:
    x = torch.ones(3, device="cuda")
    _raises(RuntimeError, "same device", lambda: x + torch.ones(3))
    assert (x + torch.tensor(1.0)).cpu().tolist() == [2, 2, 2]  # a scalar on the host goes with a kernel's arguments


@check
def waits_are_counted(record: device.Record) -> None:
    x = torch.arange(4.0, device="cuda")
    waiting = (
        lambda: x.sum().item(),
        lambda: x.tolist(),
        lambda: x.cpu(),
        lambda: x[x > 1],
        lambda: (x > 1).nonzero(),
        lambda: bool(x[0] > 1),
        lambda: torch.repeat_interleave(x, x.long()),
        lambda: torch.empty(4).copy_(x),
        torch.cuda.synchronize,
    )
    for number, call in enumerate(waiting):
        record.clear()
        call()
        assert record.totals()["waits"] == 1, (number, record.waits)
    record.clear()
    torch.repeat_interleave(x, x.long(), output_size=6)
    (x * 2).relu_().sum()
    assert record.totals() == {"waits": 0, "copies": 0, "kernels": 6}, (record.totals(), record.kernels)


@check
def waits_of_a_call_are_counted_and_other_warnings_passed_on(record: device.Record) -> None:
    x = torch.arange(4.0, device="cuda")

    def call(number: int) -> None:
        x.cpu()
        warnings.warn("another", UserWarning, stacklevel=2)
        x.sum().item()

    with warnings.catch_warnings(record=True) as seen:
        assert count_waits(call) == 2
    assert [str(one.message) for one in seen] == ["another"]


@check
def copies_are_counted(record: device.Record) -> None:
    record.clear()
    x = torch.ones(3).to("cuda", non_blocking=True)
    torch.tensor([1, 2], device="cuda")
    assert record.totals()["copies"] == 2, record.copies
    assert record.totals()["waits"] == 0
    _raises(TypeError, r"cpu\(\)", x.numpy)


@check
def adam_is_fused(record: device.Record) -> None:
    weight = torch.nn.Parameter(torch.ones(3, device="cuda"))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    weight.square().sum().backward()
    optimizer.step()
    assert weight.detach().cpu().max() < 1


@check
def lamb_moves_all_tensors_together(record: device.Record) -> None:
    """Without a wait; alone, each tensor takes more than twenty operators."""
    weights = [torch.nn.Parameter(torch.ones(3, device="cuda")) for _ in range(40)]
    rule = Lamb([{"params": weights, "weight_decay": 0.1}], 0.1, (0.9, 0.99), 1e-6)
    for _ in range(2):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        rule.found_inf = torch.zeros((), device="cuda")
        record.clear()
        rule.step()
    assert record.totals()["waits"] == 0, record.waits
    assert record.totals()["kernels"] < 4 * len(weights), record.kernels
    assert weights[-1].detach().cpu().max() < 1


@check
def attention_over_packed_rows_equals_padded(record: device.Record) -> None:
    from compress.encoder.modules.layout import PackedLayout

    bounds = torch.tensor([0, 3, 8, 10])
    torch.manual_seed(0)
    q, k, v = (torch.randn(10, 2, 8).bfloat16() for _ in range(3))
    found = []
    for where in ("cpu", "cuda"):
        parts = [x.detach().clone().to(where).requires_grad_() for x in (q, k, v)]
        context = PackedLayout(bounds.to(where), 5).attend(*parts, dropout=0.0)
        context.float().square().sum().backward()
        found.append([context.detach().float().cpu(), *(x.grad.float().cpu() for x in parts if x.grad is not None)])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=0.05), (one - other).abs().max()


@check
def losses_over_a_vocabulary_equal_those_of_the_cpu(record: device.Record) -> None:
    """On the device: of padded logits, each loss in one kernel."""
    found = []
    for where in ("cpu", "cuda"):
        torch.manual_seed(0)
        features, weight, bias = (torch.randn(size).to(where).requires_grad_() for size in ((9, 8), (70, 8), (70,)))
        teacher = VocabularyOutput(torch.randn(9, 8).to(where), torch.randn(70, 8).to(where), None)
        output = VocabularyOutput(features, weight, bias)
        at = torch.tensor([1, 4, 7]).to(where)
        record.clear()
        ours = logits_at(output, None)
        loss = divergence(ours, teacher, None, 2.0) + cross_entropy(logits_at(output, at), at)
        launched = {kind: record.kernels[f"compress::{kind}_"] for kind in ("divergence", "cross_entropy")}
        assert launched == dict.fromkeys(launched, 1 if where == "cuda" else 0)
        assert ours.stride(0) == (128 if where == "cuda" else 70)
        loss.backward()
        found.append([x.detach().cpu() for x in (loss, *(p.grad for p in (features, weight, bias))) if x is not None])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@check
def every_timed_call_is_synchronized(record: device.Record) -> None:
    from evaluation.cost.latency import measure_interleaved, measure_latency

    record.clear()
    calls = []
    measure_interleaved([lambda: calls.append(0), lambda: calls.append(1)], device="cuda", warmup=1, repeats=3)
    assert record.totals()["waits"] == len(calls), (record.waits, len(calls))
    record.clear()
    measure_latency(lambda: None, device="cpu", repeats=3)
    assert record.totals()["waits"] == 0
    _raises(TypeError, "device", lambda: measure_latency(lambda: None))  # pyright: ignore[reportCallIssue]


def _encoded(rows: int) -> Any:
    """Examples of classes, and the table that validation reads of them."""
    lengths = 3 + np.arange(rows) % 7
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    zeros, numbers = np.zeros(offsets[-1], dtype=np.uint8), np.arange(1, rows + 1)
    ids = (5 + np.arange(offsets[-1]) % 50).astype(np.int32)
    return Examples(ids, offsets, zeros, zeros > 0, numbers % 3, numbers, 0, "toy")


@check
def the_graph_runtime_computes_as_torch_does(record: device.Record) -> None:
    """Without graphs, and with one: a batch is a copy to the device, one to its place, and a replay."""
    config = EncoderConfig.uniform(vocabulary=64, hidden=32, layers=2, heads=4, feed_forward=64, max_positions=32)
    model = Model(config, {"task": HeadConfig("classification", labels=3)}).initialize(0).eval().to("cuda")
    needs, batch = Needs(logits=True), next(iter(evaluation_batches(_encoded(3), 40))).to("cuda")

    def answer(run: Callable[..., Any]) -> torch.Tensor:
        return run(batch, needs).logits.float().cpu()

    expected = answer(prepare(model, "bf16"))
    broken: Any = mock.Mock(side_effect=RuntimeError("operation not permitted when stream is capturing"))
    with mock.patch("compress.encoder.infer.graphs._log") as log:
        fallback = prepare_graphed(model, "bf16", capture=broken)
        assert torch.equal(answer(fallback), expected)
        assert torch.equal(answer(fallback), expected)
    log.warning.assert_called_once()
    graphed = prepare_graphed(model, "bf16")
    assert torch.allclose(answer(graphed), expected, atol=0.02)
    record.clear()
    graphed(batch, needs)
    assert record.totals()["waits"] == 0, record.waits
    assert record.totals()["copies"] == 1, record.copies


class _Normed(torch.nn.Linear):
    """A weight that steps change, and a buffer that a forward pass changes."""

    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)
        self.register_buffer("seen", torch.zeros(()))


def _write_while_training(folder: Path, record: device.Record, *, held_back: bool) -> tuple[Any, Any]:
    """(state, what a checkpoint has of it) where a step is made before the copies are waited for."""
    module, opened = _Normed().to("cuda"), threading.Event()
    plan = TrainingPlan(steps=9, learning_rate=0.1)
    state = TrainState(module, Optimizer(module, plan), torch.device("cuda", 0))

    def make_step() -> None:
        module.get_buffer("seen").add_(1)
        module.weight.grad = torch.ones_like(module.weight)
        if held_back:
            keeper.await_copy()
        state.optimizer.step(torch.zeros((), device="cuda"))

    keeper = Keeper(folder, 2, state, {}, {})
    keeper.start(resume=False)
    make_step()
    state.step = 1
    before = {group: {name: x.cpu() for name, x in xs.items()} for group, xs in state.tensors().items()}
    real = HostCopy.wait

    def wait(staged: HostCopy) -> Any:
        assert opened.wait(60)
        return real(staged)

    with mock.patch.object(HostCopy, "wait", wait):
        record.clear()
        keeper.save(wait=False)
        make_step()
        assert record.totals()["waits"] == 0, record.waits
        opened.set()
        assert keeper.collect(wait=True)
    keeper.close()
    saved = keeper.checkpoints.newest()
    assert saved is not None
    return before, saved.tensors()


@check
def a_checkpoint_is_copied_beside_the_next_pass(record: device.Record) -> None:
    """Nobody waits for it, and the step after it waits on the device; without that, the negative control, it holds what
    the step made."""
    with tempfile.TemporaryDirectory() as folder:
        before, saved = _write_while_training(Path(folder, "a"), record, held_back=True)
        for group, tensors in before.items():
            for name, x in tensors.items():
                assert torch.equal(x, saved[group][name]), (group, name)
        before, saved = _write_while_training(Path(folder, "b"), record, held_back=False)
        assert not torch.equal(before["model"]["weight"], saved["model"]["weight"])
        assert torch.equal(before["model"]["seen"], saved["model"]["seen"])


@check
def a_replayed_step_equals_one_that_is_launched(record: device.Record) -> None:
    """With dropout, other text, and another learning rate in each step: bit for bit. The host launches a copy of the
    batch, the learning rate, a replay, and a copy of the figures."""
    source = graphed_steps.Source(CASES["task"], graphed_steps.LENGTHS["mixed"], varies=False)
    found = graphed_steps.compare(CASES["task"], source, record)
    assert found["differs"] == 0
    assert found["replays"] == graphed_steps.STEPS - WARM_UPS
    assert (found["waits"], found["copies"], found["kernels"]) == (0, 1, 3), found
    assert found["warnings"] == []
    assert found["fallback"] == [
        "training without CUDA graphs from here on: the capture failed (operation not permitted)"
    ]


@check
def a_capture_that_fails_leaves_the_stream(record: device.Record) -> None:
    """As torch does where CUDA cannot end it: the stream of the capture stays current."""

    @contextlib.contextmanager
    def fail(*_: Any, **__: Any) -> Iterator[None]:
        device._Host.stream = device.Stream()
        yield
        raise RuntimeError("a previous error during capture")

    before = torch.cuda.current_stream()
    with mock.patch.object(torch.cuda, "graph", fail):
        _raises(RuntimeError, "previous error", lambda: record_graph(lambda: torch.zeros(1, device="cuda")))
    assert torch.cuda.current_stream() is before


@check
def a_step_that_copies_from_the_host_is_not_captured(record: device.Record) -> None:
    x = torch.zeros(3, device="cuda")
    for copy in (lambda: x.copy_(torch.ones(3)), lambda: torch.ones(3).to("cuda"), lambda: torch.ones(3).cuda()):
        with RejectHostCopies():
            _raises(RuntimeError, "copies a tensor from the host", copy)
    with RejectHostCopies():
        x.copy_(x.to(torch.float64) + 1.0)


@check
def a_pass_over_many_batches_waits_once(record: device.Record) -> None:
    """Validation while training, answers of a teacher, a divergence, predictions."""
    examples = _encoded(64)
    rows = Rows({}, examples.labels, examples.numbers)
    table: Any = SimpleNamespace(task="classification", settings={}, label_names=["a", "b", "c"])
    context: Any = SimpleNamespace(precision="bf16", device="cuda")
    data: Any = SimpleNamespace(validation=examples, held_out=rows)
    config = EncoderConfig.uniform(vocabulary=64, hidden=32, layers=2, heads=4, feed_forward=64, max_positions=32)
    model = Model(config, {"task": HeadConfig("classification", labels=3)}).initialize(0).eval().to("cuda")
    batches = [batch.to("cuda") for batch in evaluation_batches(examples, 40)]
    assert len(batches) > 5
    ready = prepare(model, "bf16")
    reference = ReferenceAnswers(ready, batches)
    predictor = Predictor.__new__(Predictor)
    predictor.__dict__.update(device="cuda", runtime="torch", run=ready, _order=None)
    with mock.patch.object(validation, "VALIDATION_TOKENS", 40):
        validate = validation.task_validation(data, table, context)
    module: Any = SimpleNamespace(student=model)
    for name, call in {
        "validation": lambda: validate(module),
        "answers": lambda: validation.collect_logits(ready, batches, examples),
        "divergence": lambda: reference.divergence(ready),
        "predictions": lambda: predictor.logits(examples, max_tokens=40),
    }.items():
        record.clear()
        with torch.no_grad():
            call()
        assert record.totals()["waits"] == 1, (name, record.waits)


if __name__ == "__main__":
    results: dict[str, str | None] = {}
    with device.simulate() as seen:
        for one in CHECKS:
            try:
                one(seen)
                results[one.__name__] = None
            except Exception:
                results[one.__name__] = traceback.format_exc()
    print(json.dumps(results))
