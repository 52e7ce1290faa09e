"""The flags of `compress drop-tokens`, and what they mean in a recipe."""

from __future__ import annotations

from compress.stages.shared.flags import NO_RECOVER, RECOVERY, SEEDS, Family, Flag, Table, number_or_list

TABLE = Table(
    kind="drop_tokens",
    recipe="drop-tokens",
    flags=(
        Flag(
            "--max-drop", "max_drop", "Maximum drop of the main metric on validation before recovery training, in "
            "percentage points: the fastest plan within it is chosen.", kind="float", metavar="POINTS",
            family="target",
        ),
        Flag(
            "--keep-tokens", "keep_tokens", "Percentage of the tokens that goes on after the first layer, such as "
            "50, or after each layer: 100,75,50,50,50,50; nothing is measured.", metavar="PERCENTS",
            convert=number_or_list("100,75,50"), family="target",
        ),
        *RECOVERY,
        NO_RECOVER,
        SEEDS,
    ),
    families={"target": Family(("max_drop", "keep_tokens"), "each sets which tokens are dropped")},
)  # fmt: skip
