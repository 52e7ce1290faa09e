"""What `compress analyze --quantization` measures, against the same figures computed at once; and its plots."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET

import pytest
import torch
import torch.nn.functional as F

from compress.analyze import quantization as told
from compress.analyze.rounding import WAYS, Rounding, measure_rounding
from compress.analyze.subject import Analysis
from compress.contracts import Batch, Needs
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.schemes import QuantizationSpec
from compress.encoder.integers.convert import plan_quantization, quantize_model
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.predict.predictor import build_fixed_batch
from compress.quantizers.min_max import Quantizer as MinMax
from compress.quantizers.per_channel import Quantizer as PerChannel
from compress.quantizers.per_token import Quantizer as PerToken

CONFIG = EncoderConfig.uniform(vocabulary=50, hidden=64, layers=2, heads=4, feed_forward=96)


def small(config: EncoderConfig = CONFIG) -> Model:
    return Model(config, {}).initialize(1).eval()


def looked(model: Model, *batches: Batch) -> Rounding:
    return measure_rounding(model, lambda: batches, "here")


def inputs_of(model: Model, name: str, *batches: Batch) -> torch.Tensor:
    """(T, K): all that a module is given."""
    seen: list[torch.Tensor] = []
    hook = model.get_submodule(name).register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    with torch.no_grad():
        for batch in batches:
            model(batch, Needs())
    hook.remove()
    return torch.cat(seen)


def test_figures_of_batches_are_those_of_all_at_once() -> None:
    model, batches = small(), [build_fixed_batch(CONFIG, rows, 9) for rows in (3, 1, 5)]
    found = looked(model, *batches)
    assert [given.readers[0] for given in found.inputs] == [
        f"encoder.layers.{layer}.{part}"
        for layer in (0, 1)
        for part in ("attention.query", "attention.output", "feed_forward.up", "feed_forward.down")
    ]
    assert [name.rpartition(".")[2] for name in found.inputs[0].readers] == ["query", "key", "value"]
    name = "encoder.layers.1.feed_forward.down"
    given = found.inputs[-1]
    x = inputs_of(model, name, *batches)
    assert (given.tokens, given.numbers) == (81, x.numel())
    assert (given.seen.low, given.seen.high) == (float(x.min()), float(x.max()))
    assert given.mean == pytest.approx(float(x.double().mean()), rel=1e-5)
    assert given.deviation == pytest.approx(float(x.double().std(correction=0)), rel=1e-5)
    far = (x.double() - given.mean).abs() > 6 * given.deviation
    assert {d: share for d, share, _ in given.outliers()} == {
        d: int(far[:, d].sum()) / len(x) for d in far.any(0).nonzero().flatten().tolist()
    }

    matrix: torch.Tensor = model.get_submodule(name).weight.detach()  # type: ignore[operator]
    rounded = PerChannel(tuple(matrix.shape), overflow_safe=True)(matrix)
    static = MinMax()
    static.observe(x)
    static.freeze()
    wanted = F.linear(x, matrix)
    for way, read in zip(WAYS, (x, PerToken()(x), static(x)), strict=True):
        error = (F.linear(read, rounded) - wanted).norm() / wanted.norm()
        assert found.products[name].error(way) == pytest.approx(float(error), rel=1e-4)
    noise = (rounded - matrix).norm()
    assert found.products[name].sqnr == pytest.approx(float(20 * torch.log10(matrix.norm() / noise)), rel=1e-4)


def test_one_dimension_far_out_costs_static_ranges_most() -> None:
    model, batch = small(), build_fixed_batch(CONFIG, 4, 12)
    plain = looked(model, batch)
    with torch.no_grad():
        model.encoder.layers[0].output_norm.bias[7] = 60.0  # type: ignore[union-attr]
        model.encoder.layers[1].attention.value.weight[:, 7] = 0  # type: ignore[union-attr]
    found = looked(model, batch)
    given = next(g for g in found.inputs if g.readers[0] == "encoder.layers.1.attention.query")
    assert given.outliers()[0][:2] == (7, 1.0)
    name = "encoder.layers.1.attention.value"
    assert plain.products[name].error("static") < 0.03 < found.products[name].error("static")
    shown = Analysis()
    told._ranges(found, shown)
    told._outliers(found, shown)
    told._errors(found, shown)
    assert shown.lines[0].startswith("hidden dimension 7 exceeds 6 standard deviations in up to 100.0 % of the tokens")
    assert set(shown.plots) == {
        "quantization-ranges", "quantization-outliers", *(f"quantization-errors-{way}" for way in WAYS)
    }  # fmt: skip
    for plot in shown.plots.values():
        ET.fromstring(plot)
    assert len(shown.tables["quantization-errors"][1][1]) == 12


def test_a_layer_that_is_used_twice_counts_both_uses() -> None:
    config = dataclasses.replace(CONFIG, layer_groups=(0, 0))
    found = looked(small(config), build_fixed_batch(config, 2, 5))
    assert [given.tokens for given in found.inputs] == [20] * 4


def test_what_cannot_be_looked_at() -> None:
    model = small()
    whole = quantize_model(model, plan_quantization(QuantizationSpec(), model))
    with pytest.raises(UserError, match="quantized already") as caught:
        looked(whole, build_fixed_batch(CONFIG, 1, 3))
    assert caught.value.where == "here"
    with torch.no_grad():
        model.encoder.layers[1].feed_forward.up.weight[0] = float("nan")  # type: ignore[union-attr]
    with pytest.raises(UserError, match="its input contains NaN or infinity") as caught:
        looked(model, build_fixed_batch(CONFIG, 1, 3))
    assert caught.value.where == "encoder.layers.1.feed_forward.down"
