"""What plans cost here: runtime, table of building blocks, and the factor that a real model gives. Kept in a run's
folder, so that a run that goes on makes the plans that it began with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import FixedLength, fixed_length_of
from compress.errors import UserError
from compress.fit.cost.block_table import FOLDER
from compress.fit.cost.blocks import Blocks
from compress.fit.cost.serving import Serving
from compress.fit.cost.text_costs import name_table, table
from compress.fit.make.evaluator import Timing
from compress.fit.request.setup import choose_serving
from compress.modelfolder.folder import LoadedModel
from compress.storage import atomic, safe
from compress.storage.cache import cache_folder

FILE, SHAPE = "costs.json", "latency_shape"


def was_fixed_length(folder: Path) -> bool:
    """Whether a fit was begun in this folder that timed sequences of one length."""
    path = folder / FILE
    return (
        path.is_file() and fixed_length_of(str(safe.read_json(path, 1 << 24).get(SHAPE, FixedLength(1, 1)))) is not None
    )


@dataclass(frozen=True)
class StaticRanges:
    """What static input ranges do to the whole model in 8 bits. ms: that it takes.  loss: nats that it is farther from
    the parent than with a scale for each token."""

    ms: float
    loss: float


@dataclass
class Costs:
    """table: name of the file that the blocks were read from; it stands for device, runtime and versions.  timing: of
    the whole model as it is usually rounded; None until it was timed.  factor, extra: what real models take of the
    sum of their blocks, and beyond it in milliseconds.  static: of static input ranges, where they are faster.
    static_ms: what the whole model takes with these on a target, where its file says so."""

    serving: Serving
    blocks: Blocks
    table: str
    factor: float = 1.0
    extra: float = 0.0
    timing: Timing | None = None
    static: StaticRanges | None = None
    static_ms: float | None = None

    def correct(self, whole: tuple[float, float], narrow: tuple[float, float]) -> None:
        """By models that were timed: milliseconds of the sum of their blocks, and measured.

        Blocks are differences of small models, timed among their like; what a call costs in any case shows beside the
        parent, where caches are cold. narrow: of a much narrower model; left out where both say nothing sensible.
        """
        planned, took = whole
        self.factor, self.extra = (took / planned if planned > 0 else 1.0), 0.0
        if planned - narrow[0] < 0.1 * planned:
            return
        factor = (took - narrow[1]) / (planned - narrow[0])
        extra = took - factor * planned
        if 0 <= extra < narrow[1] and factor > 0:
            self.factor, self.extra = factor, extra

    def write(self, folder: Path) -> None:
        """Into the folder of a run."""
        assert self.timing is not None
        content = {
            "runtime": self.serving.runtime, "table": self.table, "blocks": self.blocks.as_json(),
            "factor": self.factor, "extra": self.extra, "timing": asdict(self.timing),
            "static": None if self.static is None else asdict(self.static),
            SHAPE: str(self.serving.shape),
        }  # fmt: skip
        atomic.write_json(folder / FILE, content)


def of(loaded: LoadedModel, asked: str | None, shape: dict[str, Any], folder: Path | None, console: Console) -> Costs:
    """Those that a run's folder holds, where the run goes on on the machine that they were measured on; else measured.

    asked: the runtime, as `--runtime` says.  folder: None where nothing is made.
    """
    known = None if folder is None else _known(loaded, shape, folder / FILE)
    if known is not None:
        console.note("cost table: from the start of this run")
        return known
    serving = choose_serving(loaded, asked, shape, console)
    blocks, name = table(loaded.config, loaded.heads, serving, console)
    busy = "; it was measured on a busy machine" * blocks.busy
    console.note(f"cost table: {cache_folder() / FOLDER}{busy}")
    return Costs(serving, blocks, name)


def _known(loaded: LoadedModel, shape: dict[str, Any], path: Path) -> Costs | None:
    if not path.is_file():
        return None
    found = safe.read_json(path, 1 << 24)
    try:
        serving, timing = Serving(found["runtime"], **shape), Timing.from_json(found["timing"])
        if name_table(loaded.config, loaded.heads, serving) != found["table"]:
            return None
        blocks = Blocks.from_json(found["blocks"], str(path))
        static = StaticRanges(**found["static"]) if found.get("static") else None
        return Costs(serving, blocks, found["table"], float(found["factor"]), float(found["extra"]), timing, static)
    except (KeyError, TypeError, ValueError):
        raise UserError(
            "not a valid cost file of a fit", where=str(path), do="remove the file; the costs will be measured again"
        ) from None
