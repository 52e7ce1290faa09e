"""Residual, dropout and norm as one kernel, without a GPU: numbers by Triton's interpreter, machine code, choice."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from triton_code import compile_kernel, list_single_accesses, needs_triton, read_stack, run_interpreted

from compress.encoder import kernels
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.integers.fake_quantized import QuantizedLinear
from compress.encoder.kernels import add_norm, working
from compress.encoder.modules.layers import FeedForward


@needs_triton
def test_values_and_gradients_by_the_interpreter() -> None:
    for case, differences in run_interpreted(Path(__file__).with_name("interpreted_add_norm.py")).items():
        for what, difference in differences.items():
            assert difference < 2e-6, (case, what)


@needs_triton
@pytest.mark.parametrize("name", ["add_norm_kernel", "add_norm_backward_kernel"])
@pytest.mark.parametrize(
    ("size", "capability"),
    [(768, 90), *(pytest.param(*x, marks=pytest.mark.thorough) for x in ((384, 80), (1024, 90)))],
)
def test_machine_code_spills_nothing_and_loads_16_bytes_at_once(
    name: str, size: int, capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from compress.encoder.kernels import _add_norm_triton

    kernel = getattr(_add_norm_triton, name)
    kinds = {"seed": "*i64", "rows": "i32", "size": "i32", "rate": "fp32", "eps": "fp32"}
    kinds |= dict.fromkeys(("added", "narrow", "narrow_gradient", "to_added"), "*bf16")
    block = add_norm._round_up(size)
    constants = {x: True for x in kernel.arg_names if x.isupper()} | {"BLOCK": block}
    made = compile_kernel(
        kernel, dict.fromkeys(kernel.arg_names, "*fp32") | kinds, constants, ["size"],
        warps=add_norm._find_warps(block), capability=capability,
    )  # fmt: skip
    # Beside rows: the seed, and of each row its mean and its scale.
    assert len(list_single_accesses(made)) == 3
    assert read_stack(made, tmp_path) == 0


def on_gpu(*shape: int, kind: torch.dtype = torch.float32) -> Any:
    return SimpleNamespace(is_cuda=True, dtype=kind, shape=torch.Size(shape), numel=lambda: torch.Size(shape).numel())


def test_it_is_for_plain_norms_on_a_gpu_where_triton_works(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, x = nn.LayerNorm(8), on_gpu(3, 8)
    monkeypatch.setattr(add_norm, "SMALLEST", 0)
    monkeypatch.setattr(working, "are_working", lambda: False)
    assert not add_norm.support(x, x, norm)
    monkeypatch.setattr(working, "are_working", lambda: True)
    assert add_norm.support(x, x, norm)
    assert add_norm.support(x, on_gpu(3, 8, kind=torch.bfloat16), norm)
    watched = nn.LayerNorm(8)
    watched.register_forward_hook(lambda *_: None)
    for parts in (
        (x, x, nn.Identity()),
        (x, x, watched),
        (on_gpu(3, 8, kind=torch.float64), x, norm),
        (x, on_gpu(1, 8), norm),
        (on_gpu(0, 8), on_gpu(0, 8), norm),
        (on_gpu(3, 8192), on_gpu(3, 8192), nn.LayerNorm(8192)),
    ):
        assert not add_norm.support(*parts)


def test_small_tensors_are_left_to_torch_unless_a_graph_replays_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "are_working", lambda: True)
    norm, small, large = nn.LayerNorm(1024), on_gpu(4095, 1024), on_gpu(4096, 1024)
    assert [add_norm.support(x, x, norm) for x in (small, large)] == [False, True]
    with add_norm.fuse_all():
        assert add_norm.support(small, small, norm)
    assert not add_norm.support(small, small, norm)


@pytest.mark.parametrize(("rank", "name"), [(None, "up"), (2, "up.inner")])
def test_a_matrix_that_rounds_its_input_is_given_it_in_fp32(
    rank: int | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(add_norm, "narrowed", Tensor.bfloat16)
    config = EncoderConfig.uniform(vocabulary=9, hidden=8, layers=1, heads=2, feed_forward=12, max_positions=8)
    ranks = () if rank is None else (("feed_forward.up", rank),)
    part, given = FeedForward(config, replace(config.layers[0], ranks=ranks)), []
    first: Any = part.get_submodule(name)
    first.register_forward_pre_hook(lambda _, x: given.append(x[0].dtype))
    part.bfloat16()(torch.ones(3, 8))
    first.__class__, first.mode = QuantizedLinear, "float"
    first.weight_quantizer = first.input_quantizer = None
    part.float()(torch.ones(3, 8))
    assert given == [torch.bfloat16, torch.float32]


def test_a_compiler_makes_its_own_kernels_of_a_whole_layer() -> None:
    norm = nn.LayerNorm(8)

    def compute(x: Tensor) -> Tensor:
        return x if add_norm.support(x, x, norm) else x + 1

    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(3, 8, device="cuda:0")
        compiled: Any = torch.compile(compute, backend="eager", fullgraph=True)
        assert compiled(x) is not x
    torch.compiler.reset()


def test_a_cpu_never_asks_for_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "are_working", lambda: pytest.fail("triton was tried"))
    assert not add_norm.support(torch.zeros(2, 8), torch.zeros(2, 8), nn.LayerNorm(8))


def _fail(*_: Any) -> None:
    raise RuntimeError("no C compiler\nat all")


@pytest.mark.parametrize("missing", [True, False])
def test_without_triton_or_a_compiler_one_line_says_so(
    missing: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if missing:
        monkeypatch.setitem(sys.modules, "triton", None)
        monkeypatch.delitem(sys.modules, "compress.encoder.kernels._probe_triton", raising=False)
        monkeypatch.delattr(kernels, "_probe_triton", raising=False)
    else:
        monkeypatch.setattr(working, "try_out", _fail)
    working.are_working.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert [working.are_working() for _ in range(3)] == [False] * 3
    working.are_working.cache_clear()
    (line,) = caplog.messages
    assert ("triton is not installed" if missing else "(no C compiler)") in line
    assert line.endswith("install the triton version of this torch")
