"""Factorizes embedding tables by truncated SVD weighted by token frequency.

Word, position and segment tables get one projection (D, E), since they are added before it. With weights f the best
rows of width E are the leading principal directions of the rows, each table centred at its own weighted mean; the means
go into the projection's bias. The masked-LM head reads the same table through the same projection, transposed: what the
bias leaves out there is the same for every word, so probabilities do not change by it.

The model's norm stays after the product, over D: from ALBERT's place for it, before the projection, the trained tables
could not be told again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compress.contracts import Batch
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError

TABLES = ("word", "position", "segment")
BANDS = ((0, 0), (1, 9), (10, 99), (100, 999), (1000, None))
COUNTED = 5_000_000
"""Tokens of the training text that rows are counted in."""


@dataclass(frozen=True)
class Counts:
    """How often text uses the rows of each table: name → (rows,) float64. tokens: of the text."""

    rows: Mapping[str, np.ndarray]
    tokens: int


@dataclass(frozen=True)
class Band:
    """Word rows that the text uses from `least` to `most` times (None: no end). error: squared, relative to the rows'.

    share: of the text's tokens.
    """

    least: int
    most: int | None
    rows: int
    share: float
    error: float

    @property
    def name(self) -> str:
        if self.most == 0:
            return "never"
        return f"{self.least:,} times or more" if self.most is None else f"{self.least} to {self.most} times"

    @property
    def key(self) -> str:
        """Its name in MLflow."""
        return f"{self.least}_up" if self.most is None else f"{self.least}_to_{self.most}"


@dataclass(frozen=True)
class Factorization:
    """size: E.  tables: name → (rows, E).  projection: (D, E).  bias: (D,), and of it what is the word rows' (centre).

    error: weighted, relative, 0 to 1.
    """

    size: int
    tables: Mapping[str, Tensor]
    projection: Tensor
    bias: Tensor
    centre: Tensor
    error: float
    bands: tuple[Band, ...] = ()


def count(config: EncoderConfig, batches: Iterable[Batch]) -> Counts:
    """Rows used by the first COUNTED tokens of `batches`, hidden pieces counted as what they are."""
    used = {
        "word": np.zeros(config.vocabulary),
        "position": np.zeros(config.position_rows),
        "segment": np.zeros(max(1, config.segments)),
    }
    seen = 0
    for batch in batches:
        ids = batch.input_ids.clone()
        if batch.mlm_positions is not None and batch.mlm_labels is not None:
            ids[batch.mlm_positions] = batch.mlm_labels
        segments = batch.segment_ids if config.segments > 1 else torch.zeros_like(batch.segment_ids)
        for name, found in (
            ("word", ids),
            ("position", batch.position_ids + config.position_offset),
            ("segment", segments),
        ):
            used[name] += np.bincount(found.cpu().numpy(), minlength=len(used[name]))
        seen += batch.tokens
        if seen >= COUNTED:
            break
    return Counts(used, seen)


def refuse_factorized(config: EncoderConfig, where: str) -> None:
    """Raise UserError for tables that no product could stand for."""
    if config.width != config.hidden:
        raise UserError(
            f"the embeddings are already factorized, {config.width} x {config.hidden}", where=where,
            do="remove embedding",
        )  # fmt: skip
    if config.positions == "sinusoidal":
        raise UserError("the positions are fixed sinusoids, which cannot be factorized", where=where)


def check_size(size: int, config: EncoderConfig, where: str) -> None:
    """Raise UserError unless 1 <= E < D."""
    if not 1 <= size < config.hidden:
        raise UserError(
            f"an embedding size of {size}",
            where=where,
            why=f"the product must be smaller than the tables, whose width is {config.hidden}",
            do=f"use 1..{config.hidden - 1}, or remove it to keep the tables",
        )


def size_for(config: EncoderConfig, megabytes: float, where: str) -> int:
    """The largest E whose tables and projection take at most so many 10^6 bytes in fp32. Raises UserError."""
    rows = config.count_embeddings() // config.width
    fixed = config.hidden if config.bias else 0
    size = int((megabytes * 1e6 / 4 - fixed) // (rows + config.hidden))
    if size < 1:
        least = 4 * (rows + config.hidden + fixed) / 1e6
        raise UserError(f"{megabytes:g} MB for the embeddings", where=where, why=f"E = 1 takes {least:.2f} MB")
    return min(size, config.hidden - 1)


def factorize(
    model: Model,
    weights: Counts | None,
    *,
    size: int | None = None,
    error: float | None = None,
    where: str = "embedding",
) -> Factorization:
    """The tables of `model` as a product. weights: rows count as often as they are used, plus once; None: alike.

    size: E.  error: in its place, the largest relative squared error. Computed in fp64. Raises UserError for a size
    that is not below the width.
    """
    config = model.config
    tables = _tables(model)
    share = {
        name: _weights(len(rows), None if weights is None else weights.rows[name]) for name, rows in tables.items()
    }
    centres = {name: (share[name] @ rows) / share[name].sum() for name, rows in tables.items()}
    if not config.bias:  # nowhere to put a mean
        centres = {name: torch.zeros_like(centre) for name, centre in centres.items()}
    centred = {name: rows - centres[name] for name, rows in tables.items()}
    second = sum(
        ((share[name] * rows.T) @ rows for name, rows in centred.items()),
        torch.zeros(config.hidden, config.hidden).double(),
    )
    values, vectors = torch.linalg.eigh(second)
    left = values.flip(0).clamp(min=0)
    lost = 1 - (left.cumsum(0) / left.sum().clamp(min=torch.finfo(torch.float64).tiny))
    if size is None:
        assert error is not None
        size = int((lost > error).sum()) + 1
    check_size(size, config, where)
    projection = vectors.flip(1)[:, :size]
    narrow = {name: rows @ projection for name, rows in centred.items()}
    bias = torch.stack(list(centres.values())).sum(0)
    return Factorization(size, narrow, projection, bias, centres["word"], max(0.0, float(lost[size - 1])))


def _tables(model: Model) -> dict[str, Tensor]:
    found: dict[str, Any] = {name: getattr(model.encoder.embeddings, name) for name in TABLES}
    return {name: table.weight.detach().double().cpu() for name, table in found.items() if table is not None}


def _weights(rows: int, used: np.ndarray | None) -> Tensor:
    return torch.ones(rows).double() if used is None else torch.from_numpy(used[:rows]).double() + 1


def bands(model: Model, made: Factorization, counts: Counts) -> tuple[Band, ...]:
    """The error of the word rows, by how often the text uses them; bands without a row are left out."""
    rows = _tables(model)["word"]
    again = made.tables["word"] @ made.projection.T + made.centre
    used, found = torch.from_numpy(counts.rows["word"]), []
    missed, size = (rows - again).square().sum(1), rows.square().sum(1)
    for least, most in BANDS:
        inside = (used >= least) & (used <= (most if most is not None else float("inf")))
        if inside.any():
            error = float(missed[inside].sum() / size[inside].sum().clamp(min=1e-300))
            found.append(Band(least, most, int(inside.sum()), float(used[inside].sum()) / max(1, counts.tokens), error))
    return tuple(found)


def apply(model: Model, made: Factorization) -> Model:
    """`model` with the product in place of its tables, and the masked-LM head over the same product."""
    config = dataclasses.replace(model.config, embedding=made.size, project_first=True)
    heads = {
        name: dataclasses.replace(head, tied_projection=True) if head.kind == "masked_lm" else head
        for name, head in model.head_configs.items()
    }
    with torch.device("meta"):
        built = Model(config, heads)
    prefix = "encoder.embeddings."
    state: dict[str, Tensor] = dict(model.state_dict())
    state |= {f"{prefix}{name}.weight": rows for name, rows in made.tables.items()}
    state[f"{prefix}projection.weight"] = made.projection
    if config.bias:
        state[f"{prefix}projection.bias"] = made.bias
    like = model.encoder.embeddings.word.weight
    copied = {n: state[n].detach().to(like.device, like.dtype, copy=True).contiguous() for n in built.state_dict()}
    built.load_state_dict(copied, assign=True)
    return built.requires_grad_(True).train(model.training)
