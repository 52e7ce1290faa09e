"""`compress distill --seeds N`: repeats a run with several seeds and summarizes the results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import CONTROL, FAKE, Override, RunOptions, list_set_values
from compress.errors import UserError
from compress.measure.measured_model import MeasuredModel
from compress.measure.subject import kind_of
from compress.recipe import LoadedRecipe, Recipe
from compress.report.rows import description, title
from compress.run import Run, input_folder
from compress.run.jobs import SUMMARY, Job, begin_jobs, run_jobs
from compress.tracking import open_requested_run
from evaluation.quality.intervals import mean_interval
from evaluation.quality.runs import smallest_detectable_gain

FEWEST = 3
"""Seeds that a verdict on a method needs."""


def run_seeds(
    loaded: LoadedRecipe, options: RunOptions, console: Console, count: int, *, verb: str | None,
    inputs: Mapping[str, Path],
) -> None:  # fmt: skip
    """Run a recipe `count` times, with its seed and the next ones, each in a folder of its own, and report all.

    --resume makes the seeds that are not done. Raises whatever a single run raises.
    """
    recipe = loaded.recipe
    given = {key: input_folder(key, path) for key, path in inputs.items()}
    seeds = list_seeds(recipe.seed, count)
    if options.dry_run:
        Run(with_seed(loaded, seeds[0], count), options, console, verb, given).go()
        return
    method = recipe.method or recipe.stages[-1].kind
    jobs, shared = begin_jobs(
        f"{recipe.name}-seeds", lambda base: list_jobs(loaded, base, count), options, verb, given, console
    )
    with open_requested_run(
        shared.base / SUMMARY, options, name=f"{shared.base.name}, {count} seeds", method=method, role="summary",
        warn=console.warn,
    ) as log:  # fmt: skip
        log.params({"method": method, "seeds": ", ".join(map(str, seeds))})
        outcomes = run_jobs(jobs, shared.below(log.parent), console)
        summary = Summary(seeds, [outcome.measured for outcome in outcomes])
        columns, rows = summary.table()
        console.table(f"{count} seeds", columns, rows)
        for line in summary.lines():
            console.result(line)
        log.metrics(summary.values)
        log.note(description(columns, rows, summary.lines()))
    runs = [outcome.report for outcome in outcomes]
    console.document({"seeds": seeds, "runs": runs, "summary": summary.values, "notes": summary.lines()})


def list_seeds(first: int, count: int) -> list[int]:
    """The recipe's seed and the next ones."""
    return list(range(first, first + count))


def with_seed(loaded: LoadedRecipe, seed: int, count: int) -> Recipe:
    """The recipe with one of so many seeds: the last word, after --seed and --set, which say where to begin."""
    return loaded.and_then(Override("seed", seed, f"--seeds {count}")).recipe


def list_jobs(
    loaded: LoadedRecipe, base: Path, count: int, name: str = "", values: Mapping[str, Any] | None = None
) -> list[Job]:
    """A run for each of `count` seeds, in folders of `base`. name: of what is repeated, before the seed's.  values: of
    the sweep that it is a point of, by path."""
    seeds, params = list_seeds(loaded.recipe.seed, count), {**list_set_values(loaded.overrides), **(values or {})}
    return [
        Job(
            f"{name}/seed-{seed}" if name else f"seed-{seed}", with_seed(loaded, seed, count), base / f"seed-{seed}",
            f"{f'{name}, ' if name else ''}seed {seed}, {place} of {count}", params=params,
        )
        for place, seed in enumerate(seeds, 1)
    ]  # fmt: skip


class Summary:
    """Figures of the main metric over the seeds. values: flat names for MLflow and JSON, shares from 0 to 1."""

    def __init__(self, seeds: Sequence[int], measured: Sequence[Sequence[MeasuredModel]]) -> None:
        self.seeds = list(seeds)
        by_role: dict[str, list[MeasuredModel]] = {}
        for run in measured:
            for m in run:
                by_role.setdefault(m.subject.role, []).append(m)
        self.metric = measured[0][0].metric or ""
        self.scores = {role: [self._score(m) for m in models] for role, models in by_role.items()}
        self.simulated = {role for role, models in by_role.items() if any(m.is_simulated for m in models)}
        controls = [role for role in by_role if kind_of(role) == CONTROL]
        best = max(controls, key=lambda role: statistics.mean(self.scores[role]), default=CONTROL)
        self.control = "control" if len(controls) < 2 else f"best control ({best.replace('-', ' ')})"
        self.gains = [s - c for s, c in zip(self.scores.get("student", ()), self.scores.get(best, ()), strict=False)]
        self.gain = mean_interval(self.gains) if len(self.gains) > 1 else None
        self.values: dict[str, float] = {"seeds/count": float(len(self.seeds))}
        for role, scores in self.scores.items():
            name = f"{FAKE if role in self.simulated else ''}seeds/{role}_{self.metric}"
            self.values |= {f"{name}_mean": statistics.mean(scores), f"{name}_sd": _spread(scores)}
        if self.gain is not None:
            self.values |= {f"seeds/gain{part}": getattr(self.gain, field) for part, field in _PARTS}
            self.values["seeds/smallest_detectable_gain"] = self.smallest_gain

    def _score(self, m: MeasuredModel) -> float:
        if m.quality is None or not math.isfinite(m.quality[0]):
            raise UserError(f"{m.subject.name} has no {title(self.metric)} on these rows", where="--seeds")
        return m.quality[0]

    @property
    def smallest_gain(self) -> float:
        """That so many seeds would find with a probability of 80 %, of gains that spread like these (share of 1)."""
        return smallest_detectable_gain(self.gains)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Columns and rows: a model a row; a seed a column, then mean and standard deviation, in hundredths."""
        columns = (f"{title(self.metric)} x 100", *(f"seed {s}" for s in self.seeds), "mean", "sd")
        rows = []
        for role, scores in self.scores.items():
            shown = [f"{100 * x:.2f}" for x in (*scores, statistics.mean(scores), _spread(scores))]
            rows.append((f"{role}, simulated" if role in self.simulated else role, *shown))
        if self.gain is not None:
            shown = [f"{100 * x:+.2f}" for x in (*self.gains, self.gain.value)]
            rows.append(("gain from the teacher", *shown, f"{100 * _spread(self.gains):.2f}"))
        return columns, rows

    def lines(self) -> list[str]:
        """What may be said."""
        n = len(self.seeds)
        lines = [f"mean and standard deviation of {n} seeds; no run was left out"]
        if n > 1 and (students := self.scores.get("student")):
            best = max(range(n), key=lambda i: students[i])
            lines.append(f"the best student of {n}: seed {self.seeds[best]}, {100 * students[best]:.2f}")
        if self.gain is not None:
            g = self.gain
            interval = (
                f"{100 * g.value:+.2f} points, 95 % interval {100 * g.low:+.2f} to {100 * g.high:+.2f}, {n} seeds"
            )
            word = "no measurable gain" if g.low <= 0 <= g.high else ("gain" if g.value > 0 else "loss")
            word = f"{word} from the teacher" if n >= FEWEST else f"no verdict from fewer than {FEWEST} seeds"
            lines.append(f"the student against its {self.control}: {word} ({interval})")
            lines.append(
                f"smallest gain that {n} seeds with this spread would find in 4 of 5 cases: "
                f"{100 * self.smallest_gain:.1f} points"
            )
        return lines


_PARTS = (("", "value"), ("_low", "low"), ("_high", "high"))


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
