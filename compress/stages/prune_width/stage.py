"""Prune an encoder's width: attention heads, feed-forward neurons, head channels and hidden channels.

What is left is an ordinary model of smaller matrices: nothing is masked, so its size and its speed are what they seem.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from compress.contracts import WidthScores
from compress.encoder.infer.prepare import prepare
from compress.encoder.infer.statistics import collect
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import KeptUnits, prune_units
from compress.encoder.reshape.narrow import narrow
from compress.errors import ExitCode, UserError
from compress.stages.prune_width import latency, selection, targets
from compress.stages.prune_width.costs import Costs, Counts
from compress.stages.prune_width.dependency import cut_channels
from compress.stages.prune_width.refit import refit
from compress.stages.prune_width.report import Report, SizeTrial
from compress.stages.prune_width.spec import BUDGETS, COUNTS, WIDTHS, Spec
from compress.stages.prune_width.subject import Subject, check
from compress.stages.shared.divergence import divergence, name_distance, task_answers
from compress.stages.shared.folder_meta import folder_meta
from compress.stages.shared.model_shape import ModelShape
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput
from compress.stages.shared.timing import measure_models

ATTEMPTS = 6
"""Sizes that are timed on the way to a latency."""


class Stage:
    """Prunes the width of the previous model (or the teacher), scored on labelled rows."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        made = start or teacher
        if made is not None and made.embeds and self.spec.hidden is not None:
            raise UserError(
                "narrower hidden states are not supported for sentence embeddings", where="hidden",
                why="the vectors would be narrower too",
                do="prune heads and neurons, or distil a narrower student: compress distill --recipe embed-distil "
                "--hidden-size N",
            )  # fmt: skip
        if made is None or made.config is None:
            return made
        check(self.spec, made.config, made.config)
        return dataclasses.replace(made, config=None)

    def plan(self) -> list[str]:
        s = self.spec
        asked = [] if s.ratio is None else [f"keep {1 - s.ratio:g} of heads and neurons"]
        given = (name for name in (*COUNTS, *WIDTHS, *BUDGETS) if name != "ratio" and getattr(s, name))
        asked += [f"{name} {_said(getattr(s, name))}" for name in given]
        how = "non-uniform over layers" if s.uneven else "uniform over layers"
        part = "" if s.schedule == 1 else f", {100 * s.schedule:.0f} % of the target"
        return [f"{', '.join(asked)}{part}; {how}, by {s.importance.kind} on up to {s.rows:,} training texts"]

    def prepare(self) -> PreparedStage:
        """Choose heads, neurons and channels and cut the model here; nothing is left for the training loop.

        Raises UserError where there is no model, for targets that do not fit it, and for one of a form that the
        stage rejects; Stopped where a signal asked for it."""
        subject = Subject.of(self.spec, self.context)
        with self.context.workshop.progress("importance of heads and neurons", None) as bar:
            subject.study.told = lambda done, steps: bar.update(done, of=steps)
            counts, made, kept = self._cut(subject)
        made = self._narrowed(made, subject, counts)
        before, after = (subject.costs(c, "operations").maximum for c in (subject.config, made.config))
        self.context.workshop.stop()
        whole = subject.loaded.model
        moved = divergence(prepare(made), prepare(whole), subject.validation, task_answers(whole))
        report = Report(
            kind=self.spec.importance.kind,
            before=subject.config,
            after=made.config,
            kept=kept,
            scores=subject.scores,
            moved=moved,
            distance=name_distance(whole),
            rows=sum(batch.rows for batch in subject.validation),
            operations=(before, after),
            tried=subject.tried,
            context=self.context,
        )
        meta = folder_meta(self.context, {"parent": subject.folder}, self.context.table())
        note = f"width pruned by {self.spec.importance.kind}: {'; '.join(report.sentences())}"
        meta = meta.model_copy(update={"notes": (*meta.notes, note)})
        config = made.config
        return PreparedStage(
            finish=lambda: StageOutput(made, subject.loaded.tokenizer_files, meta),
            params={
                "student.layers": config.depth,
                "student.hidden": config.hidden,
                "prune.importance": self.spec.importance.kind,
                "prune.heads": _listed([s.heads for s in config.layers]),
                "prune.feed_forward": _listed([s.feed_forward for s in config.layers]),
            },
            told=report.tell,
        )

    # --- heads and neurons ------------------------------------------------------------------------------------

    def _cut(self, subject: Subject) -> tuple[Counts, Model, KeptUnits | None]:
        model, config = subject.loaded.model, subject.config
        if not targets.asks_counts(self.spec):
            return Counts.of(config), model, None
        subject.scores = subject.importance(subject.study)
        self.context.workshop.stop()
        if self.spec.target_latency is not None:
            return self._within(self.spec.target_latency, subject, subject.scores)
        counts = self._counts(subject, subject.scores)
        if counts == Counts.of(config) and not self._narrows(subject):
            return self._uncut(subject)
        return counts, *self._made(subject, counts)

    def _uncut(self, subject: Subject) -> tuple[Counts, Model, KeptUnits]:
        """A round of a schedule whose target an earlier round has reached, as heads and neurons are whole."""
        self.context.say("nothing is removed: an earlier round has reached the target of this one")
        return Counts.of(subject.config), subject.loaded.model, KeptUnits.everything(subject.config)

    def _made(self, subject: Subject, counts: Counts) -> tuple[Model, KeptUnits]:
        """The model with so many heads and neurons, which the importance chooses."""
        scores, importance = subject.scores, subject.importance
        assert scores is not None
        kept = selection.select_highest(scores, counts)
        if importance.rearranges:
            kept = selection.exchange_units(kept, subject.study.gradients(getattr(importance, "on", "labels")))
        made = prune_units(subject.study.trained or subject.loaded.model, kept)
        if self.spec.refit if self.spec.refit is not None else importance.refits:
            refit(made, subject.loaded.model, kept, subject.study.batches, self.context.workshop.stop)
        return made, kept

    def _counts(self, subject: Subject, scores: WidthScores) -> Counts:
        s, config = self.spec, subject.config
        in_loss = subject.importance.in_loss
        if s.ratio is not None:
            costs = subject.costs(config, "operations")
            counts = targets.ratio_counts(s, config, subject.origin, scores, costs, in_loss)
        elif s.target_params is not None or s.target_flops is not None:
            key = "target_params" if s.target_params is not None else "target_flops"
            costs, budget = subject.budget()
            if subject.was_cut and budget >= costs.maximum:
                return Counts.of(config)
            counts = targets.budget_counts(s, config, scores, costs, budget, key, in_loss)
        else:
            counts = targets.kept_counts(s, config, subject.origin, scores)
        if counts == Counts.of(config) and not self._narrows(subject) and not subject.was_cut:
            raise UserError(
                "nothing would be removed", where="prune_width", do="set smaller targets, or remove this stage"
            )
        return counts

    # --- a latency --------------------------------------------------------------------------------------------

    def _within(self, target: float, subject: Subject, scores: WidthScores) -> tuple[Counts, Model, KeptUnits]:
        """As much as a latency allows, planned by the table of blocks and proved by timing what was made."""
        c, s, config = self.context, self.spec, subject.config
        plan = c.recipe.evaluation.latency
        wide = targets.narrow_config(s, config, subject.origin)
        table, path = latency.table(wide, subject.loaded.heads, plan, c.device)
        c.say(f"latency of building blocks: {path}" + ("; the machine was busy when it was measured" * table.busy))
        costs = table.costs(wide)
        limit = target
        if s.schedule < 1:
            whole = measure_models([subject.loaded.model], plan, c.device)[0].p50
            limit = max(target, whole - s.schedule * (whole - target))
        if limit >= costs.maximum:
            if not subject.was_cut:
                raise self._already(limit, costs)
            return self._uncut(subject)
        budget = limit
        for _ in range(ATTEMPTS):
            budget = max(budget, costs.minimum)
            if budget <= costs.minimum:
                counts = Counts((1,) * len(scores.heads), (1,) * len(scores.neurons))
            else:
                in_loss = subject.importance.in_loss
                counts = targets.budget_counts(s, config, scores, costs, budget, "target_latency", in_loss)
            made, kept = self._made(subject, counts)
            proof = self._narrowed(made, subject, counts)
            ours, theirs = (x.p50 for x in measure_models([proof, subject.loaded.model], plan, c.device))
            tried = SizeTrial(proof.config.count_parameters(), costs.of(counts), ours, theirs, ours <= limit)
            subject.tried.append(tried)
            if tried.met:
                return counts, made, kept
            if budget <= costs.minimum:
                break
            budget *= 0.98 * limit / ours
        best = min(subject.tried, key=lambda t: t.ms)
        raise UserError(
            f"{limit:g} ms cannot be reached by width pruning here",
            where="target_latency",
            why=f"the fastest measured model takes {best.ms:.2f} ms, the parent {best.whole:.2f} ms",
            do="allow more time, make hidden smaller, drop layers, or shorten evaluation.latency.length",
            code=ExitCode.REFUSED,
        )

    @staticmethod
    def _already(limit: float, costs: Costs) -> UserError:
        return UserError(
            f"{limit:g} ms is not below the model's latency",
            where="target_latency",
            why=f"the model takes {costs.maximum:.2f} ms here",
            do="set a smaller target",
        )

    # --- channels ---------------------------------------------------------------------------------------------

    def _narrows(self, subject: Subject) -> bool:
        return targets.narrow_config(self.spec, subject.config, subject.origin) != subject.config

    def _narrowed(self, made: Model, subject: Subject, counts: Counts) -> Model:
        """`made` with narrower heads and hidden states, where they are asked for."""
        s = self.spec
        config = targets.narrow_config(s, made.config, subject.origin)
        width = targets.stock_heads(s, made.config, counts.heads)
        if width is not None:
            layers = tuple(dataclasses.replace(shape, head_width=width) for shape in config.layers)
            config = dataclasses.replace(config, layers=layers)
        if config == made.config:
            return made
        self.context.workshop.stop()
        if config.hidden != made.config.hidden and s.stream == "channels":
            made = cut_channels(made, selection.find_highest(subject.importance.hidden(subject.study), config.hidden))
            config = dataclasses.replace(made.config, layers=config.layers)
            if config == made.config:
                return made
        return narrow(made, config, "svd", statistics=collect(made, subject.study.batches))


def _said(value: Any) -> str:
    return _listed(value) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
