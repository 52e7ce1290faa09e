"""A kit: one file that times the blocks of a model, or a fitted model, on a machine that has numpy and a runtime alone.

It is a Python archive (zipapp) of ONNX files, their description, and the files of this program that time them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import compress
import evaluation
from compress.contracts import Watch, unwatched
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.fit.cost.block_table import describe_shape, measure_row
from compress.fit.cost.samples import choose_samples, count_rows, make_sample, repeat_weights
from compress.fit.cost.serving import Bits, InputRanges, Serving, build_batch, content, quantize_to_bits
from compress.fit.cost.text_costs import SHORTEST, choose_lengths
from compress.fit.target.kit_program import DESCRIPTION, FORMAT, MODELS
from compress.modelfolder.folder import LoadedModel
from compress.storage import archive
from evaluation.cost.size import MB

SUFFIX, WHOLE = ".pyz", "whole.onnx"
LONGEST = 128
"""Tokens of the longest sequences that are timed where no lengths are given."""
NARROW = 0.3
"""Of the heads and neurons, what a second whole model keeps by which sums of blocks are corrected."""
START = """import sys
from pathlib import Path
from zipfile import ZipFile

if sys.version_info < (3, 11):
    sys.exit("Python 3.11 or newer is required")

archive = Path(__file__).parent
try:
    damaged = ZipFile(archive).testzip() is not None
except Exception:  # which one depends on the bytes that changed
    damaged = True
if damaged:
    sys.exit(f"{archive.name}: the file is damaged; copy it here again")

try:
    from compress.fit.target.kit_program import main
except ModuleNotFoundError as error:
    if error.name != "numpy":
        raise
    sys.exit("numpy is required: pip install numpy")

sys.exit(main(archive))
"""
PROGRAM = (
    "compress/__init__.py", "compress/cpus.py", "compress/errors.py", "compress/fit/__init__.py",
    "compress/fit/target/__init__.py", "compress/fit/target/kit_program.py", "compress/onnx/__init__.py",
    "compress/onnx/axes.py", "compress/onnx/start.py", "compress/storage/__init__.py", "compress/storage/disk.py",
    "evaluation/__init__.py", "evaluation/cost/__init__.py", "evaluation/cost/cpu.py", "evaluation/cost/latency.py",
    "evaluation/cost/least.py",
)  # fmt: skip
"""What a kit carries of this program: what `kit_program` imports."""


def build_kit(loaded: LoadedModel, lengths: Sequence[int], watch: Watch = unwatched) -> bytes:
    """The kit that times the blocks of a model's shape. Its files have random weights. lengths: in tokens, that it
    times by default."""
    return archive.pack(_list_block_files(loaded, lengths, watch))


def build_model_kit(file: Path, description: Mapping[str, Any], whole: bytes | None = None) -> bytes:
    """The kit that times a deployed file. description: as `time_model` reads it, without the files' names.  whole: the
    file of `write_whole`, if the description says what it took on the target."""
    described = {"format": FORMAT, "file": file.name, **description}
    files = [(file.name, file.read_bytes())]
    if whole is not None:
        described["whole"] = {"file": WHOLE, **description["whole"]}
        files.append((WHOLE, whole))
    return archive.pack([*files, *_list_program(described)])


def write_whole(config: EncoderConfig, heads: Mapping[str, HeadConfig], ranges: InputRanges = "per-token") -> bytes:
    """The ONNX file of a model of this shape in 8 bits, with random weights."""
    made, serving = repeat_weights(Model(config, {"task": heads["task"]}).initialize(0)).eval(), Serving("onnxruntime")
    bits = dataclasses.replace(Bits.uniform(8), ranges=ranges)
    return content(quantize_to_bits(made, bits, serving, [build_batch(config, serving)]))


def _list_block_files(loaded: LoadedModel, lengths: Sequence[int], watch: Watch) -> Iterator[tuple[str, bytes]]:
    """Each file when it is asked for: together they may not fit into memory."""
    config, heads, serving = loaded.config, loaded.heads, Serving("onnxruntime")
    ladder = choose_samples(config, heads, serving)
    wanted, small = ladder.samples, count_rows(config)
    samples, rows = [], {}
    with watch("writing small models", len(wanted), "models") as progress:
        for place, sample in enumerate(wanted):
            written = content(make_sample(sample, config, heads, serving, small))
            name = f"blocks/{place}.onnx"
            yield name, written
            samples.append({"file": name, **dataclasses.asdict(sample), "mb": len(written) / MB})
            if sample in ladder.tables:
                rows[f"{sample.word}/{sample.rank}"] = measure_row(sample, len(written), config, heads, serving)
            progress.update(place + 1)
        yield "whole.onnx", write_whole(config, heads)
        yield "narrow.onnx", write_whole(narrow(config), heads)
        yield "static.onnx", write_whole(config, heads, "static")
    description = {
        "format": FORMAT, "compress": compress.__version__, "shape": describe_shape(config, heads),
        "positions": config.max_positions, "rows": small, "vocabulary": config.vocabulary,
        "lengths": list(lengths), "samples": samples, "rows_mb": rows,
        **{name: {"file": f"{name}.onnx"} for name in MODELS},
    }  # fmt: skip
    yield from _list_program(description)


def default_lengths(config: EncoderConfig) -> list[int]:
    """Those that are timed where none are given: 8, 16, 32 … up to LONGEST, or to what the model reads."""
    return choose_lengths(SHORTEST, LONGEST, config.max_positions)


def narrow(config: EncoderConfig) -> EncoderConfig:
    """With NARROW of the heads and neurons of every layer."""
    layers = [
        dataclasses.replace(
            one, heads=max(1, round(NARROW * one.heads)), feed_forward=max(1, round(NARROW * one.feed_forward))
        )
        for one in config.layers
    ]
    return dataclasses.replace(config, layers=tuple(layers))


def _list_program(description: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """What a kit holds beside its models."""
    roots = {"compress": Path(compress.__file__).parents[1], "evaluation": Path(evaluation.__file__).parents[1]}
    yield DESCRIPTION, json.dumps(description, indent=1).encode()
    for name in PROGRAM:
        yield name, (roots[name.partition("/")[0]] / name).read_bytes()
    yield "__main__.py", START.encode()
