"""Output matrices fitted anew to what a cut left, by least squares on real text (arXiv 2204.09656, section 4.3): no
retraining, a few passes.

Layer after layer, attention before feed-forward: what the cut model feeds into the matrix is fitted to what the whole
model added there, plus what the cut model is behind by then, so that later layers make good for earlier ones. Where
layers share a matrix there is no order: all its layers are fitted together, on what the whole model feeds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from compress.contracts import Batch
from compress.encoder.infer.layer_walk import LayerWalk, without_output
from compress.encoder.infer.linear_fit import LinearFit
from compress.encoder.modules.gates import freeze_weights
from compress.encoder.modules.model import Model
from compress.encoder.modules.tied import SharedLinear
from compress.encoder.reshape.cut import OUTPUTS, KeptUnits, units
from compress.encoder.reshape.students import part_of_layer


@dataclass(frozen=True)
class Cut:
    """A cut model: `prune_units(source, kept)`. layers: which of the source's layers its own are, where it has fewer
    and none are shared; what a layer that is not there would have added is fitted by the next one."""

    made: Model
    kept: KeptUnits
    layers: Sequence[int] | None = None


def refit(
    made: Model,
    source: Model,
    kept: KeptUnits,
    batches: Sequence[Batch],
    stop: Callable[[], None],
    layers: Sequence[int] | None = None,
) -> None:
    """Fit, in place, the output matrices of one cut model: see `refit_all`."""
    refit_all([Cut(made, kept, layers)], source, batches, stop)


def refit_all(cuts: Sequence[Cut], source: Model, batches: Sequence[Batch], stop: Callable[[], None]) -> None:
    """Fit, in place, the output matrices of cut models to what `source` computes, which is computed once for all.

    batches: text without labels, on the models' device. About 4 states (T, D) of all texts are held at a time, and one
    more for each model.
    """
    with ExitStack() as stack:
        for model in (source, *(cut.made for cut in cuts)):
            stack.enter_context(freeze_weights(model))
        stack.enter_context(torch.no_grad())
        if all(len(unit) == 1 for part in OUTPUTS for unit in units(source.config, part)):
            _one_by_one(cuts, source, batches, stop)
        else:
            for cut in cuts:
                _at_once(cut.made, source, cut.kept, batches, stop)


def _one_by_one(cuts: Sequence[Cut], source: Model, batches: Sequence[Batch], stop: Callable[[], None]) -> None:
    texts = [LayerWalk(source, batch) for batch in batches]
    ours = [[LayerWalk(cut.made, batch) for batch in batches] for cut in cuts]
    for number in range(source.config.depth):
        targets = []
        for text in texts:
            stop()
            targets.append(_step(text))
        for cut, read in zip(cuts, ours, strict=True):
            layers = range(source.config.depth) if cut.layers is None else cut.layers
            if number < _count_whole_layers(cut, source):
                for text, whole in zip(read, texts, strict=True):
                    text.advance(whole.x)
            elif number in layers:
                _fit_layer(read, targets, stop)


def _count_whole_layers(cut: Cut, source: Model) -> int:
    """How many layers from the first on lack nothing: they read what those of the whole model read, and are as they
    should be."""
    shapes = source.config.layers
    layers = range(len(shapes)) if cut.layers is None else cut.layers
    pairs = enumerate(zip(layers, cut.made.config.layers, strict=True))
    changed = (place for place, (number, shape) in pairs if number != place or shape != shapes[place])
    return next(changed, len(layers))


def _fit_layer(texts: Sequence[LayerWalk], targets: Sequence[_Target], stop: Callable[[], None]) -> None:
    """Fit both output matrices of the next layer of the cut model, and take the texts through it. Every half of the
    layer runs once, but for the feed-forward part: twice, since what its output matrix reads is wider than all else
    that is kept."""
    layer = texts[0].layer
    attention: Any = layer.attention.output
    down: Any = layer.feed_forward.down
    first, second = LinearFit(attention, 1), LinearFit(down, 1)
    contexts = []
    for text, target in zip(texts, targets, strict=True):
        stop()
        with without_output(layer, "attention"):
            contexts.append(text.attend())
        first.add(contexts[-1], target.attended - text.x)
    first.solve([] if attention.bias is None else [attention.bias])
    for text, context, target in zip(texts, contexts, targets, strict=True):
        stop()
        text.x = layer.add_attention(text.x, attention(context))
        with without_output(layer, "feed_forward"):
            second.add(layer.feed(text.x), target.fed - text.x)
    second.solve([] if down.bias is None else [down.bias])
    for text in texts:
        text.advance(layer.add_feed_forward(text.x, layer.feed(text.x)))


class _Target(NamedTuple):
    """(T, D) what a layer of the whole model comes to, before any norm: attended: its attention with what it reads.
    fed: its feed-forward part with what that reads."""

    attended: Tensor
    fed: Tensor


def _step(text: LayerWalk) -> _Target:
    """Take a text through the next layer of the whole model."""
    layer, before, attended = text.layer, text.x, text.attend()
    middle = layer.add_attention(before, attended)
    added = layer.feed(middle)
    text.advance(layer.add_feed_forward(middle, added))
    return _Target(attended + before, added + middle)


def _at_once(made: Model, source: Model, kept: KeptUnits, batches: Sequence[Batch], stop: Callable[[], None]) -> None:
    for part, name in OUTPUTS.items():
        for unit, layers in enumerate(units(source.config, part)):
            whole, less = ([part_of_layer(m, i, (part, name)) for i in layers] for m in (source, made))
            own = list({id(m.bias): m.bias for m in less}.values()) if less[0].bias is not None else []
            fit = LinearFit(less[0], len(own))
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


def _noting(fit: LinearFit, ours: Any, at: Tensor, layer: int):
    """A hook on a matrix of the whole model. ours: the one of the cut model, whose own residual adds what it adds: the
    shared matrix is fitted to the rest."""

    def hook(_: nn.Module, given: tuple[Tensor, ...], y: Tensor) -> None:
        x = given[0][..., at.to(y.device)]
        fit.add(x, y - ours.residual(x) if isinstance(ours, SharedLinear) and ours.rank else y, layer)

    return hook


def _inputs(source: Model, kept: KeptUnits, part: str, unit: int) -> Tensor:
    """(n,) which inputs of the whole model's matrix are left."""
    if part == "feed_forward":
        return torch.tensor(kept.neurons[unit])
    width = source.config.layers[units(source.config, part)[unit][0]].head_width
    return (torch.tensor(kept.heads[unit])[:, None] * width + torch.arange(width)).flatten()
