"""The table of building blocks, measured once on this device and kept.

Small models (`samples`) are written and timed in turn as whole models are. Milliseconds are the least of many rounds:
what else runs on the machine only ever adds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import compress
from compress.console import Console
from compress.contracts import Batch, Watch, unwatched
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.errors import UserError
from compress.fit.cost.assembly import SampleCost, assemble_blocks
from compress.fit.cost.blocks import Blocks
from compress.fit.cost.samples import Sample, choose_samples, count_bytes, count_rows, make_sample
from compress.fit.cost.serving import Serving, build_batch, content, count_stored_bytes, open_model
from compress.onnx.runtimes import versions
from compress.storage import atomic, safe
from compress.storage.cache import cache_folder
from compress.training.precision import serving_precision
from evaluation.cost.device import describe
from evaluation.cost.least import find_least
from evaluation.cost.memory import return_pages
from evaluation.cost.size import MB

MORE_ROWS = 1024
"""Of a word table, by which two files differ that tell what a row takes."""
FOLDER = "blocks"
"""Of the cache, where tables are kept."""
Built = dict[Sample, tuple[Callable[[Batch], object], int]]
"""Small models: what answers a batch, and their bytes."""


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
        **describe_shape(config, heads),
    }


def describe_shape(config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, dict[str, object]]:
    """All of a model that a table depends on."""
    return {
        "encoder": {**config.to_dict(), "dropout": 0, "attention_dropout": 0, "vocabulary": 0},
        "heads": {name: head.to_dict() for name, head in heads.items() if name == "task"},
    }


def measure(
    config: EncoderConfig,
    heads: Mapping[str, HeadConfig],
    serving: Serving,
    watch: Watch = unwatched,
    built: Built | None = None,
) -> Blocks:
    """Write and time the samples, in turn. built: as of `table`."""
    built = {} if built is None else built
    ladder = choose_samples(config, heads, serving)
    wanted, small = ladder.samples, count_rows(config)
    with watch("building small models to time", len(wanted), "models") as progress:
        for done, sample in enumerate(wanted, 1):
            if sample not in built:
                built[sample] = _build(sample, config, heads, serving)
                return_pages()
            progress.update(done)
    batch = build_batch(dataclasses.replace(config, vocabulary=small), serving)
    least, busy = _least([partial(built[sample][0], batch) for sample in wanted], serving.device, watch)
    found = {sample: SampleCost(ms, built[sample][1] / MB) for sample, ms in zip(wanted, least, strict=True)}
    rows = {
        (sample.word, sample.rank): measure_row(sample, built[sample][1], config, heads, serving)
        for sample in ladder.tables
    }
    return assemble_blocks(ladder, found, rows, small, busy)


def measure_row(
    sample: Sample, size: int, config: EncoderConfig, heads: Mapping[str, HeadConfig], serving: Serving
) -> float:
    """Megabytes of a row of a sample's word table. size: bytes of the sample."""
    return (count_bytes(sample, config, heads, serving, count_rows(config) + MORE_ROWS) - size) / MB / MORE_ROWS


def _least(calls: Sequence[Callable[[], object]], device: str, watch: Watch = unwatched) -> tuple[list[float], bool]:
    with watch(f"timing {len(calls)} small models", None, "rounds") as progress:
        return find_least(calls, device=device, told=progress.update)


def _build(
    sample: Sample, config: EncoderConfig, heads: Mapping[str, HeadConfig], serving: Serving
) -> tuple[Callable[[Batch], object], int]:
    """What answers a batch, and the bytes that are deployed."""
    made = make_sample(sample, config, heads, serving, count_rows(config)).to(serving.device)
    if not serving.writes:
        return open_model(made, serving), count_stored_bytes(made)
    written = content(made.cpu())
    return open_model(made, serving, written), len(written)
