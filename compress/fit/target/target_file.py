"""What a kit wrote on another machine: read, and checked key by key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import compress
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.errors import UserError, describe, did_you_mean, format_count, printable
from compress.fit.cost.assembly import SampleCost, assemble_blocks
from compress.fit.cost.block_table import describe_shape
from compress.fit.cost.blocks import Blocks
from compress.fit.cost.samples import Sample, choose_samples, count_rows
from compress.fit.cost.serving import Serving
from compress.fit.target.kit_program import FORMAT, RUNTIMES
from compress.storage import safe

AGAIN = "measure it again: compress profile MODEL --output FILE"
LIMIT = 1 << 24
"""Bytes of a target file."""
KINDS = {"model_type": "not a mapping", "dict_type": "not a mapping", "tuple_type": "not a list"}
"""Complaints that pydantic words with names of our classes."""
Milliseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Megabytes = Annotated[float, Field(ge=0, allow_inf_nan=False)]


Content = TypeVar("Content", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class TimedLength(_Strict):
    """At one length."""

    ms: tuple[Milliseconds, ...]
    """Of each sample, in their order."""
    whole: Milliseconds
    """Of a model of the whole shape in 8 bits."""
    narrow: Milliseconds
    """The same with fewer heads and neurons, see `kit.narrow`."""
    static: Milliseconds | None = None
    """The whole shape with static input ranges; files of earlier versions lack it."""
    busy: bool
    """Whether something else used the processor."""


class TimedRuntime(_Strict):
    """In one runtime."""

    version: str
    lengths: Annotated[dict[Annotated[int, Field(gt=0)], TimedLength], Field(min_length=1)]
    """By tokens."""


class TimedSample(_Strict):
    """A small model, see `Sample`. mb: megabytes of its file."""

    depth: int
    heads: int
    neurons: int
    bits: int
    word: int
    rank: int
    last: tuple[int, int] | None
    mb: Megabytes


class Device(_Strict):
    """What was timed on."""

    device: str
    device_kind: Literal["cpu"]
    threads: Annotated[str, Field(pattern="^[1-9][0-9]*$")]
    cpu_flags: str
    limits: str
    """Variables that kept the runtime from instruction sets of the processor."""


class TargetContent(_Strict):
    """All of a target file. shape: see `describe_shape`.  rows_mb: "bits/rank" of a word table → megabytes of a row."""

    format: Literal[1]
    compress: str
    shape: dict[str, dict[str, Any]]
    rows_mb: dict[str, Megabytes]
    device: Device
    batch: Annotated[int, Field(gt=0)]
    samples: tuple[TimedSample, ...]
    runtimes: Annotated[dict[Literal["onnxruntime", "openvino"], TimedRuntime], Field(min_length=1)]


@dataclass(frozen=True)
class Target:
    """A machine that serves: what blocks of models of one shape take there. digest: of the file's content."""

    path: Path
    digest: str
    content: TargetContent

    @property
    def name(self) -> str:
        """For people: the file, the processor and the threads."""
        device = self.content.device
        limits = f", {device.limits}" if device.limits else ""
        return f"{self.path.name} ({device.device}, {format_count(int(device.threads), 'thread')}{limits})"

    def require_shape(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> None:
        """Raises UserError where it was measured for models of another shape, or of other blocks."""
        where, content = str(self.path), self.content
        ours = json.loads(json.dumps(describe_shape(config, heads)))
        for key, (theirs, mine) in _differences(content.shape, ours).items():
            raise UserError(
                f"shape.{key} is {printable(str(theirs), 40)}, the model's is {printable(str(mine), 40)}",
                where=where, do="measure a target for this model: compress profile MODEL --output FILE",
            )  # fmt: skip
        ladder = choose_samples(config, heads, Serving("onnxruntime"))
        found = [Sample(**row.model_dump(exclude={"mb"})) for row in content.samples]
        rows = {_row_key(one) for one in ladder.tables}
        for key, same in (("samples", found == ladder.samples), ("rows_mb", set(content.rows_mb) == rows)):
            if not same:
                raise UserError(f"{key} are not those that this version times", where=where, do=AGAIN)

    def blocks(self, serving: Serving, config: EncoderConfig, heads: Mapping[str, HeadConfig], length: int) -> Blocks:
        """The cost table of a runtime at one of its lengths. The shape is right (`require_shape`)."""
        ladder = choose_samples(config, heads, serving)
        timed = self.content.runtimes[serving.runtime].lengths[length]  # type: ignore[index]
        found = {
            sample: SampleCost(ms, row.mb)
            for sample, ms, row in zip(ladder.samples, timed.ms, self.content.samples, strict=True)
        }
        rows = {(one.word, one.rank): self.content.rows_mb[_row_key(one)] for one in ladder.tables}
        return assemble_blocks(ladder, found, rows, count_rows(config), timed.busy)


def read_target(path: Path) -> Target:
    """Raises UserError for what is no target file of this version, by its first wrong key."""
    found = read_kit_file(path, TargetContent, AGAIN)
    if found.compress != compress.__version__:
        what = f"compress is '{printable(found.compress, 40)}', this version is {compress.__version__}"
        raise UserError(what, where=str(path), do=AGAIN)
    for name, runtime in found.runtimes.items():
        for length, timed in runtime.lengths.items():
            if len(timed.ms) != len(found.samples):
                raise UserError(
                    f"runtimes.{name}.lengths.{length}.ms: {len(timed.ms)} numbers for {len(found.samples)} samples",
                    where=str(path), do=AGAIN,
                )  # fmt: skip
    return Target(path, hashlib.sha256(found.model_dump_json().encode()).hexdigest(), found)


def _row_key(sample: Sample) -> str:
    return f"{sample.word}/{sample.rank}"


_FILES: Mapping[str, Set[str]] = {
    "a target that compress profile measured": {"rows_mb", "samples", "runtimes"},
    "a kit's measurement of a fitted model (compress verify --measured)": {"sha256", "shapes", "latency"},
    "a certificate": {"status", "bounds", "quality"},
    "the output of compress fit --json": {"certificate", "plans"},
    "the configuration of a model": {"model_type"},
}
"""JSON files that are easily taken for each other → keys that tell them apart."""


def read_kit_file(path: Path, kind: type[Content], again: str) -> Content:
    """What a kit wrote. again: how to get another one. Raises UserError by the first wrong key."""
    values = safe.read_json(path, LIMIT)
    wanted, found = (next((what for what, keys in _FILES.items() if keys <= set(own)), None)
                     for own in (kind.model_fields, values))  # fmt: skip
    if found != wanted and found is not None and wanted is not None:
        raise UserError(f"this is {found}, not {wanted}", where=str(path), do=f"make one:{again.partition(':')[2]}")
    if "format" not in values:
        raise UserError("it has no key 'format': no kit wrote this file", where=str(path), do=again)
    if values["format"] != FORMAT:
        what = f"format is {describe(values['format'])}, this version reads {FORMAT}"
        raise UserError(what, where=str(path), do=again)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise explain_invalid(error, path, kind, again) from None


def explain_invalid(error: ValidationError, path: Path, kind: type[BaseModel], again: str) -> UserError:
    """The first complaint of pydantic about a file, as one line; unknown keys first, since each shows up as a missing
    one too."""
    problems = error.errors(include_url=False)
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    loc = first["loc"]
    is_key = loc[-1:] == ("[key]",)
    loc = loc[:-1] if is_key else loc
    key = printable(".".join(map(str, loc)), 80)
    if first["type"] == "extra_forbidden" or is_key:
        do = did_you_mean(str(loc[-1]), RUNTIMES if is_key else _keys_at(kind, loc[:-1]))
        return UserError(f"unknown key '{key}'", where=str(path), do=do)
    if first["type"] == "missing":
        return UserError(f"the key '{key}' is missing", where=str(path), do=again)
    what = KINDS.get(first["type"], first["msg"])
    found = "" if isinstance(first["input"], Mapping) else f", found {describe(first['input'])}"
    return UserError(f"{key}: {what}{found}".removeprefix(": "), where=str(path), do=again)


def _keys_at(kind: type[BaseModel], loc: Sequence[str | int]) -> set[str]:
    """The names of the fields of a file, or of the block at `loc` in it."""
    for part in loc:
        field = kind.model_fields.get(str(part))  # else a key of a dictionary, or a place in a list
        within = () if field is None else (field.annotation, *get_args(field.annotation))
        kind = next((one for one in within if isinstance(one, type) and issubclass(one, BaseModel)), kind)
    return set(kind.model_fields)


def _differences(one: Mapping[Any, Any], other: Mapping[Any, Any], within: str = "") -> dict[str, tuple[Any, Any]]:
    """Key path → the two values, where they differ."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in [*one, *(key for key in other if key not in one)]:
        mine, theirs = one.get(key), other.get(key)
        if isinstance(mine, list) and isinstance(theirs, list):
            if len(mine) != len(theirs):
                mine, theirs = f"a list of {len(mine)}", f"a list of {len(theirs)}"
            else:
                mine, theirs = dict(enumerate(mine)), dict(enumerate(theirs))
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            found |= _differences(mine, theirs, f"{within}{key}.")
        elif mine != theirs:
            found[f"{within}{key}"] = (mine, theirs)
    return found
