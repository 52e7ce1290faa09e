"""Output matrices fitted anew to what a cut left, by least squares on real text (arXiv 2204.09656, section 4.3): no
retraining, a few passes.

Layer after layer, attention before feed-forward: what the cut model feeds into the matrix is fitted to what the whole
model added there, plus what the cut model is behind by then, so that later layers make good for earlier ones. Where
layers share a matrix there is no order: all its layers are fitted together, on what the whole model feeds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from compress.contracts import Batch
from compress.encoder.infer.statistics import ridge
from compress.encoder.modules.gates import freeze_weights
from compress.encoder.modules.layers import EncoderLayer, LayerTrace
from compress.encoder.modules.layout import PackedLayout
from compress.encoder.modules.model import Model
from compress.encoder.modules.tied import SharedLinear
from compress.encoder.reshape.cut import OUTPUTS, KeptUnits, units


def refit(
    made: Model,
    source: Model,
    kept: KeptUnits,
    batches: Sequence[Batch],
    stop: Callable[[], None],
    layers: Sequence[int] | None = None,
) -> None:
    """Fit, in place, the output matrices of `made`, which is `prune_units(source, kept)`, to what `source` computes.

    batches: text without labels, on the models' device.  layers: which layers of `source` those of `made` are, where it
    has fewer and none are shared; what a layer that is not there would have added is fitted by the next one.
    """
    with freeze_weights(made), freeze_weights(source), torch.no_grad():
        if all(len(unit) == 1 for part in OUTPUTS for unit in units(source.config, part)):
            _one_by_one(made, source, batches, stop, range(source.config.depth) if layers is None else layers)
        else:
            _at_once(made, source, kept, batches, stop)


class _Fit:
    """Normal equations of W x + b for targets y; b is one vector, or one for each of several layers."""

    def __init__(self, module: Any, layers: int) -> None:
        self.module, self.biases = module, 0 if module.bias is None else layers
        size = module.in_features + self.biases
        self.left = torch.zeros(size, size, dtype=torch.float64)
        self.right = torch.zeros(module.out_features, size, dtype=torch.float64)
        self.tokens = 0

    def add(self, x: Tensor, y: Tensor, layer: int = 0) -> None:
        """x (T, n), y (T, m) of the layer with this bias."""
        ones = x.new_zeros(len(x), self.biases)
        if self.biases:
            ones[:, min(layer, self.biases - 1)] = 1
        x = torch.cat([x, ones], 1).float()
        self.left += (x.T @ x).double().cpu()
        self.right += (y.float().T @ x).double().cpu()
        self.tokens += len(x)

    def solve(self, biases: Sequence[Tensor]) -> None:
        """Write weight and biases; where the text does not say, what was there stays."""
        weight = self.module.weight
        before = torch.cat([weight.double().cpu(), *(b.double().cpu()[:, None] for b in biases)], 1)
        found = ridge(self.left, self.right, before, self.tokens)
        weight.copy_(found[:, : weight.shape[1]])
        for bias, column in zip(biases, found[:, weight.shape[1] :].T, strict=True):
            bias.copy_(column)


class _Seen:
    """What a layer reads and adds while it runs."""

    def __init__(self, layer: EncoderLayer) -> None:
        self.context = self.inner = self.middle = torch.empty(0)
        middle = layer.output_norm if layer.pre_norm else layer.feed_forward
        self._handles = [
            self._watch(layer.attention.output, "context"),
            self._watch(layer.feed_forward.down, "inner"),
            self._watch(middle, "middle"),
        ]

    def _watch(self, module: nn.Module, name: str):
        return module.register_forward_pre_hook(lambda _, given: setattr(self, name, given[0]))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


def _one_by_one(
    made: Model, source: Model, batches: Sequence[Batch], stop: Callable[[], None], layers: Sequence[int]
) -> None:
    layouts = [PackedLayout.of(b) for b in batches]
    turns = {model: [model.encoder.turns(b.position_ids) for b in batches] for model in (source, made)}
    theirs = [source.encoder.embed(b.input_ids, b.position_ids, b.segment_ids) for b in batches]
    ours = [made.encoder.embed(b.input_ids, b.position_ids, b.segment_ids) for b in batches]
    for number, pattern in enumerate(source.config.patterns):
        whole = source.encoder.layers[number]
        assert isinstance(whole, EncoderLayer)

        def run(model: Model, layer: EncoderLayer, x: Tensor, at: int, place: int, pattern: Any = pattern) -> Tensor:
            return layer(x, layouts[at], LayerTrace(False, False), pattern, turns[model][at][place])

        if number not in layers:
            theirs = [run(source, whole, x, at, number) for at, x in enumerate(theirs)]
            continue
        place = layers.index(number)
        less = made.encoder.layers[place]
        assert isinstance(less, EncoderLayer)
        seen, cut = _Seen(whole), _Seen(less)
        attention: Any = less.attention.output
        down: Any = less.feed_forward.down
        first, second = _Fit(attention, 1), _Fit(down, 1)
        targets, after = [], []
        try:
            for at, (x, y) in enumerate(zip(theirs, ours, strict=True)):
                stop()
                after.append(run(source, whole, x, at, number))
                targets.append((seen.middle, whole.feed_forward.down(seen.inner)))
                run(made, less, y, at, place)
                first.add(cut.context, whole.attention.output(seen.context) + x - y)
            first.solve([] if attention.bias is None else [attention.bias])
            for at, y in enumerate(ours):
                stop()
                run(made, less, y, at, place)
                middle, added = targets[at]
                second.add(cut.inner, added + middle - cut.middle)
            second.solve([] if down.bias is None else [down.bias])
        finally:
            seen.close()
            cut.close()
        ours = [run(made, less, y, at, place) for at, y in enumerate(ours)]
        theirs = after


def _at_once(made: Model, source: Model, kept: KeptUnits, batches: Sequence[Batch], stop: Callable[[], None]) -> None:
    for part, name in OUTPUTS.items():
        for unit, layers in enumerate(units(source.config, part)):
            whole = [getattr(getattr(_layer(source, i), part), name) for i in layers]
            less = [getattr(getattr(_layer(made, i), part), name) for i in layers]
            own = list({id(m.bias): m.bias for m in less}.values()) if less[0].bias is not None else []
            fit = _Fit(less[0], len(own))
            at = _inputs(source, kept, part, unit)
            handles = [
                module.register_forward_hook(_noting(fit, ours, at, index))
                for index, (module, ours) in enumerate(dict(zip(whole, less, strict=True)).items())
            ]
            try:
                for batch in batches:
                    stop()
                    source(batch)
            finally:
                for handle in handles:
                    handle.remove()
            fit.solve(own)


def _noting(fit: _Fit, ours: Any, at: Tensor, layer: int):
    """A hook on a matrix of the whole model. ours: the one of the cut model, whose own residual adds what it adds: the
    shared matrix is fitted to the rest."""

    def hook(_: nn.Module, given: tuple[Tensor, ...], y: Tensor) -> None:
        x = given[0][..., at.to(y.device)]
        fit.add(x, y - ours.residual(x) if isinstance(ours, SharedLinear) and ours.rank else y, layer)

    return hook


def _layer(model: Model, number: int) -> EncoderLayer:
    found = model.encoder.layers[model.config.groups[number]]
    assert isinstance(found, EncoderLayer)
    return found


def _inputs(source: Model, kept: KeptUnits, part: str, unit: int) -> Tensor:
    """(n,) which inputs of the whole model's matrix are left."""
    if part == "feed_forward":
        return torch.tensor(kept.neurons[unit])
    width = source.config.layers[units(source.config, part)[unit][0]].head_width
    return (torch.tensor(kept.heads[unit])[:, None] * width + torch.arange(width)).flatten()
