"""Early exits: heads behind intermediate layers that answer the rows that they are sure of. Imports no torch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compress.encoder.config import checks
from compress.errors import UserError

WHERE = "head.exits"


@dataclass(frozen=True)
class ExitConfig:
    """A linear head on the first token and the mean of all tokens, side by side (BranchyNet, 1709.01686; DeeBERT,
    2004.12993).

    layer: how many layers are computed before it.  threshold: it answers the rows whose most probable label has a
    probability above; the next exit, or the model's own head, answers the others.
    """

    layer: int
    threshold: float

    def __post_init__(self) -> None:
        checks.positive("layer", self.layer, where=WHERE)
        value = self.threshold
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise UserError(f"threshold is {value!r}", where=f"{WHERE}.threshold", why="it must be 0 to 1")


def count_exit_parameters(hidden: int, labels: int) -> int:
    """Parameters of one exit."""
    return 2 * hidden * labels + labels


def require_ascending(exits: Sequence[ExitConfig]) -> None:
    """Raise UserError for exits that are not in the order of their layers."""
    layers = [each.layer for each in exits]
    if any(first >= second for first, second in itertools.pairwise(layers)):
        raise UserError("exits must be in the order of their layers", where=WHERE, why=f"found {layers}")


def to_values(exits: Sequence[ExitConfig]) -> list[dict[str, Any]]:
    """Plain values for JSON."""
    return [dataclasses.asdict(each) for each in exits]


def read_exits(rows: Any) -> tuple[ExitConfig, ...]:
    """The inverse of `to_values`. Raises UserError for anything else."""
    if not checks.is_list(rows) or not all(isinstance(row, Mapping) for row in rows):
        raise UserError("exits must be a list of objects", where=WHERE)
    for row in rows:
        checks.check_keys(ExitConfig, row, WHERE)
    return tuple(ExitConfig(**row) for row in rows)
