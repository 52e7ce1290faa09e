"""The flags of `compress pretrain`, and what they mean in a recipe."""

from __future__ import annotations

from compress.stages.shared.flags import TRAINING, Flag, Table

FURTHER = "pretrain-further"
"""The recipe for a checkpoint; that of the table is for a new encoder."""
TABLE = Table(
    kind="pretrain",
    recipe="teacher",
    every=True,
    demo=False,
    flags=(
        Flag(
            "--max-length", "", "Length of one training block in tokens.", "input", "int", "N",
        ),
        *TRAINING,
    ),
)  # fmt: skip
