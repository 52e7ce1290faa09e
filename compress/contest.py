"""`compress prune-layers --criterion all`: every criterion cuts the same model to the same depths, and is measured.

All choose on the same text and recover by the same steps. Criteria that choose the same layers share their runs.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

from compress import registry
from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.durable.signals import StopFlag
from compress.errors import ExitCode, Stopped, UserError
from compress.measure import Measured
from compress.pipeline import Run
from compress.prune_layers.spec import TARGETS
from compress.prune_layers.stage import PACKAGE, Stage, build
from compress.prune_layers.targets import check_fits, kept_count, protected_layers
from compress.recipe import Recipe, load_recipe
from compress.report import description, title
from compress.runfolder import RUNS, resume_command
from compress.tracking import TrackedRun, open_asked
from evaluation.quality.intervals import Interval
from evaluation.quality.runs import difference_over_runs

LIMIT = 1000  # sets of layers that are all tried, to know the best
QUICK = {"repeats": 5, "seconds": 1.0}  # models of one depth cost the same: timing all of them tells nothing

Layers = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """A criterion at one depth. layers: what it chose, for each seed.  points: of the main metric lost on validation
    before recovery.  regret: less the points of the best set, None where not all were tried.  rank: of its set among
    `sets` by loss on validation.  scores: of the main metric on the measured rows, for each seed, after recovery.
    behind: against the best criterion of the depth."""

    criterion: str
    depth: int
    layers: tuple[Layers, ...]
    points: float
    regret: float | None = None
    rank: int | None = None
    sets: int | None = None
    scores: tuple[float, ...] = ()
    behind: Interval | None = None

    @property
    def mean(self) -> float:
        """Of the scores after recovery, or minus the points lost where there was none."""
        return statistics.mean(self.scores) if self.scores else -self.points / 100


class Contest:
    """One model, several depths, all criteria. place: of the recipe's stage that cuts."""

    def __init__(
        self, name: str, place: int, depths: Sequence[int], seeds: Sequence[int], verb: str | None,
        options: RunOptions, console: Console, stop: StopFlag,
    ) -> None:  # fmt: skip
        self.name, self.place, self.seeds, self.verb = name, place, list(seeds), verb
        self.options, self.console = options, console
        self.recipe: Recipe = load_recipe(name, overrides=options.overrides)
        self.base = options.output or RUNS / f"{self.recipe.name}-contest"
        if self.base.exists() and not options.resume:
            raise UserError(
                "the output folder exists", where=f"--output {self.base}", do="use --resume to go on, or a new folder",
                code=ExitCode.REFUSED,
            )  # fmt: skip
        self.run = Run(self.recipe, options, console, None, {})
        self.run.stop = stop
        self.stage = Stage(self.recipe.stages[place], self.run.workplace(place, self.base))
        self.subject = self.stage.subject()
        self.study = self.stage.study(self.subject)
        self.depths = list(depths) or list(range(self.study.depth - 1, 0, -1))
        spec = self.recipe.stages[place]
        self.protected = protected_layers(spec, self.study.depth, not self.subject.loaded.config.first_norm)
        for depth in self.depths:
            kept_count(spec.model_copy(update={"keep": depth, "drop": None}), self.study.depth)
            check_fits(depth, self.protected)
        self._values: dict[Layers, Mapping[str, float]] = {}
        self._measured: dict[tuple[Layers, int], Measured] = {}

    # --- choosing, and what it costs before recovery ----------------------------------------------------------

    def chosen(self) -> list[Entry]:
        """Every criterion at every depth, before recovery; one that cannot choose there is told and left out."""
        entries = []
        for depth in self.depths:
            for kind in registry.parts(PACKAGE):
                try:
                    layers = tuple(self._choose(kind, depth, seed) for seed in self.seeds)
                except UserError as error:
                    self.console.note(f"{kind} to {depth} layers: {error}")
                    continue
                self.console.note(f"{kind} to {depth} layers: keeps {', '.join(map(told, dict.fromkeys(layers)))}")
                entries.append(self._before_recovery(kind, depth, layers))
        return entries

    def _choose(self, kind: str, depth: int, seed: int) -> Layers:
        self.study.seed = seed
        row = self.recipe.stages[self.place].criterion
        if row.kind != kind:  # else with the options that the recipe gives it
            row = registry.schema(PACKAGE, kind).model_validate({"kind": kind})
        return build(row, self.study)(self.study, depth, self.protected).keep

    def _before_recovery(self, kind: str, depth: int, layers: tuple[Layers, ...]) -> Entry:
        lost = statistics.mean(self._points(kept) for kept in layers)
        free = [i for i in range(self.study.depth) if i not in self.protected]
        size = depth - len(self.protected)
        if comb(len(free), size) > LIMIT:
            return Entry(kind, depth, layers, lost)
        sets = [tuple(sorted({*self.protected, *some})) for some in combinations(free, size)]
        by_loss = sorted(sets, key=lambda kept: (self._value(kept)["loss"], kept))
        best = min(self._points(kept) for kept in sets)
        rank = by_loss.index(layers[0]) + 1 if len(set(layers)) == 1 else None
        return Entry(kind, depth, layers, lost, lost - best, rank, len(sets))

    def _points(self, kept: Layers) -> float:
        whole = tuple(range(self.study.depth))
        return 100 * (self._value(whole)[self.metric] - self._value(kept)[self.metric])

    def _value(self, kept: Layers) -> Mapping[str, float]:
        if kept not in self._values:
            self._values[kept] = self.stage.validated(self.subject, kept)
        return self._values[kept]

    @property
    def metric(self) -> str:
        """The main metric of the task."""
        return self.stage.metric(self.subject)

    # --- after recovery ---------------------------------------------------------------------------------------

    def recovered(self, entries: Sequence[Entry], log: TrackedRun) -> list[Entry]:
        """The same, each set of layers cut, recovered and measured once for each seed."""
        wanted: dict[tuple[Layers, int], list[str]] = {}
        for entry in entries:
            for layers, seed in zip(entry.layers, self.seeds, strict=True):
                wanted.setdefault((layers, seed), []).append(entry.criterion)
        for number, ((layers, seed), criteria) in enumerate(wanted.items(), 1):
            whose = ", ".join(criteria)
            self.console.note(f"run {number} of {len(wanted)}: layers {told(layers)}, seed {seed}: {whose}")
            self._measured[layers, seed] = self._recover(layers, seed, criteria, log)
        return [self._scored(entry) for entry in entries]

    def _recover(self, layers: Layers, seed: int, criteria: Sequence[str], log: TrackedRun) -> Measured:
        at, origin = f"stages.{self.place}", "--criterion all"
        said = [Override(f"{at}.{key}", None, origin) for key in (*TARGETS, "at_most", "protect")]
        said += [Override(f"{at}.layers", list(layers), origin), Override("seed", seed, origin)]
        said += [Override(f"evaluation.latency.{key}", value, origin) for key, value in QUICK.items()]
        overrides = (*self.options.overrides, *said)
        folder = self.base / f"keep-{len(layers)}" / "-".join(map(str, layers)) / f"seed-{seed}"
        one = dataclasses.replace(self.options, output=folder, overrides=overrides, resume=folder.exists())
        run = Run(load_recipe(self.name, overrides=overrides), one, self.console, self.verb, {})
        run.parent, run.tags = log.parent, {"compress.criteria": ", ".join(criteria)}
        report = run.go()
        assert report is not None
        return next(m for m in report.measured if m.subject.role == "student")

    def _scored(self, entry: Entry) -> Entry:
        scores = [self._score(layers, seed) for layers, seed in zip(entry.layers, self.seeds, strict=True)]
        return dataclasses.replace(entry, scores=tuple(scores))

    def _score(self, layers: Layers, seed: int) -> float:
        return self._measured[layers, seed].measurement.values[f"quality/{self.metric}"]

    # --- what may be said -------------------------------------------------------------------------------------

    def ranked(self, entries: Sequence[Entry]) -> list[Entry]:
        """By depth, the best first; after recovery with the paired interval behind the best, wide enough for as many
        comparisons as there are at a depth (Bonferroni)."""
        found = []
        for depth in self.depths:
            here = sorted((e for e in entries if e.depth == depth), key=lambda e: (-e.mean, e.criterion))
            level = 1 - 0.05 / max(1, len(here) - 1)
            for entry in here:
                behind = self._behind(entry, here[0], level) if entry.scores else None
                found.append(dataclasses.replace(entry, behind=behind))
        return found

    def _behind(self, entry: Entry, best: Entry, level: float) -> Interval:
        figures = []
        for one in (entry, best):
            scored = [self._measured[layers, seed].scored for layers, seed in zip(one.layers, self.seeds, strict=True)]
            figures.append([s.metrics[self.metric] for s in scored if s is not None])
        first = self._measured[entry.layers[0], self.seeds[0]].scored
        assert first is not None
        return difference_over_runs(first.rows, *figures, level=level)

    def lines(self, entries: Sequence[Entry]) -> list[str]:
        """One for each depth: the winner where the intervals show one, else who is not measurably worse."""
        found = []
        for depth in self.depths:
            here = [e for e in entries if e.depth == depth]
            if not here or here[0].behind is None:
                continue
            best = here[0]
            ties = [e for e in here[1:] if e.behind is not None and e.behind.high >= 0]
            if not ties:
                found.append(f"{depth} layers: {best.criterion} is best; the intervals of all others exclude 0")
            else:
                names = ", ".join(e.criterion for e in ties)
                found.append(f"{depth} layers: no winner; not measurably worse than {best.criterion}: {names}")
        return found

    def table(self, entries: Sequence[Entry]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """(columns, rows): a row for each criterion at each depth."""
        metric = title(self.metric)
        columns = (
            "layers", "criterion", "keeps", f"{metric} lost by the cut, validation", "regret", "rank of its set",
            f"{metric} x 100", "behind the best",
        )  # fmt: skip
        return columns, [self._row(entry) for entry in entries]

    @staticmethod
    def _row(e: Entry) -> tuple[str, ...]:
        sets = list(dict.fromkeys(e.layers))
        shown = told(sets[0]) if len(sets) == 1 else f"{len(sets)} sets, by the seed"
        spread = f" (sd {100 * statistics.stdev(e.scores):.2f})" if len(e.scores) > 1 else ""
        return (
            str(e.depth),
            e.criterion,
            shown,
            f"{e.points:.2f}",
            "" if e.regret is None else f"{e.regret:.2f}",
            "" if e.rank is None else f"{e.rank} of {e.sets}",
            f"{100 * e.mean:.2f}{spread}" if e.scores else "",
            "" if e.behind is None else _points(e.behind),
        )


def contest(
    name: str, place: int, depths: Sequence[int], seeds: int, verb: str | None, recover: bool, options: RunOptions,
    console: Console,
) -> None:  # fmt: skip
    """Run it and tell: a table, what may be said, and a tracked run above those of every cut.

    depths: how many layers stay; empty: every number below the model's.  seeds: how many, from the recipe's on.
    recover: whether the cuts are recovered and measured.  verb: of the recipe's stages, those that run then.
    Raises UserError when the folder holds something else.
    """
    if depths:  # the recipe's own number is nobody's here, and must not be held against what is protected
        own = Override(f"stages.{place}.keep", max(depths), "--keep")
        options = dataclasses.replace(options, overrides=(*options.overrides, own))
    recipe = load_recipe(name, overrides=options.overrides)
    seeds_run = range(recipe.seed, recipe.seed + seeds)
    with StopFlag() as stop:
        one = Contest(name, place, depths, seeds_run, verb, options, console, stop)
        try:
            entries, lines = _held(one, recover)
        except Stopped as stopped:
            raise Stopped(stopped.reason, resume_command(one.base)) from None
    columns, rows = one.table(entries)
    console.table("", columns, rows)
    for line in lines:
        console.result(line)
    console.document({"folder": str(one.base), "entries": [_as_json(e) for e in entries], "notes": lines})


def _held(one: Contest, recover: bool) -> tuple[list[Entry], list[str]]:
    """The contest inside its tracked run."""
    recipe, folder = one.recipe, one.base / "contest"
    with open_asked(
        folder,
        one.options,
        name=one.base.name,
        method=recipe.method or "prune",
        role="summary",
        warn=one.console.warn,
    ) as log:
        log.params({"method": recipe.method, "recipe": recipe.name, "seeds": ", ".join(map(str, one.seeds))})
        entries = one.chosen()
        entries = one.ranked(one.recovered(entries, log) if recover else entries)
        columns, rows = one.table(entries)
        lines = one.lines(entries) + _conditions(one, recover)
        log.table(folder / "contest.json", columns, rows)
        log.metrics({f"contest/{e.criterion}_{e.depth}_layers": e.mean for e in entries if e.scores})
        log.note(description(columns, rows, lines))
    return entries, lines


def _conditions(one: Contest, recover: bool) -> list[str]:
    chosen = f"all criteria chose on the same {len(one.subject.spread):,} training texts"
    if not recover:
        return [chosen]
    plan = next((s.training for s in one.recipe.stages[one.place + 1 :] if hasattr(s, "training")), None)
    steps = "" if plan is None else f" and recovered by the same {plan.length} of {plan.batch_rows} rows"
    seeds = f"{len(one.seeds)} seed" + ("s" if len(one.seeds) > 1 else "")
    note = "intervals resample rows and seeds, widened for the number of comparisons"
    return [f"{chosen}{steps}, {seeds}", note]


def _as_json(e: Entry) -> dict[str, Any]:
    values = dataclasses.asdict(e)
    return values | {"layers": [list(kept) for kept in e.layers]}


def _points(d: Interval) -> str:
    return f"{100 * d.value:+.2f} [{100 * d.low:+.2f}, {100 * d.high:+.2f}]"


def told(layers: Sequence[int]) -> str:
    """A set of layers as people read it."""
    return " ".join(map(str, layers))
