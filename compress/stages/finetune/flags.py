"""The flags of `compress finetune`, and what they mean in a recipe."""

from __future__ import annotations

from compress.stages.shared.flags import TRAINING, Flag, Table

TABLE = Table(
    kind="finetune",
    recipe="finetune",
    every=True,
    flags=(
        Flag(
            "--new-head", "new_head", "Replace a task head that has other labels with a new one.", kind="switch",
        ),
        *TRAINING,
    ),
)  # fmt: skip
