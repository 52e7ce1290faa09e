"""Where a model may exit early, and what its exits are trained on."""

from __future__ import annotations

from dataclasses import dataclass

from compress.errors import UserError

AUTO = "auto"
MOST = 5
"""Layers that are tried where nobody says which."""
ROWS = 10_000
"""Rows of the training split that exits are trained on where nobody says how many."""


@dataclass(frozen=True)
class ExitOptions:
    """layers: behind which the model may answer; None: tried at even distances.  rows: of the training split, at most.
    seed: which rows, and their order in training."""

    layers: tuple[int, ...] | None = None
    rows: int = ROWS
    seed: int = 0

    def choose_layers(self, depth: int) -> list[int]:
        """Layers of a model with so many. Raises UserError where an exit is behind its last layer, or it has one."""
        if depth < 2:
            raise UserError("a model with one layer has no layer to exit after", where="--exit-layers")
        if self.layers is None:
            count = min(MOST, depth - 1)
            return [(place + 1) * depth // (count + 1) for place in range(count)]
        if self.layers[-1] >= depth:
            raise UserError(
                f"an exit after layer {self.layers[-1]} is not possible", where="--exit-layers",
                why=f"the model has {depth} layers", do=f"give layers from 1 to {depth - 1}",
            )  # fmt: skip
        return list(self.layers)


def read_layers(text: str) -> tuple[int, ...] | None:
    """`2,4` → (2, 4); `auto` → None. Raises UserError for anything else."""
    if text.strip() == AUTO:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"'{text}' is no list of layers", where="--exit-layers", do="give layers such as 2,4, or auto")
    layers = sorted(map(int, parts))
    if len(set(layers)) < len(layers):
        raise UserError(f"'{text}' names a layer twice", where="--exit-layers", do="name each layer once")
    return tuple(layers)
