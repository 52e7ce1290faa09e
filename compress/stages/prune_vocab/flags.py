"""The flags of `compress prune-vocab`, and what they mean in a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from compress.errors import UserError
from compress.stages.shared.flags import Edit, Family, Flag, Given, Table

if TYPE_CHECKING:
    from compress.recipe import Recipe


def _edits(recipe: Recipe, place: int, given: Given) -> Iterator[Edit]:
    """given: also `corpus` and `data`, the flags as typed. With a corpus, the tokens of that text are counted."""
    corpus = given.get("corpus")
    if corpus is not None:
        yield Edit(f"stages.{place}.text", "corpus", corpus)
    if given["pretrained"]:
        if corpus is None and recipe.corpus is None:
            raise UserError("a pretrained model has no labelled data", where="--pretrained", do="add --corpus TEXT")
        if given.get("data") is not None:
            raise UserError("labelled data is not read with --pretrained", where="--data", do="remove one of them")
        yield Edit(f"stages.{place}.level", "general", "--pretrained")
        yield Edit(f"stages.{place}.text", "corpus", "--pretrained")
        yield Edit("data", None, "--pretrained")


TABLE = Table(
    kind="prune_vocab",
    recipe="prune-vocab",
    flags=(
        Flag(
            "--coverage", "coverage", "Keep the fewest tokens that cover PERCENT of the text, e.g. 99.9; 100: every "
            "token that occurs.", kind="float", metavar="PERCENT", family="amount",
        ),
        Flag(
            "--min-count", "min_count", "Keep tokens that occur at least N times.", kind="int", metavar="N",
            family="amount",
        ),
        Flag("--size", "size", "Keep the N most frequent tokens.", kind="int", metavar="N", family="amount"),
        Flag(
            "--characters", "characters", "Single characters that always stay: all (default), or ASCII and those that "
            "occur in the text.", choices=("all", "used"),
        ),
        Flag(
            "--pretrained", "", "MODEL has a masked-LM head and no task: count tokens and measure on --corpus only.",
            "input", "switch",
        ),
    ),
    families={"amount": Family(("coverage", "min_count", "size"), "each sets how much is kept")},
    edits=_edits,
)  # fmt: skip
