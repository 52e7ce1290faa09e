"""Quantize a fine-tuned encoder without training it (PTQ), and say what that does to each of its modules.

What comes out keeps its float weights and rounds them wherever they are used, so that training goes on from it: a stage
of kind distill after this one is quantization-aware training (QAT).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch

from compress.contracts import Batch
from compress.data.batches import evaluation_batches
from compress.encoder.model import Model
from compress.encoder.quantization import Quantization, refuse_quantized
from compress.encoder.quantized import quantized_modules, set_mode
from compress.encoder.quantizing import calibrate, planned, quantized
from compress.modelfolder.folder import LoadedModel, load_model
from compress.objectives.hard_labels import Objective as HardLabels
from compress.quantize.report import Report
from compress.quantize.sensitivity import Damage, Scan, Tried, fewest_back
from compress.quantize.spec import Spec
from compress.stages import (
    Finished,
    Outline,
    Prepared,
    StageContext,
    TaskData,
    check_same_labels,
    folder_meta,
    require_folder,
    task_choice,
    task_validation,
)
from compress.training.module import StageModule

MAX_TOKENS = 4096
"""Real tokens that are read at once."""


class Stage:
    """The model before it (or the teacher), and labelled rows → the same model, quantized."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        # Rounding is measured in the precision that it is deployed in.
        self.spec, self.context = spec, dataclasses.replace(context, precision="fp32")

    def outline(self, start: Outline | None, teacher: Outline | None, general: Outline | None) -> Outline | None:
        made = start or teacher
        if made is None:
            return None
        if made.config is not None:
            refuse_quantized(made.config, "quantizing it again", "the model")
        return dataclasses.replace(made, config=None)

    def plan(self) -> list[str]:
        s = self.spec
        rules = f"{len(s.rules)} rule{'s' * (len(s.rules) != 1)}" if s.rules else ""
        how = " and ".join(part for part in (f"scheme {s.scheme}" if s.scheme else "", rules) if part)
        bound = "" if s.max_drop is None else f"; modules go back to float until it costs {s.max_drop:g} points at most"
        return [f"quantize by {how}, ranges observed on {s.rows:,} training texts{bound}"]

    def prepare(self) -> Prepared:
        c, s = self.context, self.spec
        folder = require_folder(c.model or c.teacher, "a fine-tuned model to quantize", "MODEL", "quantize")
        loaded = load_model(folder, require={"task"}, keep={"task"}, device=c.device)
        refuse_quantized(loaded.config, "quantizing it again", str(folder))
        quantization = planned(s, loaded.model)
        table = c.table()
        check_same_labels(loaded, table)
        data = TaskData.encode(table, loaded, c)
        batches = self._spread(data, s.rows)
        made = quantized(loaded.model, quantization, str(folder)).eval()
        read = calibrate(made, batches, c.workshop.stop)
        parts = quantized_modules(made)
        observed = f", ranges observed on {read:,} training texts" if read else ""
        c.say(f"{len(parts)} of the model's matrices and tables are quantized{observed}")
        damage = self._damage(made, self._spread(data, min(s.scan_rows, s.rows)))
        back, tried = self._fall_back(made, damage, data)
        if back:
            made = without(loaded.model, made, quantization, back)
        report = Report(list(parts), damage, back, tried, c, made)
        return self._prepared(folder, loaded, made, back, report)

    def _prepared(
        self, folder: Path, loaded: LoadedModel, made: Model, back: frozenset[str], report: Report
    ) -> Prepared:
        c, s = self.context, self.spec
        meta = folder_meta(c, {"parent": folder}, c.table())
        scheme = s.scheme or "the recipe's rules"
        notes = [f"quantized by {scheme}, without training"]
        if back:
            notes.append(f"back in float: {', '.join(sorted(back))}")
        meta = meta.model_copy(update={"notes": (*meta.notes, *notes)})
        return Prepared(
            finish=lambda: Finished(made, loaded.tokenizer_files, meta),
            params={
                "student.layers": made.config.depth,
                "student.hidden": made.config.hidden,
                "quantize.scheme": scheme,
                "quantize.modules": len(quantized_modules(made)),
                "quantize.float": len(back),
            },
            told=report.tell,
        )

    def _spread(self, data: TaskData, rows: int) -> list[Batch]:
        """Training rows, spread over the split."""
        count = min(rows, len(data.train))
        places = torch.linspace(0, len(data.train) - 1, count).round().long().unique()
        few = evaluation_batches(data.train.take(places.numpy()), MAX_TOKENS)
        return [batch.to(self.context.device) for batch in few]

    def _damage(self, made: Model, batches: list[Batch]) -> Damage | None:
        c, s = self.context, self.spec
        if not s.sensitivity and s.max_drop is None:
            return None
        scan = Scan(made, batches, c.workshop.stop)
        with c.workshop.progress("what each module costs", len(quantized_modules(made))) as progress:
            return scan.damage(lambda done: progress.update(done))

    def _fall_back(self, made: Model, damage: Damage | None, data: TaskData) -> tuple[frozenset[str], list[Tried]]:
        limit = self.spec.max_drop
        if limit is None or damage is None:
            return frozenset(), []
        metric, _ = task_choice(self.context.table())
        module = StageModule(made, {"hard_labels": (1.0, HardLabels())})
        validate = task_validation(data.validation, self.context.table(), self.context)

        def value(names: frozenset[str] | None) -> float:
            """With these modules in float; None: with all of them."""
            self.context.workshop.stop()
            set_mode(made, lambda name: "float" if names is None or name in names else "quantized")
            with torch.no_grad():
                found: Mapping[str, float] = validate(module)
            set_mode(made, "quantized")
            return found[metric]

        whole = value(None)
        return fewest_back(damage.worst_first, lambda names: 100 * (whole - value(names)), limit)


def without(source: Model, made: Model, quantization: Quantization, back: frozenset[str]) -> Model:
    """`made`, which is `source` quantized, with the modules `back` in float."""
    fewer = quantized(source, quantization.without(back)).eval()
    known = made.state_dict()
    fewer.load_state_dict({name: known[name] for name in fewer.state_dict()})
    return fewer
