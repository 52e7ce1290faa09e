"""The flags of `compress make-static`, and what they mean in a recipe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from compress.stages.shared.flags import NO_RECOVER, SEEDS, TRAINING, Edit, Family, Flag, Given, Table, require_recovery

if TYPE_CHECKING:
    from compress.recipe import Recipe


def _edits(recipe: Recipe, place: int, given: Given) -> Iterable[Edit]:
    """The cache of all stages that are taught. Raises UserError where nothing is trained."""
    folder = given.get("teacher_cache")
    if folder is None:
        return
    require_recovery(given, "--teacher-cache", "nothing is trained, and MODEL computes each token once")
    for at, stage in enumerate(recipe.stages):
        if stage.learns:
            yield Edit(f"stages.{at}.cache.path", folder, f"--teacher-cache {folder}")


TABLE = Table(
    kind="make_static",
    recipe="embed-static",
    edits=_edits,
    families={"width": Family(why="both set the width of the vectors")},
    flags=(
        Flag("--dimensions", "dimensions", "Width of the vectors.", kind="int", low=1, family="width"),
        Flag(
            "--keep-width", "dimensions", "Keep the width of MODEL's vectors, which an index may expect.",
            kind="switch", constant=None, family="width",
        ),
        Flag(
            "--sif", "sif", "Smooth inverse frequency: weight a / (a + p) of a token with share p of the texts.",
            kind="float", metavar="A",
        ),
        Flag(
            "--teacher-cache", "", "Cache MODEL's vectors of the texts in this folder: it computes each text once, and "
            "other runs read them.", "training", metavar="FOLDER",
        ),
        *TRAINING,
        NO_RECOVER,
        SEEDS,
    ),
)  # fmt: skip
