"""Selects the model that a run leaves: the best on validation data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compress.report.rows import title


@dataclass(frozen=True)
class Candidate:
    """A model that a run made. value: of the main metric on validation.  role: as it is measured under."""

    name: str
    role: str
    folder: Path
    value: float


def best_of(candidates: Sequence[Candidate]) -> Candidate:
    """The one with the greatest value, of equals the first: what was there before stays unless it is beaten."""
    return max(candidates, key=lambda c: c.value)


def sentences(candidates: Sequence[Candidate], metric: str) -> list[str]:
    """The lines that report which model was selected, and whether training improved it."""
    kept = best_of(candidates)
    told = [f"{c.name} {100 * c.value:.2f}" for c in candidates if c is not kept]
    lines = [f"selected: {kept.name}, {title(metric)} {100 * kept.value:.2f} % on validation; " + ", ".join(told)]
    begun, *trained = candidates
    if kept is begun and trained:
        names = " and ".join(c.name for c in trained)
        lines.append(f"training did not improve it: {names} did not score higher than {begun.name} on validation")
    return lines
