"""What a model folder holds beside the family's own files: facts that the family's `config.json` has no words for.

`compress_config.json` says which modules are quantized, which matrices are sparse and where the model exits early where
a stock class has the model's shape, else everything: the description of encoder and heads. `compress.safetensors` holds
the tensors that a stock class does not know: those of quantizers and exits, or, where no class computes the model, all,
so that none loads it wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.exits import read_exits
from compress.encoder.config.exits import to_values as exit_values
from compress.encoder.config.quantization import Quantization
from compress.encoder.config.sparsity import SPARSITY, to_values, with_values
from compress.errors import UserError, did_you_mean
from compress.modelfolder.fields import Fields
from compress.storage import safe

FILE = "compress_config.json"
WEIGHTS = "compress.safetensors"
VERSION = 1
VERSION_KEY, ENCODER, HEADS, QUANTIZATION = "compress_version", "encoder", "heads", "quantization"
EXITS = "exits"
_BYTES = 16 * 2**20


def values_of(config: EncoderConfig, heads: Mapping[str, HeadConfig], *, fits: bool) -> dict[str, Any]:
    """The content of the file; empty where the family's config.json says all. fits: a stock class has this shape."""
    if not fits:
        described = {name: head.to_dict() for name, head in heads.items()}
        return {VERSION_KEY: VERSION, ENCODER: config.to_dict(), HEADS: described}
    found: dict[str, Any] = {}
    if config.quantization is not None:
        found[QUANTIZATION] = config.quantization.to_dict()
    if sparsity := to_values(config):
        found[SPARSITY] = sparsity
    if "task" in heads and heads["task"].exits:
        found[EXITS] = exit_values(heads["task"].exits)
    return {VERSION_KEY: VERSION, **found} if found else {}


def read(folder: Path) -> Fields | None:
    """What the folder says; None without the file. Raises UserError for a version or keys that are not known, and where
    the file is missing but not its tensors."""
    path = folder / FILE
    if not path.is_file():
        if (folder / WEIGHTS).is_file():
            raise UserError(f"{FILE} is missing", where=str(folder), why=f"it describes {WEIGHTS}", do="restore it")
        return None
    fields = Fields(safe.read_json(path, _BYTES), str(path))
    require_version(fields)
    known = (VERSION_KEY, ENCODER, HEADS, QUANTIZATION, SPARSITY, EXITS)
    for key in fields.values:
        if key not in known:
            raise UserError(f"unknown key '{key}'", where=str(path), do=did_you_mean(key, known))
    return fields


def require_version(fields: Fields) -> None:
    """Raise UserError for a description that this version does not read."""
    version = fields.integer(VERSION_KEY, most=1_000_000)
    if version != VERSION:
        raise UserError(
            f"unsupported format version {version}",
            where=fields.where,
            why=f"this version of compress reads {VERSION}",
            do="upgrade compress",
        )


def describes_all(fields: Fields | None) -> bool:
    """Whether the file alone describes encoder and heads, because no stock class has the model's shape."""
    return fields is not None and ENCODER in fields.values


def complete_config(config: EncoderConfig, fields: Fields) -> EncoderConfig:
    """What a family's config.json describes, with what the file adds. Raises UserError where that does not fit."""
    if SPARSITY in fields.values:
        config = with_values(config, fields.values[SPARSITY], SPARSITY)
    if QUANTIZATION in fields.values:
        config = dataclasses.replace(config, quantization=Quantization.from_dict(fields.values[QUANTIZATION]))
    return config


def complete_heads(heads: Mapping[str, HeadConfig], fields: Fields) -> dict[str, HeadConfig]:
    """Likewise of the heads: the task's with its exits."""
    if EXITS not in fields.values or "task" not in heads:
        return dict(heads)
    return {**heads, "task": dataclasses.replace(heads["task"], exits=read_exits(fields.values[EXITS]))}


def has_exits(folder: Path | str) -> bool:
    """Whether a folder holds a model with early exits; `open.open_folder` says whether it is sound."""
    fields = read(Path(folder))
    if fields is None:
        return False
    task = fields.values.get(HEADS, {}).get("task", {}) if describes_all(fields) else fields.values
    return bool(task.get(EXITS))
