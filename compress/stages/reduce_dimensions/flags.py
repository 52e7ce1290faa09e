"""The flags of `compress reduce-dimensions`, and what they mean in a recipe."""

from __future__ import annotations

from compress.stages.shared.flags import NO_RECOVER, SEEDS, TRAINING, Flag, Table

TABLE = Table(
    kind="reduce_dimensions",
    recipe="embed-matryoshka",
    flags=(
        Flag("--dimensions", "dimensions", "Width of the vectors (default: all, ordered).", kind="int", low=1),
        Flag("--rows", "rows", "Maximum number of texts that the directions are fitted on.", kind="int", low=1),
        *TRAINING,
        NO_RECOVER,
        SEEDS,
    ),
)
