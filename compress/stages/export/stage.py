"""Export a fine-tuned encoder to ONNX and check its outputs on real rows; the model is unchanged."""

from __future__ import annotations

import numpy as np

from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.text.tokenizer_files import complete
from compress.modelfolder.folder import load_model
from compress.predict.predictor import MAX_TOKENS
from compress.stages.export.spec import Spec
from compress.stages.shared.folder_meta import folder_meta
from compress.stages.shared.model_shape import ModelShape
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput, require_folder
from compress.stages.shared.task_data import TaskData
from compress.stages.shared.task_head import check_same_labels


class Stage:
    """The model before it (or the teacher), and labelled rows → the same model with its file beside it."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        return start or teacher

    def plan(self) -> list[str]:
        kind = ", standard operators only" if self.spec.portable else ""
        return [f"write model.onnx, opset {self.spec.opset}{kind}, checked on {self.spec.rows:,} validation texts"]

    def prepare(self) -> PreparedStage:
        """Write the ONNX file and check it on validation rows here; nothing is left for the training loop.

        Raises UserError where the extra `onnx` is not installed, where there is no model with a task head, where its
        labels are not the table's, and for a file whose outputs do not match."""
        from compress.onnx.writer import write_as_saved  # needs the extra

        c, s = self.context, self.spec
        folder = require_folder(c.model or c.teacher, "a fine-tuned model to export", "MODEL", "export")
        loaded = load_model(folder, require={"task"}, keep={"task"}, device="cpu")
        table = c.table()
        check_same_labels(loaded, table)
        examples = TaskData.encode(table, loaded, c).validation
        few = examples.take(np.arange(min(s.rows, len(examples))))
        meta = folder_meta(c, {"parent": folder}, table)
        files = complete(loaded.tokenizer_files, str(folder))
        batches, what = list(evaluation_batches(few, MAX_TOKENS)), f"{table.display_name}/validation"
        written = write_as_saved(loaded, files, meta, "task", batches, what, opset=s.opset, portable=s.portable)
        for line in written.findings:
            c.say(line)
        c.say(f"model.onnx: {len(written.content) / 1e6:.1f} MB")
        meta = meta.model_copy(update={"notes": (*meta.notes, written.note)})
        return PreparedStage(
            finish=lambda: StageOutput(loaded.model, files, meta, beside=written.files),
            params={
                "student.layers": loaded.config.depth,
                "student.hidden": loaded.config.hidden,
                "export.opset": s.opset,
                "export.precision": written.record["precision"],
            },
        )
