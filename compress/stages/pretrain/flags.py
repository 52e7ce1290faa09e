"""The flags of `compress pretrain`, and what they mean in a recipe."""

from __future__ import annotations

from compress.stages.shared.flags import TRAINING, Flag, Table

NEW, FURTHER = "teacher", "pretrain-further"
"""The recipe for a new encoder, and that for a checkpoint."""
TABLE = Table(
    kind="pretrain",
    recipe=NEW,
    chosen=lambda values: FURTHER if values.get("model") or values.get("model_again") else NEW,
    every=True,
    demo=False,
    flags=(
        Flag(
            "--max-length", "", "Length of one training block in tokens.", "input", "int", "N",
        ),
        *TRAINING,
    ),
)  # fmt: skip
