"""Floating-point operations of a sequence. Counting is far slower than computing, so equal counts are made once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from compress.contracts import Batch, Needs
from compress.encoder.modules.model import Model
from compress.modelfolder.ensemble import JointModel
from compress.predict.route import CascadeModel
from evaluation.cost.flops import count_flops

MOST = 4096
_COUNTED: dict[Hashable, int] = {}
"""Shape of a model and lengths of a batch → its operations, of at most MOST of them."""


def count_gflops(model: Model | JointModel | CascadeModel, batches: Sequence[Batch], device: str) -> float:
    """10⁹ operations of a sequence, on average over `batches`. They depend on the model's shape and on the lengths of
    its sequences alone; those of a cascade and of early exits on the texts, too."""
    if isinstance(model, CascadeModel) or (isinstance(model, Model) and model.exits):
        return sum(_count(model, batch.to(device)) for batch in batches) / 1e9 / sum(batch.rows for batch in batches)
    shape = (model.config, tuple(model.head_configs.items())) if isinstance(model, Model) else None
    found: dict[Hashable, int] = {}  # of this call alone where the shape does not say all, as of several models
    total = 0
    for batch in batches:
        key = (shape, tuple(batch.on_host.cu_seqlens.tolist()))
        counted = found if shape is None else _COUNTED
        if key not in counted:
            if len(counted) >= MOST:
                counted.clear()
            counted[key] = _count(model, batch.to(device))
        total += counted[key]
    return total / 1e9 / sum(batch.rows for batch in batches)


def _count(model: Model | JointModel | CascadeModel, batch: Batch) -> int:
    return count_flops(lambda: model(batch, Needs(logits=True)))
