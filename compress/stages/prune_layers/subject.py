"""The model to prune, its calibration text, and the quality of any subset of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from compress.contracts import Needs
from compress.data.batches.evaluation_batches import evaluation_batches, restore_order
from compress.data.batches.randomness import draw_spread_rows
from compress.data.batches.task_batches import TaskBatches
from compress.data.tables.table import Table
from compress.data.task import ScoredAnswers
from compress.data.tasks import task_of
from compress.encoder.config.unsupported import refuse_dropped_tokens, refuse_quantized
from compress.encoder.infer.layer_subsets import Layers, subset_outputs
from compress.encoder.infer.prepare import prepare
from compress.modelfolder.folder import LoadedModel, load_model
from compress.objectives.hard_labels import Objective as HardLabels
from compress.predict.predictor import MAX_TOKENS
from compress.stages.prune_layers.study import LayerStudy
from compress.stages.shared.stage import StageContext, require_folder
from compress.stages.shared.task_data import TaskData
from compress.stages.shared.task_head import check_same_labels
from compress.stages.shared.validation import task_choice

STEP_ROWS = 32  # of what criteria train


@dataclass(frozen=True)
class Worth:
    """What a set of layers answers on the validation rows, without recovery. loss: mean, on the labels."""

    scored: ScoredAnswers
    loss: float


@dataclass(frozen=True)
class Subject:
    """A model and its data. rows: training texts that its layers are judged by."""

    folder: Path
    loaded: LoadedModel
    table: Table
    data: TaskData
    rows: int
    context: StageContext
    _known: dict[Layers, Worth] = field(default_factory=dict, init=False, compare=False)

    @classmethod
    def of(cls, context: StageContext, rows: int) -> Subject:
        """The model before a stage, or the teacher, with the data's rows encoded for it. Raises UserError; for a
        quantized model too, whose rounding was fitted to layers that would not be there any more."""
        folder = require_folder(
            context.model or context.teacher, "a fine-tuned model to prune", "MODEL", "prune_layers"
        )
        loaded = load_model(folder, require={"task"}, keep={"task"}, device=context.device)
        refuse_quantized(loaded.config, "cutting it", str(folder))
        refuse_dropped_tokens(loaded.config, "removing layers", str(folder))
        table = context.table()
        check_same_labels(loaded, table)
        data = TaskData.encode(table, loaded, context)
        return cls(folder, loaded, table, data, min(rows, len(data.train)), context)

    @property
    def metric(self) -> str:
        """The main metric of the data's task."""
        return task_choice(self.table)[0]

    def study(self, seed: int) -> LayerStudy:
        """Of its layers, on training rows that the seed draws."""
        chosen = self.data.train.take(draw_spread_rows(len(self.data.train), self.rows, seed))
        device = self.context.device
        source = TaskBatches(chosen, STEP_ROWS, MAX_TOKENS, seed)
        return LayerStudy(
            self.loaded.model,
            [batch.to(device) for batch in evaluation_batches(chosen, MAX_TOKENS)],
            steps=[batch.to(device) for index in range(source.steps(0)) for batch in source.step(0, index)],
            seed=seed,
            name=str(self.folder),
            stop=self.context.workshop.stop,
        )

    def worth(self, sets: Sequence[Layers]) -> dict[Layers, Worth]:
        """Of each set of layers, on all validation rows. Each is measured once; what sets have in common at their
        start is computed once too."""
        missing = [kept for kept in dict.fromkeys(sets) if kept not in self._known]
        if missing:
            self._known.update(self._measured(missing))
        return {kept: self._known[kept] for kept in sets}

    def _measured(self, sets: Sequence[Layers]) -> dict[Layers, Worth]:
        examples, table, hard = self.data.validation, self.table, HardLabels()
        task, names = task_of(table.task, table.settings), table.label_names
        whole = tuple(range(self.loaded.config.depth))
        if task.label_free:  # rows without labels are scored by the whole model's answers
            sets = list(dict.fromkeys([whole, *sets]))
        prepared = prepare(self.loaded.model)
        parts: dict[Layers, list[tuple[np.ndarray, np.ndarray]]] = {kept: [] for kept in sets}
        losses, count = dict.fromkeys(sets, 0.0), 0
        for batch in evaluation_batches(examples, MAX_TOKENS):
            self.context.workshop.stop()
            here = batch.to(self.context.device)
            terms = hard.count(here)
            count += terms
            for kept, output in subset_outputs(prepared, here, sets, Needs(logits=True)):
                assert output.logits is not None
                losses[kept] += float(hard(output, None, here)) * terms
                parts[kept].append((batch.row_ids.numpy(), output.logits.float().cpu().numpy()))
        rows, answers = table.split("validation"), {k: restore_order(examples, found) for k, found in parts.items()}
        parent = answers.get(whole)

        def score(found: np.ndarray) -> ScoredAnswers:
            if task.label_free and parent is not None:
                return task.score_against(found, parent, names, examples, rows)
            return task.score(found, names, examples, rows)

        return {kept: Worth(score(found), losses[kept] / max(1, count)) for kept, found in answers.items()}

    def points_lost(self, keep: Sequence[int]) -> float:
        """Of the main metric on validation, in hundredths, by keeping only these layers, without recovery."""
        whole, kept = tuple(range(self.loaded.config.depth)), tuple(keep)
        found = self.worth([whole, kept])
        return 100 * (figure(found[whole].scored, self.metric) - figure(found[kept].scored, self.metric))


def figure(scored: ScoredAnswers, metric: str) -> float:
    """A metric's value; 0 where it has none, as the correlation of a model that gives all rows one answer."""
    value = scored.value(metric)
    return value if np.isfinite(value) else 0.0
