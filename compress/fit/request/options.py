"""The options of a fit, besides data and device."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

from compress.errors import UserError
from compress.fit.request.bounds import Bounds
from compress.fit.target.target_file import Target

UNTOLD = ("plan_only", "uncertified", "seconds", "trials", "study")
"""What may differ when a run goes on."""
SINGLE_TEXTS = "which finds the least mean latency of single texts"


@dataclass(frozen=True)
class FitOptions:
    """The options, besides data and device. length: tokens of what is timed; None: texts of the data.

    seconds: for planning and trying; None: until the plans are done.
    plans: most that are made, beside the model in 8 bits.  uncertified: a result is taken that cannot be certified.
    train: recover: the best plans are distilled from the parent as well, the last of them for so many `steps`.  full:
    what is best then is trained on for as many steps, rounded as it will be deployed.  trials: trainings with other
    settings, of a whole study, which others may share by its address.  cascade: the models over the whole range of
    latency are joined into one (`compress cascade`).  target: the machine that serves, where it is another one.
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
    cascade: bool = False
    target: Target | None = None

    @property
    def saves_bytes(self) -> bool:
        """Whether a smaller file is asked for, which layers that share give, and no shorter time."""
        return self.bounds.max_mb is not None or self.bounds.objective == "smallest" or self.family

    @property
    def serves_on(self) -> str:
        """Where the model is to answer, for messages."""
        return "here" if self.target is None else "on the target"

    def digest(self) -> str:
        """What decides a result."""
        told = {k: v for k, v in dataclasses.asdict(self).items() if k not in (*UNTOLD, "target")}
        if self.target is not None:
            told["target"] = self.target.digest
        if not self.cascade:
            del told["cascade"]  # unknown to folders of earlier versions
        told["train"] = "heal" if self.train == "recover" else self.train  # the name in the folders of version 1
        return json.dumps(told, sort_keys=True)

    def check(self) -> None:
        """Raises UserError for what does not go together, and as `Bounds.check` does."""
        if self.trials and self.train == "none":
            raise UserError("needs training", where="--trials", do="add --train recover or --train full")
        if self.study is not None and not self.trials:
            raise UserError("only applies with --trials", where="--study", do="add --trials N, or remove --study")
        if self.cascade:
            self._check_cascade()  # before the bounds: it sets an objective that nobody typed
        self.bounds.check()

    def _check_cascade(self) -> None:
        if self.bounds.max_drop is None:
            raise UserError("needs a bound on the loss", where="--cascade", do="add --max-drop POINTS")
        for flag, given, why in (
            ("--max-mb", self.bounds.max_mb is not None, SINGLE_TEXTS),
            ("--max-ms", self.bounds.max_ms is not None, SINGLE_TEXTS),
            ("--length", self.length is not None, SINGLE_TEXTS), ("--batch", self.batch != 1, SINGLE_TEXTS),
            ("--plan-only", self.plan_only, "which joins models that were built"),
            ("--target", self.target is not None, "which is timed on this machine"),
        ):  # fmt: skip
            if given:
                raise UserError(f"cannot be combined with --cascade, {why}", where=flag, do="remove one of the two")
