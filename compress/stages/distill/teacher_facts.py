"""What a teacher says of rows that have labels: how often it agrees, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import Examples
from compress.data.tables.table import spread_places
from compress.stages.distill.probe import TOKENS, AskedModel
from compress.stages.shared.stage import TEACHER_CONFIDENT, TEACHER_NOISE, TEACHER_RIGHT, StageContext
from compress.stages.shared.validation import collect_logits
from compress.training.precision import autocast
from evaluation.quality.agreement import softmax

ROWS = 512
"""Labelled rows that a teacher is asked about, evenly spaced."""
CONFIDENT = 0.95


def ask_about_labels(teacher: AskedModel, train: Examples, labelled: int, context: StageContext) -> Mapping[str, float]:
    """The figures of a model on some of the first `labelled` rows; none for tasks without one label a row or word."""
    few = train.take(spread_places(labelled, ROWS))
    if not _has_classes(few):
        return {}
    with torch.no_grad(), autocast(context.precision, torch.device(context.device)):
        batches = (batch.to(context.device) for batch in evaluation_batches(few, TOKENS))
        return _figures(collect_logits(teacher, batches, few), few.labels)


def compare_with_labels(logits: np.ndarray, train: Examples, labelled: int) -> Mapping[str, float]:
    """The same of teacher columns, (N, C) of the rows or (T, C) of the tokens of `train`."""
    end = labelled if train.words is None else int(train.offsets[min(labelled, len(train))])
    return _figures(logits[:end], train.labels[:end]) if _has_classes(train) else {}


def _has_classes(examples: Examples) -> bool:
    return examples.labels.ndim == 1 and np.issubdtype(examples.labels.dtype, np.integer)


def _figures(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    known = labels >= 0
    if not known.any() or len(logits) != len(labels):
        return {}
    shares, gold = softmax(logits[known]), labels[known]
    right, sure = shares.argmax(1) == gold, shares.max(1) > CONFIDENT
    return {
        TEACHER_RIGHT: float(right.mean()),
        TEACHER_CONFIDENT: float(sure.mean()),
        TEACHER_NOISE: float((sure & ~right).mean()),
    }
