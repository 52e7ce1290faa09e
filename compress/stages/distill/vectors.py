"""A distillation of sentence embeddings: what it may ask for, and students whose vectors have another width."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import Examples
from compress.data.tables.table import spread_places
from compress.data.task import Task
from compress.encoder.modules.model import Model
from compress.encoder.reshape.project import project_vectors
from compress.errors import UserError, format_count
from compress.stages.distill.spec import Spec
from compress.stages.shared.model_shape import make_vector_objective_error
from compress.stages.shared.stage import StageContext
from compress.stages.shared.task_data import SPREAD_TOKENS
from compress.stages.shared.task_head import ONE_LABEL
from compress.stages.shared.validation import collect_logits

OWN = "vectors and vector_similarity"
FITTED_TEXTS = 4096
"""Most texts to which a Dense module is fitted."""
RIDGE = 1e-3
"""Of the mean square of a dimension: what is added so that few texts give no wild matrix."""


def find_width_objective(objectives: Mapping[str, tuple[float, nn.Module]]) -> str | None:
    """The first that compares the vectors of student and teacher number by number; None: there is none."""
    found = (name for name, (_, o) in objectives.items() if getattr(o, "of_vectors", False))
    return next((name for name in found if not getattr(objectives[name][1], "any_width", False)), None)


def make_width_error(objective: str, ours: int, theirs: int) -> UserError:
    """Of a stage before, which made the vectors as wide as they are."""
    return UserError(
        f"objective {objective} compares vectors of one width", where="objectives",
        why=f"the student's have {ours} dimensions, the teacher's {theirs}", do="use vector_similarity",
    )  # fmt: skip


def match_width(
    student: Model,
    width: int,
    train: Examples,
    ask: Callable[[np.ndarray], np.ndarray],
    context: StageContext,
) -> Model:
    """The student with vectors of the teacher's `width` D: its own, multiplied by the matrix (d, D) that brings their
    directions nearest to the teacher's, by ridge regression on texts of `train`. (A Dense module: Reimers and Gurevych,
    arXiv 2004.09813, reduce the teacher's vectors instead.)

    ask: places of N examples → the teacher's vectors (N, D) of them.
    """
    own = student.head_configs["task"].labels
    if own == width:
        return student
    places = spread_places(len(train), FITTED_TEXTS)
    some = train.take(places)
    batches = (batch.to(context.device) for batch in evaluation_batches(some, SPREAD_TOKENS))
    mode = student.training
    with torch.no_grad():
        ours = collect_logits(student.eval(), batches, some)
    matrix = fit_matrix(torch.from_numpy(ours), torch.from_numpy(ask(places)))
    context.say(
        f"the student's vectors have {own} dimensions; a Dense module maps them to the teacher's {width} "
        f"(initialized by least squares on {format_count(len(some), 'text')})"
    )
    return project_vectors(student, matrix.to(next(student.parameters()))).train(mode)


def fit_matrix(ours: Tensor, theirs: Tensor) -> Tensor:
    """(N, d) and (N, D) vectors → (d, D) fp32, which brings the directions of the first nearest to those of the
    second."""
    x, y = (nn.functional.normalize(vectors.double(), dim=1) for vectors in (ours, theirs))
    square = x.T @ x
    square.diagonal().add_(RIDGE * square.diagonal().mean())
    return torch.linalg.solve(square, x.T @ y).float()


def check_objectives(objectives: Mapping[str, tuple[float, nn.Module]], spec: Spec, task: Task) -> None:
    """Raise UserError for objectives that read a task head's output as what it is not, and for options that a
    distillation of embeddings does not have."""
    embeds = task.label_free
    for name, (_, objective) in objectives.items():
        if not embeds and getattr(objective, "one_class", False) and task.head != ONE_LABEL:
            raise UserError(
                f"objective {name} needs one class per row, and the task is {task.kind}", where="objectives",
                do="use soft_targets for this task, as in recipe distilbert-task",
            )  # fmt: skip
        reads = getattr(objective, "student_needs").logits  # noqa: B009 - of every objective
        if not reads or getattr(objective, "of_vectors", False) == embeds:
            continue
        if embeds:
            raise UserError(
                f"objective {name} needs the outputs of a task head, and this is an embedding model",
                where="objectives",
                do=f"for a smaller embedding model use {OWN}, as in recipe embed-distil; for a classifier or tagger, "
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
