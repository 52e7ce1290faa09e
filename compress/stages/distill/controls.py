"""The controls of a distillation: what the same steps on hard labels alone make of the student, from each start."""

from __future__ import annotations

from contextlib import suppress

from compress import registry
from compress.contracts import CONTROL, CONTROL_FROM_TEACHER
from compress.encoder.config.encoder import EncoderConfig
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.resolve import resolve
from compress.stages.distill import layers
from compress.stages.distill.spec import Spec
from compress.stages.distill.student_spec import StudentSpec
from compress.stages.shared.stage import StageContext


def list_controls(spec: Spec, context: StageContext, steps: int) -> dict[str, Spec]:
    """Role → the stage that trains this control for `steps` steps; none where the recipe asks for none.

    `control` starts where the student starts. A student that starts from an encoder without a task head, but has the
    shape of some layers of its fine-tuned teacher, could have started from these: `control-from-teacher` does, since a
    control with a worse start than necessary credits distillation with what the teacher's weights bring.
    """
    if spec.control is False or spec.level == "general":
        return {}
    same = _label_stage(spec, steps)
    found = {CONTROL: same}
    if spec.control_start != "student" and (kept := find_teacher_layers(spec, context)) is not None:
        found[CONTROL_FROM_TEACHER] = same.model_copy(update={"student": StudentSpec(layers=tuple(kept))})
    if spec.control_start == "teacher" and len(found) > 1:
        del found[CONTROL]
    return found


def _label_stage(spec: Spec, steps: int) -> Spec:
    """The same student on hard labels alone."""
    hard = registry.schema("compress.objectives", "hard_labels").model_validate({"kind": "hard_labels"})
    plan = spec.training.model_copy(update={"minutes": None})  # the student's steps, however long they take
    if plan.is_automatic:  # in the same schedule as the student
        plan = plan.model_copy(update={"min_steps": steps, "max_steps": steps})
    else:
        plan = plan.model_copy(update={"steps": steps, "epochs": None})
    changes = {"objectives": (hard,), "use_unlabelled": False, "control": False, "training": plan, "cache": None}
    changes |= {"row_filter": None, "stop": "validation"}  # of rows that it does not read
    changes["checks"] = "off"  # findings were reported when the student was trained
    if spec.augmentation is not None and not spec.augmentation.keep_labels:
        changes["augmentation"] = None  # its rows have no labels
    return spec.model_copy(update=changes)


def find_teacher_layers(spec: Spec, context: StageContext) -> list[int] | None:
    """The teacher's layers that the student could start from; None where it starts from a task model, or cannot."""
    if spec.student is not None and spec.student.model is None:
        return None
    start = context.model if spec.student is None else resolve(spec.student.model or "")
    if start is None or context.teacher is None or context.ensemble is not None:
        return None
    theirs, ours = (modelfolder.inspect(folder) for folder in (context.teacher, start))
    if "task" in ours.heads or "task" not in theirs.heads or not modelfolder.same_vocabulary(start, context.teacher):
        return None
    depth = ours.config.depth if spec.student is None else len(layers.resolve(spec.student, ours.config.depth))
    if spec.student is not None and spec.student.names_widths():
        return None
    kept = _find_listed_layers(spec, context, depth, theirs.config.depth)
    return kept if kept is not None and _has_shape_of(ours.config, theirs.config, kept) else None


def _find_listed_layers(spec: Spec, context: StageContext, depth: int, available: int) -> list[int] | None:
    """The layers that the recipe's last cut of a student names, else evenly spaced ones; None where it is too deep."""
    if depth > available:
        return None
    cuts = [s.student for s in context.recipe.stages if isinstance(s, Spec) and s.student is not None]
    for cut in reversed(cuts):
        if cut.layers is None or cut.model is not None:
            continue
        with suppress(UserError):  # it names layers of a deeper model
            numbers = layers.resolve(cut, available)
            if len(numbers) == depth:
                return numbers
    return layers.resolve(StudentSpec(layers="uniform", count=depth), available)


def _has_shape_of(student: EncoderConfig, teacher: EncoderConfig, kept: list[int]) -> bool:
    """Whether the student's matrices are as wide as those of these layers of the teacher."""
    plain = all(c.quantization is None and c.sharing is None and c.layer_groups is None for c in (student, teacher))
    widths = ("hidden", "vocabulary", "embedding", "max_positions", "positions", "norm")
    same = all(getattr(student, name) == getattr(teacher, name) for name in widths)
    return plain and same and set(student.layers) <= {teacher.layers[i] for i in kept}
