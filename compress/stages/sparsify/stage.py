"""Set two of every four weights of a trained encoder's layers to zero; a distillation after it recovers it."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from compress import registry
from compress.contracts import SparseMethod
from compress.encoder.config.layer_shape import PATTERN
from compress.encoder.infer import statistics
from compress.encoder.infer.semi_structured import skips_zeros
from compress.encoder.modules.model import Model
from compress.stages.shared.model_shape import ModelShape
from compress.stages.shared.originals import Original, plan_same_shape
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput
from compress.stages.sparsify import conversion
from compress.stages.sparsify.conversion import SparsifiedMatrix
from compress.stages.sparsify.spec import Spec
from compress.tracking import TrackedRun

METHODS = "compress.stages.sparsify.methods"
BATCH_ROWS = 32
ERRORS = "errors.json"
NO_FASTER = "2:4 sparsity does not reduce the file size, and is only faster on GPUs of compute capability 8.0 or more"


class Stage:
    """A trained model and real text → the same model with 2:4 sparse matrices."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        return plan_same_shape(self.spec.level, start, teacher, general, conversion.refuse)

    def plan(self) -> list[str]:
        return [f"set two of every four weights of the layers' matrices to zero, by {self.spec.method.kind}"]

    def prepare(self) -> PreparedStage:
        """Set two of every four weights to zero here; nothing is left for the training loop.

        Raises UserError where there is no model, and for one of a form that the stage rejects; Stopped where a signal
        asked for it."""
        c, s = self.context, self.spec
        original = Original.of(c, s.level, "sparsify")
        model = original.loaded.model
        conversion.refuse(model.config, str(original.folder))
        method: SparseMethod = registry.build(METHODS, s.method)
        inputs = statistics.inputs(model, original.batches(BATCH_ROWS))
        matrices = sum(len(shape.sizes(1)) for shape in model.config.group_shapes)
        with c.workshop.progress("matrices", matrices, "matrices") as progress:
            cuts = conversion.sparsify_matrices(model, method, inputs, c.workshop.stop, progress.update)
        made = conversion.convert(model, cuts).eval()
        dense = conversion.left_dense(model.config)
        c.say(f"{len(cuts)} matrices are now {PATTERN} sparse")
        if dense:
            names = ", ".join(dense)
            c.say(f"{len(dense)} matrices stay dense because torch's kernels do not support their sizes: {names}")
        c.say(_honest(c.device))
        return self._prepared(original, made, cuts, dense)

    def _prepared(
        self, original: Original, made: Model, cuts: Mapping[str, SparsifiedMatrix], dense: list[str]
    ) -> PreparedStage:
        loaded = original.loaded
        notes = [
            f"two of every four weights of {len(cuts)} matrices set to zero, by {self.spec.method.kind}",
            NO_FASTER,
        ]
        if dense:
            notes.append(f"dense matrices: {', '.join(dense)}")
        meta = original.meta(*notes)
        return PreparedStage(
            finish=lambda: StageOutput(made, loaded.tokenizer_files, meta),
            params={
                "student.layers": made.config.depth,
                "student.hidden": made.config.hidden,
                "sparsify.method": self.spec.method.kind,
                "sparsify.matrices": len(cuts),
                "sparsify.dense": len(dense),
            },
            told=functools.partial(self._tell, cuts),
        )

    def _tell(self, cuts: Mapping[str, SparsifiedMatrix], log: TrackedRun) -> None:
        names = list(dict.fromkeys(name.split(".", 1)[1] for name in cuts))
        groups = list(dict.fromkeys(name.split(".", 1)[0] for name in cuts))

        def cell(name: str) -> str:
            return f"{100 * cuts[name].error:.2f} %" if name in cuts else "dense"

        columns = ("layer", *names)
        rows = [(group, *(cell(f"{group}.{name}") for name in names)) for group in groups]
        self.context.show("output error of each matrix, share of variance", columns, rows)
        log.table(self.context.folder / ERRORS, columns, rows)


def _honest(device: str) -> str:
    """What the zeros are good for here."""
    if skips_zeros(device):
        return "the file size does not change; this GPU can skip the zeros (compress benchmark --runtime torch-sparse)"
    where = "this GPU" if device.startswith("cuda") else "the CPU"
    return (
        f"the model is neither smaller nor faster on {where}: the file stores the zeros and all weights are computed; "
        "GPUs of compute capability 8.0 or more can skip them (--runtime torch-sparse)"
    )
