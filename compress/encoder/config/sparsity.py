"""Matrices of which two of every four neighbouring weights are zero (2:4): which can be, and how a folder says so.

Imports no torch.

The four lie along the input dimension. GPUs of compute capability 8.0 and more skip the zeros (Mishra et al. 2021,
arXiv 2104.08378); nothing else does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from compress.encoder.config import checks
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.layer_shape import PATTERN, LayerShape
from compress.errors import UserError

SPARSITY = "compress_sparsity"
"""The key by which a folder of a stock class says so: of its compress_config.json, in older ones of config.json."""
MULTIPLE = 16
"""What both sides of a matrix must be a multiple of in half precision: cuSPARSELt's condition, the weaker one. Where
torch has only CUTLASS's kernels it is 32 rows by 64 columns, which the runtime looks at."""


def can_be_sparse(out: int, inputs: int) -> bool:
    """Whether torch's kernels take a matrix (out, in) in half precision."""
    return out % MULTIPLE == 0 and inputs % MULTIPLE == 0


def list_sparse_matrices(shape: LayerShape, hidden: int, *, gated: bool) -> tuple[str, ...]:
    """The matrices of a layer that can be 2:4."""
    return tuple(name for name, (out, inputs) in shape.sizes(hidden, gated=gated).items() if can_be_sparse(out, inputs))


def is_sparse(config: EncoderConfig) -> bool:
    """Whether any matrix of a layer is 2:4."""
    return any(shape.sparse for shape in config.layers)


def dense(shape: LayerShape) -> LayerShape:
    """The same shape without a word of zeros."""
    return dataclasses.replace(shape, sparse=())


def to_values(config: EncoderConfig) -> dict[str, object]:
    """What a folder of a stock class says beside config.json: the matrices of each layer. Nothing for others."""
    return {"pattern": PATTERN, "layers": [list(shape.sparse) for shape in config.layers]} if is_sparse(config) else {}


def with_values(config: EncoderConfig, values: object, where: str) -> EncoderConfig:
    """The inverse: the config of a stock class with what `to_values` gave. Raises UserError for anything else."""
    rows = values.get("layers") if isinstance(values, Mapping) else None
    if not isinstance(values, Mapping) or values.get("pattern") != PATTERN or not checks.is_list(rows):
        raise UserError(f"{SPARSITY} must have pattern {PATTERN} and layers", where=where)
    assert isinstance(rows, Sequence)
    if len(rows) != config.depth:
        raise UserError(f"{SPARSITY} lists {len(rows)} layers", where=where, why=f"the model has {config.depth}")
    layers = (dataclasses.replace(shape, sparse=row) for shape, row in zip(config.layers, rows, strict=True))
    return dataclasses.replace(config, layers=tuple(layers))
