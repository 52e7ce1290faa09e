"""The options of a fit, besides data and device."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

from compress.errors import UserError
from compress.fit.request.bounds import Bounds

UNTOLD = ("plan_only", "uncertified", "seconds", "trials", "study")
"""What may differ when a run goes on."""


@dataclass(frozen=True)
class FitOptions:
    """The options, besides data and device. length: tokens of what is timed; None: texts of the data.

    seconds: for planning and trying; None: until the plans are done.
    plans: most that are made, beside the model in 8 bits.  uncertified: a result is taken that cannot be certified.
    train: heal: the best plans are distilled from the parent as well, the last of them for so many `steps`.  full: what
    is best then is trained on for as many steps, rounded as it will be deployed.  trials: trainings with other
    settings, of a whole study, which others may share by its address.
    """

    model: str
    bounds: Bounds
    batch: int = 1
    length: int | None = None
    seconds: float | None = None
    plans: int = 6
    family: bool = False
    plan_only: bool = False
    uncertified: bool = False
    train: Literal["none", "recover", "full"] = "none"
    steps: int = 400
    trials: int = 0
    study: str | None = None

    @property
    def saves_bytes(self) -> bool:
        """Whether a smaller file is asked for, which layers that share give, and no shorter time."""
        return self.bounds.max_mb is not None or self.bounds.objective == "smallest" or self.family

    def digest(self) -> str:
        """What decides a result."""
        told = {k: v for k, v in dataclasses.asdict(self).items() if k not in UNTOLD}
        told["train"] = "heal" if self.train == "recover" else self.train  # the name in the folders of version 1
        return json.dumps(told, sort_keys=True)

    def check(self) -> None:
        """Raises UserError for what does not go together."""
        if self.trials and self.train == "none":
            raise UserError("needs training", where="--trials", do="add --train recover or --train full")
        if self.study is not None and not self.trials:
            raise UserError("only applies with --trials", where="--study", do="add --trials N, or remove --study")
