"""Remove whole layers of an encoder, chosen by a criterion on real text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from compress import registry
from compress.contracts import LayerChoice, LayerCriterion
from compress.encoder.reshape.students import check_layer_map, take_layers
from compress.errors import UserError
from compress.stages.prune_layers import targets
from compress.stages.prune_layers.report import Report
from compress.stages.prune_layers.spec import Spec
from compress.stages.prune_layers.study import LayerStudy
from compress.stages.prune_layers.subject import Subject
from compress.stages.shared.folder_meta import folder_meta
from compress.stages.shared.model_shape import ModelShape
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput
from compress.stages.shared.timing import measure_models

PACKAGE = "compress.stages.prune_layers.criteria"


class Stage:
    """Drops layers of the previous model (or the teacher), chosen on labelled rows."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        model = start or teacher
        if model is None:
            return None
        keep = targets.kept_count(self.spec, model.depth)
        if self.spec.layers is not None:
            check_layer_map(self.spec.layers, model.depth)
        protected = targets.find_protected_layers(self.spec, model.depth, False)
        if keep is not None:
            targets.check_fits(keep, protected)
        if keep is None:
            return dataclasses.replace(model, depth_known=False)
        return dataclasses.replace(model, depth=keep)

    def plan(self) -> list[str]:
        s = self.spec
        if s.layers is not None:
            return [f"keep layers {list(s.layers)}"]
        if s.keep is not None:
            goal = f"keep {'half of the' if isinstance(s.keep, str) else s.keep} layers"
        elif s.drop is not None:
            goal = f"drop {s.drop} layers"
        elif s.max_drop is not None:
            goal = f"drop as many layers as possible at a loss of at most {s.max_drop:g} points"
        else:
            goal = f"drop as few layers as needed to reach {s.target_latency:g} ms"
        at_most = f", at most {s.max_layers_per_stage} at a time" if s.max_layers_per_stage else ""
        return [f"{goal}{at_most}, chosen by {s.criterion.kind} on up to {s.rows:,} training texts"]

    def prepare(self) -> PreparedStage:
        """Choose the layers that stay and cut the model here; nothing is left for the training loop.

        Raises UserError where there is no model, where target or protected layers do not fit it, and for one of a
        form that the stage rejects."""
        subject = Subject.of(self.context, self.spec.rows)
        study = subject.study(self.context.seed)
        depth = subject.loaded.config.depth
        if self.spec.layers is not None:
            why = "not among the listed layers"
            gone = [i for i in range(depth) if i not in self.spec.layers]
            choice, tried = LayerChoice(self.spec.layers, dict.fromkeys(gone, why)), None
        else:
            choice, tried = self._chosen(subject, study)
        self.context.say(sentence(choice, depth))
        if depth - 1 not in choice.keep:
            self.context.say(f"the heads now read layer {choice.keep[-1]}, since the last layer is dropped")
        kind = "listed" if self.spec.layers is not None else self.spec.criterion.kind
        report = Report(kind, choice, depth, study, tried, self.context)
        meta = folder_meta(self.context, {"parent": subject.folder}, subject.table)
        notes = (*meta.notes, f"layers {_listed(choice.keep)} of 0..{depth - 1} of its parent, chosen by {kind}")
        cut = take_layers(subject.loaded.model, choice.keep)
        return PreparedStage(
            finish=lambda: StageOutput(
                cut, subject.loaded.tokenizer_files, meta.model_copy(update={"notes": notes})
            ),
            params={
                "student.layers": len(choice.keep),
                "student.hidden": subject.loaded.config.hidden,
                "prune.criterion": kind,
                "prune.removed": _listed([i for i in range(depth) if i not in choice.keep]),
            },
            told=report.tell,
        )  # fmt: skip

    # --- which layers --------------------------------------------------------------------------------------

    def _chosen(
        self, subject: Subject, study: LayerStudy
    ) -> tuple[LayerChoice, tuple[str, Sequence[targets.DepthTrial]] | None]:
        spec, depth = self.spec, study.depth
        protected = targets.find_protected_layers(spec, depth, not subject.loaded.config.first_norm)
        if protected and spec.protect is None:
            self.context.say("layer 0 is protected by default; set protect: [] to allow its removal")
        criterion = build(spec.criterion, study)

        def choose(keep: int) -> LayerChoice:
            targets.check_fits(keep, protected)
            return criterion(study, keep, protected)

        keep, least = targets.kept_count(spec, depth), max(1, len(protected))
        if keep is not None:
            return choose(keep), None
        if spec.max_drop is not None:
            choice, tried = targets.deepest_within(spec.max_drop, depth, least, choose, subject.points_lost)
            return choice, ("points lost", tried)
        choice, tried = targets.shallowest_within(
            spec.target_latency or 0, depth, least, choose, lambda sets: self._times(subject, sets)
        )
        return choice, ("ms", tried)

    def _times(self, subject: Subject, sets: Sequence[Sequence[int]]) -> list[float]:
        """Median milliseconds of the model with each of these sets of layers, timed in turn."""
        models = [take_layers(subject.loaded.model, keep) for keep in sets]
        return [x.p50 for x in measure_models(models, self.context.recipe.evaluation.latency, self.context.device)]


def build(row: Any, study: LayerStudy) -> LayerCriterion:
    """The criterion that a recipe row means. Raises UserError when it needs labels that are not there."""
    criterion: LayerCriterion = registry.build(PACKAGE, row)
    if criterion.reads_labels and not study.labelled:
        raise UserError(
            f"criterion {row.kind} needs labels, and no training row has one",
            where=study.name,
            do="give labelled data, or use a criterion that needs no labels, such as cka",
        )
    return criterion


def sentence(choice: LayerChoice, depth: int) -> str:
    """Which layers go, as people read it."""
    gone = [i for i in range(depth) if i not in choice.keep]
    return f"layers 0..{depth - 1}: {_listed(gone)} dropped, {_listed(choice.keep)} kept"


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))
