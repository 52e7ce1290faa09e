"""Rotary positions (2104.09864) as configs of transformers say them: read, written, and what they have no words for."""

from __future__ import annotations

from typing import Any

from compress.encoder.config.encoder import EncoderConfig
from compress.errors import UserError, printable
from compress.modelfolder.fields import Fields

KEY = "rope_parameters"
PLAIN = "only default rotary positions are supported"


def read_base(fields: Fields, default: float) -> float:
    """θ of all layers. Raises UserError for any but the plain kind."""
    fields.refuse("rope_scaling", (), PLAIN)
    row: Any = fields.values.get(KEY)
    if row is None:
        return fields.number("rope_theta", least=1.0001, below=1e30, default=default)
    if not isinstance(row, dict):
        raise fields.wrong(KEY, "an object with rope_type and rope_theta")
    return read_row(row, KEY, fields.where, default)


def read_row(row: Any, key: str, where: str, default: float) -> float:
    """θ of a row of `rope_parameters` that `key` holds. Raises UserError for any but the plain kind."""
    inner = Fields(row, f"{where}: {key}")
    inner.refuse("rope_type", ("default",), PLAIN)
    if extra := sorted(set(row) - {"rope_type", "rope_theta"}):
        raise UserError(f"{printable(extra[0], 60)} is not supported", where=inner.where)
    return inner.number("rope_theta", least=1.0001, below=1e30, default=default)


def write_base(config: EncoderConfig, default: float) -> dict[str, Any]:
    """The key that says θ of all layers."""
    base = default if config.rotary_bases is None else config.rotary_bases[0]
    return {KEY: {"rope_type": "default", "rope_theta": base}}


def find_objection(config: EncoderConfig) -> str | None:
    """Why a class whose layers share their rotary positions does not compute a model; None: they do not hinder it."""
    if config.positions != "rotary" or config.rotary_bases is None:
        return "its positions are not rotary"
    return "its layers have different rotary bases" if len(set(config.rotary_bases)) > 1 else None
