"""The table of building blocks, measured once on this device and kept.

Models of few layers with random weights are written and timed in turn as whole models are, each with fewer heads or
fewer neurons than the first; differences are what a layer, a head and a neuron cost. Where the last layer computes the
first token alone, two others are made narrower before it, and it by itself. Larger ones of other
shapes are timed with them, and show how well sums foretell. Milliseconds are the least of many rounds: what else runs
on the machine only ever adds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import compress
from compress.console import Console
from compress.contracts import Batch, Progress, Watch, unwatched
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.fit.cost.blocks import Blocks, Curve, LayerCost, TableCost, ranks
from compress.fit.cost.serving import (
    FLOAT,
    Bits,
    Serving,
    build_batch,
    content,
    count_stored_bytes,
    open_model,
    quantize_to_bits,
)
from compress.onnx.runtimes import versions
from compress.storage import atomic, safe
from compress.storage.cache import cache_folder
from compress.training.precision import serving_precision
from evaluation.cost.device import describe
from evaluation.cost.latency import measure_interleaved
from evaluation.cost.size import MB

HEAD_SIZES, NEURON_SIZES = 5, 6
"""Sizes of each kind that are timed; between them time is taken to grow evenly, bytes do."""
ROUNDS, PATIENCE, NEAR = 8, 30.0, 0.03
"""Rounds at a time, until the two best times of nearly all samples are within so much of each other, for at most so
many seconds."""
CHECKED = ((1.0, 1.0, 1.0), (1.0, 0.5, 0.5), (1.0, 0.75, 0.25), (0.67, 1.0, 0.5), (0.5, 0.34, 1.0))
"""Shares of the layers, heads and neurons of the models that sums of blocks are checked against."""
MORE_ROWS = 1024
"""Of a word table, by which two files differ that tell what a row takes."""


FOLDER = "blocks"
"""Of the cache, where tables are kept."""


def table(
    config: EncoderConfig,
    heads: Mapping[str, HeadConfig],
    serving: Serving,
    console: Console,
    built: Built | None = None,
) -> tuple[Blocks, Path]:
    """The table for models of this width and batches of one length, and where it is kept: read, or measured now and
    written. built: small models that were made for another length; more are added."""
    path = place(config, heads, serving)
    if path.is_file():
        try:
            return Blocks.from_json(safe.read_json(path).get("blocks"), str(path)), path
        except UserError:
            console.note(f"the cost table in the cache is damaged and is measured again: {path}")
    console.note(f"measuring the cost of layers, heads and neurons: {serving}")
    made = measure(config, heads, serving, console.slow_progress, built)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_json(path, {"made_for": _key(config, heads, serving), "blocks": made.as_json()})
    return made, path


def place(config: EncoderConfig, heads: Mapping[str, HeadConfig], serving: Serving) -> Path:
    """Where the table is kept: a name for the model's widths, the device, the runtime and its version."""
    key = json.dumps(_key(config, heads, serving), sort_keys=True)
    return cache_folder() / FOLDER / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _key(config: EncoderConfig, heads: Mapping[str, HeadConfig], serving: Serving) -> dict[str, object]:
    """All that a table depends on."""
    return {
        "format": 5,
        "version": compress.__version__,
        "device": describe(serving.device),
        "precision": serving_precision("auto", serving.device),
        "runtime": [serving.runtime, versions()[serving.runtime]],
        "batch": serving.batch,
        "length": min(serving.length, config.max_positions),
        "encoder": {**config.to_dict(), "dropout": 0, "attention_dropout": 0, "vocabulary": 0},
        "heads": {name: head.to_dict() for name, head in heads.items() if name == "task"},
    }


@dataclass(frozen=True)
class _Sample:
    """A small model to write and to time. last: heads and neurons of its last layer, where they are others."""

    depth: int
    heads: int
    neurons: int
    bits: int
    word: int
    rank: int = 0
    last: tuple[int, int] | None = None

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Heads and neurons of each layer."""
        return [(self.heads, self.neurons)] * (self.depth - 1) + [self.last or (self.heads, self.neurons)]


Built = dict[_Sample, tuple[Callable[[Batch], object], int]]
"""Small models: what answers a batch, and their bytes."""


@dataclass(frozen=True)
class _Found:
    ms: float
    mb: float


def measure(
    config: EncoderConfig,
    heads: Mapping[str, HeadConfig],
    serving: Serving,
    watch: Watch = unwatched,
    built: Built | None = None,
) -> Blocks:
    """Write and time the samples, in turn. built: as of `table`."""
    built = {} if built is None else built
    most_heads = max(shape.heads for shape in config.layers)
    most_neurons = max(shape.feed_forward for shape in config.layers)
    counts = [_sizes(most_heads, HEAD_SIZES), _sizes(most_neurons, NEURON_SIZES)]
    most = (config.depth, most_heads, most_neurons)
    first = serving.bits[0]
    words = serving.table_bits[0]
    apart = is_last_layer_apart(heads, serving)
    full = (most_heads, most_neurons)
    depth, end = (3, full) if apart else (2, None)
    ladder = [[(h, most_neurons) for h in counts[0]], [(most_heads, f) for f in counts[1]]]
    samples: list[_Sample] = []
    for bits in serving.bits:
        samples += [_Sample(depth, h, f, bits, words, last=end) for h, f in (*ladder[0], *ladder[1])]
        samples += [_Sample(1, h, f, bits, words) for h, f in ((*ladder[0], *ladder[1]) if apart else (full,))]
    one = _Sample(1, most_heads, most_neurons, first, words)
    for rank in (0, *ranks(config)):
        samples += [dataclasses.replace(one, word=word, rank=rank) for word in serving.table_bits]
    shapes = [[max(1, round(p * n)) for p, n in zip(part, most, strict=True)] for part in CHECKED]
    checks = [_Sample(depth, h, f, first, words) for depth, h, f in shapes]
    samples += checks
    wanted = list(dict.fromkeys(samples))
    with watch("building small models to time", len(wanted), "models") as progress:
        for done, sample in enumerate(wanted, 1):
            if sample not in built:
                built[sample] = _build(sample, config, heads, serving)
            progress.update(done)
    batch = build_batch(dataclasses.replace(config, vocabulary=_vocabulary(config)), serving)
    least, busy = _least([partial(built[sample][0], batch) for sample in wanted], serving.device, watch)
    found = {sample: _Found(ms, built[sample][1] / MB) for sample, ms in zip(wanted, least, strict=True)}

    def of(bits: int, depth: int, shape: tuple[int, int]) -> _Found:
        return found[_Sample(depth, *shape, bits, words, last=end if depth > 1 else None)]

    layer = _cost({bits: _curves(partial(of, bits), depth, full, counts) for bits in serving.bits})
    last = layer
    if apart:
        last = _cost({bits: _last(partial(of, bits, 1), layer, bits, full, counts) for bits in serving.bits})
    whole = found[one]
    rows, small = {}, _vocabulary(config)
    shape = (1, most_heads, most_neurons, first)
    for (word, rank), sample in {
        (s.word, s.rank): s for s in found if (s.depth, s.heads, s.neurons, s.bits) == shape
    }.items():
        more = _bytes(sample, config, heads, serving, small + MORE_ROWS) / MB
        row = (more - found[sample].mb) / MORE_ROWS
        rows[word, rank] = TableCost(
            max(0.0, found[sample].ms - whole.ms) if rank else 0.0, found[sample].mb - whole.mb, row
        )
    ms, mb = (max(0.0, w - x) for w, x in zip((whole.ms, whole.mb), _taken(last, first, full), strict=True))
    # The word rows of the samples are counted with those of the plan.
    tables = {
        k: TableCost(v.ms, v.mb - small * v.row_mb + small * rows[words, 0].row_mb, v.row_mb) for k, v in rows.items()
    }
    whole_ms = np.array([found[s].ms for s in checks])
    sums = np.array([ms + sum(_taken(last if i == s.depth - 1 else layer, first, shape)[0]
                     for i, shape in enumerate(s.shapes)) for s in checks])  # fmt: skip
    ratios = tuple(np.divide(whole_ms, sums, out=np.ones(len(checks)), where=sums > 0).tolist())
    return Blocks(layer, last, tables, ms, mb - small * rows[words, 0].row_mb, busy, ratios)


def _least(calls: Sequence[Callable[[], object]], device: str, watch: Watch = unwatched) -> tuple[list[float], bool]:
    """The least milliseconds of each call, and whether they came out otherwise now and then."""
    begin, minima, done = time.monotonic(), np.zeros((0, len(calls))), 0
    with watch(f"timing {len(calls)} small models", None, "rounds") as progress:
        while True:
            told = partial(_add, progress, done)
            found = measure_interleaved(calls, device=device, warmup=0 if len(minima) else 2, repeats=ROUNDS, told=told)
            done += max(t.repeats for t in found)
            minima = np.sort(np.vstack([minima, [t.minimum for t in found]]), axis=0)
            if len(minima) > 1:
                settled = float(np.mean(minima[1] <= (1 + NEAR) * minima[0])) >= 0.9
                if settled or time.monotonic() - begin > PATIENCE:
                    return minima[0].tolist(), not settled


def _add(progress: Progress, before: int, done: int) -> None:
    progress.update(before + done)


def is_last_layer_apart(heads: Mapping[str, HeadConfig], serving: Serving) -> bool:
    """Whether the last layer takes another time than others: where a file computes its first token alone."""
    return serving.writes and "task" in heads and heads["task"].only_first


def _cost(curves: Mapping[int, tuple[Curve, Curve]]) -> LayerCost:
    return LayerCost({bits: c[0] for bits, c in curves.items()}, {bits: c[1] for bits, c in curves.items()})


def _taken(layer: LayerCost, bits: int, shape: tuple[int, int]) -> tuple[float, float]:
    """Milliseconds and megabytes of a layer of so many heads and neurons."""
    attention, inner = layer.attention[bits].at(np.array(shape[:1])), layer.feed_forward[bits].at(np.array(shape[1:]))
    return float(attention[0][0] + inner[0][0]), float(attention[1][0] + inner[1][0])


def _curves(
    of: Callable[[int, tuple[int, int]], _Found], depth: int, full: tuple[int, int], counts: Sequence[list[int]]
) -> tuple[Curve, Curve]:
    """Of one layer: what its attention takes by heads, norms and all else of it included, and its neurons alone.

    of: what a model takes of so many layers, two of which, or all, have the shape given.  depth: of the larger ones.
    """
    (heads, neurons), two, one = full, of(depth, full), of(1, full)

    def each(name: str) -> tuple[list[float], list[float]]:
        layer = (getattr(two, name) - getattr(one, name)) / (depth - 1)
        by_neurons = [getattr(of(depth, (heads, f)), name) / 2 for f in counts[1]]
        least, size = by_neurons[0], counts[1]
        slope = (by_neurons[-1] - least) / max(1, size[-1] - size[0])
        inner = [max(0.0, x - least + slope * size[0]) for x in by_neurons]
        by_heads = [(getattr(of(depth, (h, neurons)), name) - getattr(two, name)) / 2 for h in counts[0]]
        return [max(0.0, layer - inner[-1] + x) for x in by_heads], inner

    (ms_heads, ms_inner), (mb_heads, mb_inner) = each("ms"), each("mb")
    return (
        Curve(tuple(counts[0]), tuple(ms_heads), tuple(mb_heads)),
        Curve(tuple(counts[1]), tuple(ms_inner), tuple(mb_inner)),
    )


def _last(
    of: Callable[[tuple[int, int]], _Found],
    layer: LayerCost,
    bits: int,
    full: tuple[int, int],
    counts: Sequence[list[int]],
) -> tuple[Curve, Curve]:
    """Of the last layer, which always stays: what heads and neurons take beyond the fewest; its bytes are any layer's.

    of: what a model of this layer alone takes.
    """
    ms_heads = [of((h, full[1])).ms for h in counts[0]]
    ms_inner = [of((full[0], f)).ms for f in counts[1]]
    return (
        dataclasses.replace(layer.attention[bits], ms=tuple(max(0.0, x - ms_heads[0]) for x in ms_heads)),
        dataclasses.replace(layer.feed_forward[bits], ms=tuple(max(0.0, x - ms_inner[0]) for x in ms_inner)),
    )


def _sizes(most: int, count: int) -> list[int]:
    return np.unique(np.linspace(1, most, min(most, count)).round().astype(int)).tolist()


def _vocabulary(config: EncoderConfig) -> int:
    return config.pad_id + 8


def _model(sample: _Sample, config: EncoderConfig, heads: Mapping[str, HeadConfig], vocabulary: int) -> Model:
    width = config.layers[0].head_width
    small = dataclasses.replace(
        config,
        layers=tuple(LayerShape(heads, width, neurons) for heads, neurons in sample.shapes),
        vocabulary=vocabulary,
        embedding=sample.rank or config.embedding,
        project_first=bool(sample.rank) or config.project_first,
        layer_groups=None,
        sharing=None,
        windows=None,
        global_tokens=0,
        first_norm=True,
        rotary_bases=None if config.rotary_bases is None else (config.rotary_bases[0],) * sample.depth,
    )
    return Model(small, {k: v for k, v in heads.items() if k == "task"}).initialize(0).eval()


def _build(
    sample: _Sample, config: EncoderConfig, heads: Mapping[str, HeadConfig], serving: Serving
) -> tuple[Callable[[Batch], object], int]:
    """What answers a batch, and the bytes that are deployed."""
    made = quantize_to_bits(_model(sample, config, heads, _vocabulary(config)), _bits(sample), serving).to(
        serving.device
    )
    if not serving.writes:
        return open_model(made, serving), count_stored_bytes(made)
    written = content(made)
    return open_model(made, serving, written), len(written)


def _bytes(
    sample: _Sample, config: EncoderConfig, heads: Mapping[str, HeadConfig], serving: Serving, vocabulary: int
) -> int:
    made = quantize_to_bits(_model(sample, config, heads, vocabulary), _bits(sample), serving)
    return len(content(made)) if serving.writes else count_stored_bytes(made)


def _bits(sample: _Sample) -> Bits:
    # Tables are rounded alike whatever the matrices are, so that these alone make the difference.
    return Bits({"encoder.layers.*": sample.bits}, sample.word, FLOAT if sample.word == FLOAT else 8)
