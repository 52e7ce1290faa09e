"""Latency table of building blocks on this device, measured once and cached.

A model takes the sum of its blocks and a rest (embeddings, norms, heads): measured within 1.4 % of ten uneven models in
another runtime. Blocks are timed on random weights, in turn; between two sizes that were timed time is taken to grow
evenly, and never to fall.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import compress
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.infer.prepare import DTYPES, prepare
from compress.encoder.modules.layers import EncoderLayer, LayerTrace
from compress.encoder.modules.layout import PackedLayout
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import COUNTED, units
from compress.errors import UserError
from compress.predict.predictor import build_fixed_batch
from compress.recipe.schema import LatencySpec
from compress.stages.prune_width.costs import Costs, Counts
from compress.stages.shared.timing import build_call, measure_calls
from compress.storage import atomic, safe
from compress.storage.cache import cache_folder
from compress.training.precision import serving_precision
from evaluation.cost.device import describe

STEPS = 12
"""Sizes of each kind that are timed."""


@dataclass(frozen=True)
class Table:
    """Milliseconds of one layer's attention by its number of heads, and of its feed-forward part by its width.

    attention: for each kind of attention (by its window), (counts, ms).  feed_forward: (counts, ms).  whole: ms of the
    whole model as it was timed.  busy: whether something else used the processor meanwhile.
    """

    attention: Mapping[str, tuple[list[int], list[float]]]
    feed_forward: tuple[list[int], list[float]]
    whole: float
    busy: bool

    def costs(self, config: EncoderConfig) -> Costs:
        """Of a model with the layers of `config`, which the table was made for."""
        heads, neurons = [], []
        for unit in units(config, "attention"):
            count = config.layers[min(unit)].heads
            heads.append(sum(_curve(*self.attention[_kind(config, layer)], count) for layer in unit))
        for unit in units(config, "feed_forward"):
            neurons.append(_curve(*self.feed_forward, config.layers[min(unit)].feed_forward) * len(unit))
        blocks = Costs(0.0, tuple(heads), tuple(neurons), "ms")
        rest = max(0.0, self.whole - blocks.of(Counts.of(config)))
        return dataclasses.replace(blocks, fixed=rest)


def _curve(counts: Sequence[int], ms: Sequence[float], most: int) -> np.ndarray:
    return np.interp(np.arange(most + 1), counts, np.maximum.accumulate(ms))


def _kind(config: EncoderConfig, layer: int) -> str:
    return str(config.patterns[layer].window)


def table(config: EncoderConfig, heads: Mapping[str, HeadConfig], plan: LatencySpec, device: str) -> tuple[Table, Path]:
    """The table for models of this width, and where it is kept: read, or measured now and written.

    Raises UserError for a table that is damaged.
    """
    key = _key(config, heads, plan, device)
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    path = cache_folder() / "latency" / f"{digest[:32]}.json"
    if path.is_file():
        return _read(path), path
    made = measure(config, heads, plan, device)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_json(path, {"made_for": key, **dataclasses.asdict(made)})
    return made, path


def _read(path: Path) -> Table:
    found = safe.read_json(path)
    try:
        attention = {name: (list(x), list(y)) for name, (x, y) in found["attention"].items()}
        counts, ms = found["feed_forward"]
        return Table(attention, (list(counts), list(ms)), float(found["whole"]), bool(found["busy"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        do = "remove the file to have it measured again"
        raise UserError("not a latency table", where=str(path), do=do) from None


def _key(config: EncoderConfig, heads: Mapping[str, HeadConfig], plan: LatencySpec, device: str) -> dict[str, object]:
    """All that a table depends on."""
    return {
        "format": 2,
        "version": compress.__version__,
        "device": describe(device),
        "precision": serving_precision("auto", device),
        "batch": plan.batch,
        "length": min(plan.tokens, config.max_positions),
        "encoder": {**config.to_dict(), "dropout": 0, "attention_dropout": 0, "vocabulary": 0},
        "heads": {name: head.to_dict() for name, head in heads.items() if name == "task"},
    }


def measure(config: EncoderConfig, heads: Mapping[str, HeadConfig], plan: LatencySpec, device: str) -> Table:
    """Time the building blocks and the whole model, in turn."""
    most = [max(getattr(shape, name) for shape in config.layers) for name in COUNTED.values()]
    sizes = [np.unique(np.linspace(1, n, min(n, STEPS)).round().astype(int)).tolist() for n in most]
    rows = max(map(len, sizes))
    padded = [[*x, *[x[-1]] * (rows - len(x))] for x in sizes]
    width = config.layers[0].head_width
    kinds = list(dict.fromkeys(_kind(config, layer) for layer in range(config.depth)))
    blocks = dataclasses.replace(
        config,
        layers=tuple(LayerShape(h, width, f) for h, f in zip(*padded, strict=True)),
        vocabulary=config.pad_id + 8,
        layer_groups=None,
        sharing=None,
        windows=(1,) * rows if config.global_projections else None,  # the pattern is given at each call
        global_tokens=config.global_tokens if config.global_projections else 0,
        first_norm=True,
        rotary_bases=None if config.rotary_bases is None else (config.rotary_bases[0],) * rows,
    )
    precision = serving_precision("auto", device)
    model = prepare(Model(blocks).to(device), precision).model
    batch = build_fixed_batch(blocks, plan.batch, min(plan.tokens, config.max_positions)).to(device)
    x = torch.randn(batch.tokens, config.hidden, device=device, dtype=DTYPES[precision])
    layout, turns = PackedLayout.of(batch), model.encoder.turns(batch.position_ids)
    calls, names = [], []
    for place, layer in enumerate(model.encoder.layers):
        assert isinstance(layer, EncoderLayer)
        if place < len(sizes[0]):
            for kind in kinds:
                pattern = config.patterns[[_kind(config, n) for n in range(config.depth)].index(kind)]
                calls.append(
                    lambda one=layer, p=pattern, t=turns[place]: one.attention(
                        x, layout, LayerTrace(False, False), p, t
                    )
                )
                names.append((kind, sizes[0][place]))
        if place < len(sizes[1]):
            calls.append(lambda one=layer: one.feed_forward(x))
            names.append(("", sizes[1][place]))
    calls.append(build_call(Model(config, {k: v for k, v in heads.items() if k == "task"}).to(device), plan, device))
    with torch.inference_mode():
        found = measure_calls(calls, plan, device)
    times = {name: latency.p50 for name, latency in zip(names, found, strict=False)}
    attention = {kind: (sizes[0], [times[kind, n] for n in sizes[0]]) for kind in kinds}
    inner = (sizes[1], [times["", n] for n in sizes[1]])
    return Table(attention, inner, found[-1].p50, any(latency.contaminated for latency in found))


__all__ = ["Table", "measure", "table"]
