"""Quantize a fine-tuned encoder without training (PTQ) and report the sensitivity of each module.

What comes out keeps its float weights and rounds them wherever they are used, so that training goes on from it: a stage
of kind distill after this one is quantization-aware training (QAT).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from compress import registry
from compress.contracts import Batch
from compress.encoder.config.quantization import PACKAGE, PartQuantization, Quantization
from compress.encoder.config.unsupported import refuse_quantized
from compress.encoder.infer.prepare import prepare
from compress.encoder.integers.convert import calibrate, plan_quantization, quantize_model
from compress.encoder.integers.fake_quantized import list_quantized_modules
from compress.encoder.modules.model import Model
from compress.errors import format_count
from compress.modelfolder.folder import LoadedModel, load_model
from compress.stages.quantize.report import Report
from compress.stages.quantize.sensitivity import Damage, FallbackTrial, Scan, fewest_back
from compress.stages.quantize.spec import Spec
from compress.stages.shared.folder_meta import folder_meta
from compress.stages.shared.model_shape import ModelShape
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput, require_folder
from compress.stages.shared.task_data import TaskData, sample_batches
from compress.stages.shared.task_head import check_same_labels
from compress.stages.shared.validation import score_model, task_choice, task_validation


class Stage:
    """Quantizes the previous model (or the teacher), calibrated on labelled rows."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        # Rounding is measured in the precision that it is deployed in.
        self.spec, self.context = spec, dataclasses.replace(context, precision="fp32")

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        made = start or teacher
        if made is None:
            return None
        if made.config is not None:
            refuse_quantized(made.config, "quantizing it again", "")
        return dataclasses.replace(made, config=None)

    def plan(self) -> list[str]:
        s = self.spec
        rules = format_count(len(s.rules), "rule") if s.rules else ""
        how = " and ".join(part for part in (f"scheme {s.scheme}" if s.scheme else "", rules) if part)
        bound = (
            ""
            if s.max_drop is None
            else f"; modules fall back to {s.fall_back} until the loss is at most {s.max_drop:g} points"
        )
        return [f"quantize by {how}, ranges observed on up to {s.rows:,} training texts{bound}"]

    def prepare(self) -> PreparedStage:
        """Quantize the model here, and find modules that fall back; nothing is left for the training loop.

        Raises UserError where there is no model with a task head, where its labels are not the table's, and where it
        is quantized already; Stopped where a signal asked for it."""
        c, s = self.context, self.spec
        folder = require_folder(c.model or c.teacher, "a fine-tuned model to quantize", "MODEL", "quantize")
        loaded = load_model(folder, require={"task"}, keep={"task"}, device=c.device)
        refuse_quantized(loaded.config, "quantizing it again", str(folder))
        quantization = plan_quantization(s, loaded.model)
        table = c.table()
        check_same_labels(loaded, table)
        data = TaskData.encode(table, loaded, c)
        labelled = len(data.train)
        batches = sample_batches(data.train, labelled, s.rows, c)
        made = quantize_model(loaded.model, quantization, str(folder)).eval()
        read = calibrate(made, batches, c.workshop.stop)
        parts = list_quantized_modules(made)
        observed = f", ranges observed on {read:,} training texts" if read else ""
        c.say(f"{len(parts)} of the model's matrices and tables are quantized{observed}")
        few = sample_batches(data.train, labelled, min(s.scan_rows, s.rows), c)
        damage, back, tried = self._looked_at(loaded.model, made, quantization, data, few)
        if back:
            made = apply_fallback(loaded.model, made, quantization, back, s.fall_back)
        report = Report(list(parts), damage, back, tried, c, made, s.fall_back)
        return self._prepared(folder, loaded, made, back, report)

    def _prepared(
        self, folder: Path, loaded: LoadedModel, made: Model, back: frozenset[str], report: Report
    ) -> PreparedStage:
        c, s = self.context, self.spec
        meta = folder_meta(c, {"parent": folder}, c.table())
        scheme = s.scheme or "the recipe's rules"
        notes = [f"quantized by {scheme}, without training"]
        if back:
            notes.append(f"fallback to {s.fall_back}: {', '.join(sorted(back))}")
        meta = meta.model_copy(update={"notes": (*meta.notes, *notes)})
        return PreparedStage(
            finish=lambda: StageOutput(made, loaded.tokenizer_files, meta),
            params={
                "student.layers": made.config.depth,
                "student.hidden": made.config.hidden,
                "quantize.scheme": scheme,
                "quantize.modules": len(list_quantized_modules(made)),
                "quantize.fallen_back": len(back),
            },
            told=report.tell,
        )

    def _looked_at(
        self, source: Model, made: Model, quantization: Quantization, data: TaskData, few: list[Batch]
    ) -> tuple[Damage | None, frozenset[str], list[FallbackTrial]]:
        """(what each module alone costs, modules that fall back, all tried). No module is looked at where nobody
        asked and the bound holds with all of them."""
        s = self.spec
        if s.max_drop is None:
            return self._damage(made, few) if s.sensitivity else None, frozenset(), []
        cost = self._cost(source, made, quantization, data)
        if not s.sensitivity and (points := cost(frozenset())) <= s.max_drop:
            return None, frozenset(), [FallbackTrial(0, points, True)]
        damage = self._damage(made, few)
        return damage, *fewest_back(damage.worst_first, cost, s.max_drop)

    def _damage(self, made: Model, few: list[Batch]) -> Damage:
        scan = Scan(made, few, self.context.workshop.stop)
        count = len(list_quantized_modules(made))
        with self.context.workshop.progress("sensitivity of each module", count, "modules") as progress:
            return scan.damage(lambda done: progress.update(done))

    def _cost(
        self, source: Model, made: Model, quantization: Quantization, data: TaskData
    ) -> Callable[[frozenset[str]], float]:
        """Modules fallen back → points that the model costs on validation; of each set measured once."""
        metric, _ = task_choice(self.context.table())
        parent = functools.cache(lambda: prepare(source))
        validate = task_validation(data, self.context.table(), self.context, parent=parent)

        def value(model: Model) -> float:
            self.context.workshop.stop()
            return score_model(model, validate, metric)

        @functools.cache
        def cost(names: frozenset[str]) -> float:
            return 100 * (
                whole - value(apply_fallback(source, made, quantization, names, self.spec.fall_back) if names else made)
            )

        whole = value(source)
        return cost


def apply_fallback(
    source: Model, made: Model, quantization: Quantization, back: frozenset[str], to: Literal["16-bit", "float"]
) -> Model:
    """`made`, which is `source` quantized, with the modules `back` in 16 bits or in float."""
    wide = PartQuantization(registry.schema(PACKAGE, "per_channel").model_validate({"kind": "per_channel", "bits": 16}))
    other = quantization.without(back) if to == "float" else quantization.with_part(back, wide)
    fewer = quantize_model(source, other).eval()
    known = made.state_dict()
    fewer.load_state_dict({name: known[name] for name in fewer.state_dict()})
    return fewer
