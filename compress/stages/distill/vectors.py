"""What a distillation of sentence embeddings may ask for: objectives that compare vectors, and nothing with classes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from compress.data.task import Task
from compress.errors import UserError
from compress.stages.distill.spec import Spec
from compress.stages.shared.model_shape import make_vector_objective_error

_OWN = "vectors and vector_similarity"


def check_widths(objectives: Mapping[str, tuple[float, nn.Module]], ours: int, theirs: int) -> None:
    """Raise UserError for objectives that compare the vectors of student and teacher number by number, where these
    have other widths."""
    if ours == theirs:
        return
    for name, (_, objective) in objectives.items():
        if getattr(objective, "of_vectors", False) and not getattr(objective, "any_width", False):
            raise UserError(
                f"objective {name} compares vectors of one width", where="objectives",
                why=f"the student's have {ours} dimensions, the teacher's {theirs}", do="use vector_similarity",
            )  # fmt: skip


def check_objectives(objectives: Mapping[str, tuple[float, nn.Module]], spec: Spec, task: Task) -> None:
    """Raise UserError for objectives that read a task head's output as what it is not, and for options that a
    distillation of embeddings does not have."""
    embeds = task.label_free
    for name, (_, objective) in objectives.items():
        reads = getattr(objective, "student_needs").logits  # noqa: B009 - of every objective
        if not reads or getattr(objective, "of_vectors", False) == embeds:
            continue
        if embeds:
            raise UserError(
                f"objective {name} needs the outputs of a task head, and this is an embedding model",
                where="objectives",
                do=f"for a smaller embedding model use {_OWN}, as in recipe embed-distil; for a classifier or tagger, "
                "first run compress finetune on it",
            )  # fmt: skip
        raise make_vector_objective_error(name, ranks=task.ranks)
    if not embeds:
        return
    unsupported = {
        "control": spec.control is True, "augmentation": spec.augmentation, "select": spec.select == "best",
        "row_filter": spec.row_filter, "stop": spec.stop == "agreement",
    }  # fmt: skip
    for name, asked in unsupported.items():
        if asked:
            raise UserError(f"{name} is not supported for sentence embeddings", where=name, do="remove it")
