"""`compress distill --seeds N`: repeats a run with several seeds and summarizes the results."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from compress.console import Console
from compress.contracts import CONTROL, FAKE, Override, RunOptions
from compress.errors import UserError
from compress.measure.models import MeasuredModel, kind_of
from compress.recipe import LoadedRecipe
from compress.report.rows import description, title
from compress.run import Run, RunReport, input_folder
from compress.run.folder import RUNS, resumable
from compress.run.gain import RESAMPLES
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

    --resume goes on with the seeds that are not done. Raises UserError for a recipe whose runs score nothing, and
    whatever a single run raises.
    """
    recipe = loaded.recipe
    base = options.output or RUNS / f"{recipe.name}-seeds"
    given = {key: input_folder(key, path) for key, path in inputs.items()}
    seeds = range(recipe.seed, recipe.seed + count)
    reports: list[RunReport] = []
    for seed in seeds:
        console.note(f"seed {seed}, {seed - recipe.seed + 1} of {count}")
        folder = base / f"seed-{seed}"
        one = dataclasses.replace(options, output=folder, resume=options.resume and folder.exists())
        # The last word, after --seed and --set, which say where to begin.
        seeded = loaded.and_then(Override("seed", seed, f"--seeds {count}"))
        with resumable(base):  # all seeds, not this seed's folder
            report = Run(seeded.recipe, one, console, verb, given).go()
        if report is None:  # a dry run tells its plan once
            return
        reports.append(report)
    if not reports[0].measured:
        raise UserError("this recipe measures nothing to compare over seeds", where="--seeds")
    summary = Summary(list(seeds), [r.measured for r in reports])
    console.table(f"{count} seeds", *summary.table())
    for line in summary.lines():
        console.result(line)
    _track(base, recipe.method or recipe.stages[-1].kind, summary, options, console)
    runs = [r.as_json() for r in reports]
    console.document({"seeds": list(seeds), "runs": runs, "summary": summary.values, "notes": summary.lines()})


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
        self.gains = [
            s.scored.difference(c.scored, self.metric, resamples=RESAMPLES)
            for s, c in zip(by_role.get("student", ()), by_role.get(best, ()), strict=False)
            if s.scored is not None and c.scored is not None
        ]
        self.gain = mean_interval([g.value for g in self.gains]) if len(self.gains) > 1 else None
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
        return smallest_detectable_gain([g.value for g in self.gains])

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Columns and rows: a model a row; a seed a column, then mean and standard deviation, in hundredths."""
        columns = (f"{title(self.metric)} x 100", *(f"seed {s}" for s in self.seeds), "mean", "sd")
        rows = []
        for role, scores in self.scores.items():
            shown = [f"{100 * x:.2f}" for x in (*scores, statistics.mean(scores), _spread(scores))]
            rows.append((f"{role}, simulated" if role in self.simulated else role, *shown))
        if self.gain is not None:
            values = [g.value for g in self.gains]
            shown = [f"{100 * x:+.2f}" for x in (*values, self.gain.value)]
            rows.append(("gain from the teacher", *shown, f"{100 * _spread(values):.2f}"))
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


def _track(base: Path, method: str, summary: Summary, options: RunOptions, console: Console) -> None:
    """One run that holds the means, beside those of the seeds."""
    columns, rows = summary.table()
    with open_requested_run(
        base / "summary",
        options,
        name=f"{base.name}, {len(summary.seeds)} seeds",
        method=method,
        role="summary",
        warn=console.warn,
    ) as log:
        log.params({"method": method, "seeds": ", ".join(map(str, summary.seeds))})
        log.metrics(summary.values)
        log.note(description(columns, rows, summary.lines()))
