"""Counters against formulas, and the alarm of a busy machine."""

import time

import pytest
import torch
from torch import nn

from evaluation.cost.device import describe
from evaluation.cost.flops import count_flops
from evaluation.cost.latency import measure_interleaved, measure_latency
from evaluation.cost.memory import _sampled, peak_memory_mb
from evaluation.cost.size import count_parameters, weights_bytes


def test_flops_count_attention():
    """2 per multiply-add: four projections of 2·L·D² and two attention products of 2·L²·D."""
    length, hidden, heads = 64, 32, 4
    layer = nn.MultiheadAttention(hidden, heads, batch_first=True).eval()
    q = torch.randn(1, length, hidden)

    def call():
        w = layer.in_proj_weight
        parts = torch.nn.functional.linear(q, w).chunk(3, -1)
        split = [p.reshape(1, length, heads, -1).transpose(1, 2) for p in parts]
        mixed = torch.nn.functional.scaled_dot_product_attention(*split).transpose(1, 2).reshape(1, length, hidden)
        return layer.out_proj(mixed)

    assert count_flops(call) == 2 * length * 4 * hidden**2 + 2 * 2 * length**2 * hidden


def test_shared_parameters_count_once():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 10, bias=False))
    model[2].weight = model[0].weight
    count = count_parameters(model, ["0.weight"])
    assert (count.total, count.embedding, count.without_embedding, count.bytes) == (60, 40, 20, 240)
    with pytest.raises(KeyError, match="no such parameter"):
        count_parameters(model, ["nowhere.weight"])


def test_weights_bytes_come_from_the_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="no weights file"):
        weights_bytes(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1234)
    (tmp_path / "README.md").write_bytes(b"y" * 99)
    assert weights_bytes(tmp_path) == 1234
    (tmp_path / "model.onnx").write_bytes(b"z" * 55)
    assert weights_bytes(tmp_path) == 1234  # of two forms of one model, that which torch reads
    assert weights_bytes(tmp_path / "model.onnx") == 55


def test_a_sleeping_call_is_flagged_and_a_busy_one_is_timed():
    sleepy = measure_latency(lambda: time.sleep(0.004), device="cpu", warmup=1, repeats=10)
    assert sleepy.p50 >= 4
    assert sleepy.contaminated
    assert sleepy.minimum <= sleepy.p50 <= sleepy.p95 <= sleepy.p99
    assert not sleepy.is_known, "it waits by itself: its processor time is not its duration"
    assert 10 <= sleepy.repeats <= 30


def test_interleaved_calls_take_turns_and_stop_in_time():
    order = []
    slow = [lambda: (order.append("a"), time.sleep(0.01)), lambda: (order.append("b"), time.sleep(0.01))]
    a, b = measure_interleaved(slow, device="cpu", warmup=0, repeats=1000, seconds=0.1)
    assert order[:8] == ["a", "a", "b", "b", "a", "a", "b", "b"], "the first of two is not timed: it fills the caches"
    assert 5 <= a.repeats == b.repeats < 100
    order.clear()
    (alone,) = measure_interleaved(slow[:1], device="cpu", warmup=0, repeats=3)
    assert len(order) == alone.repeats
    assert order == ["a"] * len(order), "one alone finds the caches as it left them"
    with pytest.raises(ValueError, match="repeats must be positive"):
        measure_latency(lambda: None, device="cpu", repeats=0)


def test_what_the_call_before_left_in_the_caches_is_not_timed(monkeypatch):
    """A call that is slow after another one and fast after itself is a fast one."""
    before, clock = [""], [0.0]

    def call(name, first, again):
        def run():
            clock[0] += again if before[0] == name else first
            before[0] = name

        return run

    monkeypatch.setattr("evaluation.cost.latency.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr("evaluation.cost.latency.time.process_time", lambda: clock[0])
    monkeypatch.setattr("evaluation.cost.latency._Waits.seconds", lambda _: 0.0)  # the system's count is a clock too
    small, large = measure_interleaved([call("a", 0.003, 0.002), call("b", 0.016, 0.015)], device="cpu", repeats=9)
    assert (small.p50, large.p50) == pytest.approx((2, 15))
    long, short = measure_interleaved([call("a", 0.4, 0.3), call("b", 0.002, 0.001)], device="cpu", repeats=9)
    assert (long.p50, short.p50) == pytest.approx((400, 1)), "a long call is not made twice"
    assert long.minimum == pytest.approx(300), "but once, before that was known"


@pytest.mark.parametrize("measure", ["kernel", "sampled"])
def test_peak_memory_sees_an_allocation(measure):
    kept = [torch.ones(1_000_000) for _ in range(40)]  # 160 MB that the C library may keep, as after a training

    def call():
        block = torch.ones(20_000_000)  # 80 MB, touched
        time.sleep(0.05)
        return block.sum()

    del kept
    seen = peak_memory_mb(call) if measure == "kernel" else _sampled(call)
    assert 60 < seen < 200


def test_the_device_is_named():
    here = describe()
    assert here["device"]
    assert here["threads"] == str(torch.get_num_threads())
    assert here["torch"] == torch.__version__
