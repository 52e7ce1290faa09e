"""`compress prune-layers --criterion all`: compares criteria that prune the same model to the same depths.

All choose on the same text, drawn anew for each seed, and recover by the same steps. Criteria that choose the same
layers share their runs.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection, Sequence
from itertools import combinations, count
from math import comb
from pathlib import Path

from compress import registry
from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.data.batches.randomness import order
from compress.data.task import ScoredAnswers
from compress.errors import ExitCode, UserError
from compress.experiments.criteria_table import (
    COIN,
    Entry,
    Layers,
    Weighted,
    as_json,
    format_conclusions,
    format_layers,
    rank_entries,
    table,
)
from compress.measure.measured_model import MeasuredModel
from compress.recipe import LoadedRecipe
from compress.report.rows import description
from compress.run import Run
from compress.run.folder import Found, choose_base, make_base, note_new_run, resumable
from compress.run.jobs import Job, JobSet, hold_cluster, require_cluster, run_jobs
from compress.stages.prune_layers.spec import TARGETS
from compress.stages.prune_layers.stage import PACKAGE, build
from compress.stages.prune_layers.subject import Subject, figure
from compress.stages.prune_layers.targets import check_fits, find_protected_layers, kept_count
from compress.storage.signals import StopFlag
from compress.tracking import TrackedRun, open_requested_run
from evaluation.quality.runs import DrawnFigures, MeanFigure

CONTEST, TABLE = "contest", "contest.json"
"""The folder of the tracked run above those of the cuts, and what it holds once they are compared."""
LIMIT = 1000  # sets of layers that are all tried, to know the best
QUICK = {"repeats": 5, "seconds": 1.0}  # models of one depth cost the same: timing all of them tells nothing


class CriterionComparison:
    """One model, several depths, several criteria. place: of the recipe's stage that cuts.  draws: sets of layers that
    are drawn at random for each depth, and measured after recovery like the criteria's: what a coin is worth."""

    def __init__(
        self, loaded: LoadedRecipe, place: int, depths: Sequence[int], seeds: Sequence[int], criteria: Sequence[str],
        draws: int, verb: str | None, options: RunOptions, console: Console, stop: StopFlag,
    ) -> None:  # fmt: skip
        self.loaded, self.place, self.seeds, self.verb = loaded, place, list(seeds), verb
        self.criteria, self.draws = list(criteria), draws
        self.options, self.console = options, console
        self.recipe = loaded.recipe
        self.base = choose_base(f"{self.recipe.name}-contest", options, _look)
        if self.base.exists() and not options.resume:
            raise UserError(
                "the output folder exists",
                where=f"--output {self.base}",
                do="use --resume to continue it, or name a new folder",
                code=ExitCode.REFUSED,
            )
        self.run = Run(self.recipe, options, console, None, {}, stop=stop)
        spec = self.recipe.stages[place]
        self.subject = Subject.of(self.run.workplace(place, self.base), spec.rows)
        config = self.subject.loaded.config
        self.whole: Layers = tuple(range(config.depth))
        self.depths = list(dict.fromkeys(depths)) or list(range(config.depth - 1, 0, -1))
        self.protected = find_protected_layers(spec, config.depth, not config.first_norm)
        for depth in self.depths:
            kept_count(spec.model_copy(update={"keep": depth, "drop": None}), config.depth)
            check_fits(depth, self.protected)
        self.studies = {seed: self.subject.study(seed) for seed in self.seeds}
        self._measured: dict[tuple[Layers, int], MeasuredModel] = {}

    @property
    def metric(self) -> str:
        """The main metric of the task."""
        return self.subject.metric

    # --- choosing, and what it costs before recovery ----------------------------------------------------------

    def apply_criteria(self) -> list[Entry]:
        """Every criterion at every depth, before recovery; one that cannot choose there is told and left out."""
        entries = []
        for depth in self.depths:
            here = {}
            for kind in self.criteria:
                try:
                    here[kind] = tuple(self._choose(kind, depth, seed) for seed in self.seeds)
                except UserError as error:
                    self.console.note(f"{kind} to {depth} layers: {error}")
                    continue
                shown = "; ".join(map(format_layers, dict.fromkeys(here[kind])))
                self.console.note(f"{kind} to {depth} layers: keeps {shown}")
            self.subject.worth([self.whole, *self.list_sets(depth), *(kept for each in here.values() for kept in each)])
            entries += [self._before_recovery(kind, depth, layers) for kind, layers in here.items()]
        return entries

    def _choose(self, kind: str, depth: int, seed: int) -> Layers:
        study = self.studies[seed]
        row = self.recipe.stages[self.place].criterion
        if row.kind != kind:  # else with the options that the recipe gives it
            row = registry.schema(PACKAGE, kind).model_validate({"kind": kind})
        return build(row, study)(study, depth, self.protected).keep

    def list_sets(self, depth: int) -> list[Layers]:
        """All sets of so many layers that hold the protected ones; none where they are too many to try."""
        return list_layer_sets(self.whole, self.protected, depth, LIMIT) or []

    def draw_random_sets(self, depth: int) -> list[Layers]:
        """The sets that the coin drew, or all where there are no more; the same for all seeds."""
        return draw_layer_sets(self.whole, self.protected, depth, self.draws, self.recipe.seed)

    def _before_recovery(self, kind: str, depth: int, layers: tuple[Layers, ...]) -> Entry:
        lost = [self.subject.points_lost(kept) for kept in layers]
        entry = Entry(kind, depth, layers, statistics.mean(lost))
        sets = self.list_sets(depth)
        if not sets:
            return entry
        worth = self.subject.worth(sets)
        losses = [one.loss for one in worth.values()]
        ranks = [1 + sum(loss < worth[kept].loss for loss in losses) for kept in layers]
        best = min(self.subject.points_lost(kept) for kept in sets)
        return dataclasses.replace(entry, regret=entry.points - best, rank=statistics.mean(ranks), sets=len(sets))

    # --- after recovery ---------------------------------------------------------------------------------------

    def run_recovery(self, entries: Sequence[Entry], log: TrackedRun) -> list[Entry]:
        """The same, each set of layers cut, recovered and measured once for each seed."""
        wanted: dict[tuple[Layers, int], list[str]] = {}
        for entry in entries:
            for layers, seed in zip(entry.layers, self.seeds, strict=True):
                wanted.setdefault((layers, seed), []).append(entry.criterion)
        for depth in self.depths:
            for number, layers in enumerate(self.draw_random_sets(depth), 1):
                for seed in self.seeds:
                    wanted.setdefault((layers, seed), []).append(f"draw {number}")
        jobs = []
        for number, ((layers, seed), criteria) in enumerate(wanted.items(), 1):
            title = f"run {number} of {len(wanted)}: layers {format_layers(layers)}, seed {seed}: {', '.join(criteria)}"
            jobs.append(self._make_job(layers, seed, criteria, title))
        # Its own folder was claimed: what is inside belongs to it.
        outcomes = run_jobs(jobs, JobSet(self.base, self.options, self.verb, {}, log.parent, True), self.console)
        for key, outcome in zip(wanted, outcomes, strict=True):
            student = outcome.find("student")
            assert student is not None
            self._measured[key] = student
        return [self._scored(entry) for entry in entries]

    def _make_job(self, layers: Layers, seed: int, criteria: Sequence[str], title: str) -> Job:
        at, origin = f"stages.{self.place}", "--criterion all"
        said = [Override(f"{at}.{key}", None, origin) for key in (*TARGETS, "max_layers_per_stage", "protect")]
        said += [Override(f"{at}.layers", list(layers), origin), Override("seed", seed, origin)]
        said += [Override(f"evaluation.latency.{key}", value, origin) for key, value in QUICK.items()]
        place = f"keep-{len(layers)}/{'-'.join(map(str, layers))}/seed-{seed}"
        tags = {"compress.criteria": ", ".join(criteria)}
        return Job(place, self.loaded.and_then(*said).recipe, self.base / place, title, tags, draws=True)

    def _scored(self, entry: Entry) -> Entry:
        values = [self._measured[layers, seed].measurement.values for layers, seed in self._runs(entry)]
        scores = tuple(v[f"quality/{self.metric}"] for v in values)
        sets = self.draw_random_sets(entry.depth)
        if not sets or len(sets) < len(self.list_sets(entry.depth)):
            return dataclasses.replace(entry, scores=scores)
        gaps, ranks = [], []
        for score, seed in zip(scores, self.seeds, strict=True):
            every = [self._measured[kept, seed].measurement.values[f"quality/{self.metric}"] for kept in sets]
            gaps.append(100 * (max(every) - score))
            ranks.append(1 + sum(other > score for other in every))
        after = {"regret_after": statistics.mean(gaps), "rank_after": statistics.mean(ranks)}
        return dataclasses.replace(entry, scores=scores, **after)

    # --- what may be said -------------------------------------------------------------------------------------

    def rank_entries(self, entries: Sequence[Entry]) -> list[Entry]:
        """By depth, the best first, with paired intervals: of the measured rows after recovery, of the validation rows
        before it."""
        found = []
        for depth in self.depths:
            here = [e for e in entries if e.depth == depth]
            found += rank_entries(here, [self._figures(e) for e in here], self._coin(here), self._rows(here))
        return found

    def _figures(self, entry: Entry) -> list[Weighted]:
        """The metric as it follows from draws of rows, for each seed."""
        return [scored.metrics[self.metric] for scored in self._answers(entry)]

    def _answers(self, entry: Entry) -> list[ScoredAnswers]:
        if not entry.scores:
            return [one.scored for one in (self.subject.worth([kept])[kept] for kept in entry.layers)]
        found = [self._measured[layers, seed].scored for layers, seed in self._runs(entry)]
        return [scored for scored in found if scored is not None]

    def _runs(self, entry: Entry) -> list[tuple[Layers, int]]:
        return list(zip(entry.layers, self.seeds, strict=True))

    def _rows(self, here: Sequence[Entry]) -> int:
        return self._answers(here[0])[0].rows if here else 0

    def _coin(self, here: Sequence[Entry]) -> Sequence[Weighted | DrawnFigures] | None:
        """What layers drawn at random are worth at this depth, for each seed: the mean of all sets where all were
        measured alike, else of those that were drawn."""
        if not here:
            return None
        every, drawn = self.list_sets(here[0].depth), self.draw_random_sets(here[0].depth)
        if every and not here[0].scores:
            worth = self.subject.worth(every).values()
            return [MeanFigure(tuple(one.scored.metrics[self.metric] for one in worth))] * len(self.seeds)
        if drawn and here[0].scores:
            kind = MeanFigure if len(drawn) == len(every) else DrawnFigures
            return [kind(tuple(self._metric(kept, seed) for kept in drawn)) for seed in self.seeds]
        own = next((e for e in here if e.criterion == COIN), None)
        return None if own is None else self._figures(own)

    def _metric(self, layers: Layers, seed: int) -> Weighted:
        scored = self._measured[layers, seed].scored
        assert scored is not None
        return scored.metrics[self.metric]


def list_layer_sets(whole: Layers, protected: Collection[int], depth: int, most: int) -> list[Layers] | None:
    """All sets of `depth` layers of `whole` that hold the protected ones; None where they are more than `most`."""
    free = [i for i in whole if i not in protected]
    size = depth - len(protected)
    if comb(len(free), size) > most:
        return None
    return [tuple(sorted({*protected, *some})) for some in combinations(free, size)]


def draw_layer_sets(whole: Layers, protected: Collection[int], depth: int, draws: int, seed: int) -> list[Layers]:
    """`draws` different ones of these sets, drawn by the seed; all of them where there are no more."""
    every = list_layer_sets(whole, protected, depth, draws)
    if every is not None:
        return every
    free = [i for i in whole if i not in protected]
    found: dict[Layers, None] = {}
    for number in count():
        if len(found) == draws:
            break
        some = order(len(free), "contest-draws", seed, depth, number)[: depth - len(protected)]
        found[tuple(sorted({*protected, *(free[place] for place in some)}))] = None
    return list(found)


def compare_criteria(
    loaded: LoadedRecipe, place: int, depths: Sequence[int], seeds: int, criteria: Sequence[str], draws: int,
    verb: str | None, recover: bool, options: RunOptions, console: Console,
) -> None:  # fmt: skip
    """Run it and tell: a table, what may be said, and a tracked run above those of every cut.

    depths: how many layers stay; empty: every number below the model's.  seeds: how many, from the recipe's on.
    criteria: their kinds.  draws: sets of layers that a coin draws at each depth, recovered too.
    recover: whether the cuts are recovered and measured.  verb: of the recipe's stages, those that run then.
    Raises UserError when the folder holds something else.
    """
    if depths:  # the recipe's own number is nobody's here, and must not be held against what is protected
        loaded = loaded.and_then(Override(f"stages.{place}.keep", max(depths), "--keep"))
    seeds_run = range(loaded.recipe.seed, loaded.recipe.seed + seeds)
    with StopFlag() as stop, hold_cluster(options):
        require_cluster(options)
        asked = (loaded, place, depths, seeds_run, criteria, draws, verb, options, console, stop)
        one = CriterionComparison(*asked)
        if options.dry_run:
            for depth in one.depths:
                console.result(f"would compare at {depth} layers: {', '.join(one.criteria)}")
            return
        note_new_run(options, console.note)
        while not make_base(one.base, options):  # another command has taken its folder
            one = CriterionComparison(*asked)
        with resumable(one.base):
            entries, lines = _held(one, recover)
    columns, rows = table(entries, one.metric)
    console.table("", columns, rows)
    for line in lines:
        console.result(line)
    console.document({"folder": str(one.base), "entries": [as_json(e) for e in entries], "notes": lines})


def _look(base: Path) -> Found:
    """What a folder holds of a comparison: whichever it was, its runs are told apart by their layers and seeds."""
    if (base / CONTEST).is_dir():
        return Found.FINISHED if (base / CONTEST / TABLE).is_file() else Found.UNFINISHED
    return Found.FOREIGN if any(base.iterdir()) else Found.NONE_YET


def _held(one: CriterionComparison, recover: bool) -> tuple[list[Entry], list[str]]:
    """The contest inside its tracked run."""
    recipe, folder = one.recipe, one.base / CONTEST
    with open_requested_run(
        folder,
        one.options,
        name=one.base.name,
        method=recipe.method or "prune",
        role="summary",
        warn=one.console.warn,
    ) as log:
        log.params({"method": recipe.method, "recipe": recipe.name, "seeds": ", ".join(map(str, one.seeds))})
        entries = one.apply_criteria()
        entries = one.rank_entries(one.run_recovery(entries, log) if recover else entries)
        columns, rows = table(entries, one.metric)
        lines = format_conclusions(entries) + _conditions(one, recover)
        log.table(folder / TABLE, columns, rows)
        log.metrics({f"contest/{e.criterion}_{e.depth}_layers": e.mean for e in entries if e.scores})
        log.metrics({f"contest/{e.criterion}_{e.depth}_layers_points_lost": e.points for e in entries})
        log.note(description(columns, rows, lines))
    return entries, lines


def _conditions(one: CriterionComparison, recover: bool) -> list[str]:
    seeds = f"{len(one.seeds)} seed" + ("s, each with its own random subset" if len(one.seeds) > 1 else "")
    chosen = f"the criteria chose on the same {one.subject.rows:,} training texts"
    rows, whole = one.subject.table.split("validation"), one.subject.worth([one.whole])[one.whole].scored
    said = [f"before pruning {100 * figure(whole, one.metric):.2f} on {len(rows):,} validation rows"]
    note = "intervals resample rows and seeds, widened for the number of comparisons at a depth"
    if not recover:
        return [*said, f"{chosen}, {seeds}; no recovery training", note]
    plan = next((s.training for s in one.recipe.stages[one.place + 1 :] if hasattr(s, "training")), None)
    steps = "" if plan is None else f" and recovery training with the same {plan.length} of {plan.batch_rows} rows"
    coins = (
        [(depth, len(one.draw_random_sets(depth)), len(one.list_sets(depth))) for depth in one.depths]
        if one.draws
        else []
    )
    said += [f"{d} layers: the random baseline: {'all' if n == every else 'mean of'} {n} sets" for d, n, every in coins]
    return [*said, f"{chosen}{steps}, {seeds}", note]
