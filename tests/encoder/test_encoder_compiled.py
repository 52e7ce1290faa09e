"""What the compiler and torchao make of a model answers as the model does."""

from __future__ import annotations

import importlib.util
import shutil
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from encoder_helpers import VARIATIONS, batch, heads, model
from torch import Tensor

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.infer import compiled
from compress.encoder.infer.compiled import prepare_compiled
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.encoder.modules.pattern import FULL
from compress.errors import ExitCode, UserError

ANSWERS = Needs(logits=True)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The compiler looks at the code as for any backend, and hands it to the cheapest one."""
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    compiled.require_compiler.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.compiler.reset()
    compiled.require_compiler.cache_clear()


@pytest.mark.thorough
@pytest.mark.parametrize("name", VARIATIONS)
@pytest.mark.usefixtures("traced")
def test_equals_the_plain_model(name: str) -> None:
    config = VARIATIONS[name]
    plain = model(config).eval()
    made = prepare_compiled(plain)
    more = ([30, 1, 30],) if name == next(iter(VARIATIONS)) else ()  # the second size made the sizes symbols
    for lengths in ([5, 5, 60, 2], [7], *more):  # what is compiled once serves batches of every shape
        b = batch(lengths, config)
        torch.testing.assert_close(made(b, ANSWERS).logits, plain(b, ANSWERS).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("traced")
def test_layers_of_one_shape_share_one_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._dynamo.testing

    counter = torch._dynamo.testing.CompileCounter()
    monkeypatch.setattr(compiled, "BACKEND", counter)
    deep = EncoderConfig.uniform(vocabulary=50, hidden=32, layers=6, heads=2, feed_forward=64, max_positions=32)
    made = prepare_compiled(Model(deep, heads(deep)).eval())
    counter.clear()
    made(batch([9, 4], deep), ANSWERS)
    first = counter.frame_count
    made(batch([3, 17, 5], deep), ANSWERS)
    assert first <= 4
    assert counter.frame_count <= first + 2  # once more at most, for sizes that change


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_real_compiler() -> None:
    config = EncoderConfig.uniform(vocabulary=50, hidden=32, layers=1, heads=2, feed_forward=64, max_positions=32)
    plain, b = Model(config, heads(config)).eval(), batch([9, 4], config)
    made = prepare_compiled(plain)(b, ANSWERS).logits
    torch.testing.assert_close(made, prepare(plain)(b, ANSWERS).logits, rtol=1e-4, atol=1e-5)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **options: object) -> object:
        raise RuntimeError("no g++\nat all")

    monkeypatch.setattr(torch, "compile", fails)
    compiled.require_compiler.cache_clear()
    config = next(iter(VARIATIONS.values()))
    with pytest.raises(UserError) as error:
        prepare_compiled(model(config))
    message = "--runtime torch-compile: torch.compile does not work on this machine: no g++; install a C++ compiler"
    assert (str(error.value), error.value.code) == (message, ExitCode.ENVIRONMENT)
    compiled.require_compiler.cache_clear()


@pytest.mark.usefixtures("traced")
def test_int8_products_are_near() -> None:
    pytest.importorskip("torchao")
    config = EncoderConfig.uniform(vocabulary=50, hidden=64, layers=2, heads=2, feed_forward=128, max_positions=32)
    plain, b = Model(config, heads(config)).eval(), batch([9, 4], config)
    exact = plain(b, Needs()).last_hidden
    near = prepare_compiled(plain, products="int8")(b, Needs()).last_hidden
    apart = float((near - exact).norm() / exact.norm())
    assert 0 < apart < 0.03


@pytest.mark.usefixtures("traced")
def test_what_torchao_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    config = next(iter(VARIATIONS.values()))
    if importlib.util.find_spec("torchao") is None:
        with pytest.raises(UserError, match="torchao is not installed; pip install 'compress-bert\\[torchao\\]'"):
            prepare_compiled(model(config), products="int8")
        return
    with pytest.raises(UserError, match="--runtime torchao-fp8: this device does not support fp8 matrix products"):
        prepare_compiled(model(config), products="fp8")


@pytest.mark.usefixtures("traced")
def test_where_attention_is_one_kernel_a_layer_is_compiled_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, *_: Any) -> Tensor:
        return q + v * bounds[-1]

    monkeypatch.setattr(compiled, "attend_varlen", attend)
    config = EncoderConfig.uniform(vocabulary=50, hidden=32, layers=1, heads=2, feed_forward=64, max_positions=32)
    layer: Any = Model(config).eval().encoder.layers[0]
    made = compiled._CompiledLayer(layer)
    whole = torch.compile(made._run_whole, backend="eager", fullgraph=True, dynamic=True)
    for tokens, longest in ((9, 5), (30, 7), (12, 12)):
        x, bounds = torch.randn(tokens, 32), torch.tensor([0, longest, tokens], dtype=torch.int32)
        expected = made._run_whole(x, bounds, longest, FULL, None)
        torch.testing.assert_close(whole(x, bounds, longest, FULL, None), expected)
