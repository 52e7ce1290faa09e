"""What a person asks of a fit, and what cannot be asked."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from compress.errors import ExitCode, UserError
from compress.report.rows import title

Objective = Literal["quality", "smallest", "fastest"]
Z = 1.959964
"""97.5 % quantile of the normal distribution."""
CHANCE = Z * Z
"""Of n rows without a loss, the paired 95 % interval (Tango 1998) reaches CHANCE / (n + CHANCE)."""


@dataclass(frozen=True)
class Bounds:
    """max_mb: 10⁶ bytes of what is deployed.  max_ms: milliseconds of a batch: the mean over the
    texts of the data, or the median for a fixed length.  max_drop: points of the main
    metric (hundredths) that may be lost against the parent.  objective: None as the bounds say."""

    max_mb: float | None = None
    max_ms: float | None = None
    max_drop: float | None = None
    asked: Objective | None = None

    @property
    def objective(self) -> Objective:
        """quality under megabytes and milliseconds; else the smallest that loses no more than `max_drop`."""
        if self.asked is not None:
            return self.asked
        return "smallest" if self.max_mb is None and self.max_ms is None else "quality"

    def check(self) -> None:
        """Raises UserError for what is no bound, and for bounds that do not go together."""
        for flag, value in (("--max-mb", self.max_mb), ("--max-ms", self.max_ms)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UserError(f"{value:g} is not possible", where=flag, do="give a number above 0")
        if self.max_drop is not None and not 0 <= self.max_drop <= 100:
            raise UserError(
                f"{self.max_drop:g} points is not possible", where="--max-drop", do="give 0 to 100, such as 0.5"
            )
        if self.max_mb is None and self.max_ms is None and self.max_drop is None:
            raise UserError(
                "at least one bound is required", where="compress fit", do="add --max-mb, --max-ms or --max-drop"
            )
        if self.objective != "quality" and self.max_drop is None:
            raise UserError(
                f"the {self.objective} model needs a bound on quality",
                where=f"--objective {self.objective}",
                do="add --max-drop POINTS",
            )
        if self.objective == "quality" and self.max_mb is None and self.max_ms is None:
            raise UserError(
                "without a size or latency bound, the best model is the parent",
                where="--objective quality",
                do="add --max-mb or --max-ms, or remove --objective to get the smallest model within --max-drop",
            )

    def check_rows(self, rows: int, metric: str, uncertified: bool) -> None:
        """Raises UserError where so few held-out rows cannot show that no more than `max_drop` is lost."""
        if self.max_drop is None or uncertified:
            return
        if self.max_drop == 0:
            return  # nothing lost is judged by what was measured: no number of rows shows a zero
        share = self.max_drop / 100
        needed = math.ceil(CHANCE * (1 - share) / share)
        if rows < needed:
            raise UserError(
                f"{rows:,} test rows are too few to show a loss of {title(metric)} below {self.max_drop:g} points",
                where="--max-drop",
                why=f"even without any loss, the 95 % interval would reach {100 * CHANCE / (rows + CHANCE):.2f} points",
                do=f"use {needed:,} test rows or a larger bound, or accept an uncertified model: --uncertified",
            )

    def check_tokenization(self, ms: float) -> None:
        """Raises UserError where the tokenizer alone takes so many milliseconds, and no more are allowed."""
        if self.max_ms is not None and self.max_ms <= ms:
            raise UserError(
                f"{self.max_ms:g} ms is less than the tokenizer alone takes for a text, {ms:.3g} ms on average",
                where="--max-ms",
                do=f"give more than {ms:.3g}, or --length N to time the model without tokenization",
            )

    def over(self, mb: float, ms: float, drop: float | None) -> list[str]:
        """What is not met, in words."""
        said = []
        if self.max_mb is not None and mb > self.max_mb:
            said.append(f"{mb:.2f} MB, bound {self.max_mb:g}")
        if self.max_ms is not None and ms > self.max_ms:
            said.append(f"{ms:.2f} ms, bound {self.max_ms:g}")
        if self.max_drop is not None and drop is not None and drop > self.max_drop:
            said.append(f"{drop:.2f} points lost, bound {self.max_drop:g}")
        return said

    def excess(self, mb: float, ms: float, drop: float | None) -> float:
        """How far from met: the sum of what is over, each as a share of its bound."""
        found = 0.0
        for bound, value in ((self.max_mb, mb), (self.max_ms, ms)):
            found += 0.0 if bound is None else max(0.0, value / bound - 1)
        if self.max_drop is not None and drop is not None:
            found += max(0.0, drop - self.max_drop) / max(1.0, self.max_drop)
        return found

    def as_json(self) -> dict[str, Any]:
        return {**{k: v for k, v in asdict(self).items() if k != "asked"}, "objective": self.objective}

    def sentence(self) -> str:
        parts = [] if self.max_mb is None else [f"at most {self.max_mb:g} MB"]
        parts += [] if self.max_ms is None else [f"at most {self.max_ms:g} ms"]
        parts += [] if self.max_drop is None else [f"at most {self.max_drop:g} points lost"]
        goal = {"quality": "the best", "smallest": "the smallest", "fastest": "the fastest"}[self.objective]
        return f"{goal} model with {' and '.join(parts)}"


def make_budget_error(what: str, asked: float, least: float, unit: str, on: str) -> UserError:
    """For a budget that nothing fits in. on: the machine, such as `here`."""
    return UserError(
        f"{asked:g} {unit} is below the smallest possible value",
        where=what,
        why=f"one layer with one head, one neuron and the smallest vocabulary takes {least:.3g} {unit} {on}",
        do=f"give more than {least:.3g} {unit}",
        code=ExitCode.REFUSED,
    )
