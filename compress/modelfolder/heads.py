"""What the families share when they read heads out of a config and the stored tensors."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from compress.encoder.config.encoder import Activation, HeadConfig, HeadKind, HeadStyle
from compress.errors import UserError, nearest, printable
from compress.modelfolder.fields import Fields
from compress.modelfolder.labels import count_labels, read_problem

# transformers' names of the activations that we compute; three of its names are one formula.
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

CLASSIFIER, SPANS = "classifier.weight", "qa_outputs.weight"

# How the class of a task head is called after the family's own name (BertFor…, DistilBertFor…).
TASK_CLASSES: Mapping[str, HeadKind] = {
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "token_classification",
    "ForQuestionAnswering": "question_answering",
}


def list_claimed_heads(fields: Fields, architectures: Mapping[str, Set[str]]) -> set[str]:
    """The heads of the class that the config names. Raises UserError for a class whose head we do not know."""
    value: Any = fields.values.get("architectures")
    if not value:
        return set()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UserError("architectures must be a list of class names", where=fields.where)
    name = value[0]
    if name not in architectures:
        hint = nearest(name, architectures)
        raise UserError(
            f"class {printable(name, 60)} is not supported",
            where=fields.where,
            why="known: " + ", ".join(architectures),
            do=f"if its head is that of {hint}, write {hint} under architectures" if hint else None,
        )
    return set(architectures[name])


def task_kind(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> HeadKind:
    """The kind of the task head, by the class that the config names.

    With none named, by the tensors: `qa_outputs` is only in question answering, and the rest is taken for a
    classification of sequences (a classification of tokens has the same names).
    """
    if SPANS in shapes:
        return "question_answering"
    names = fields.values.get("architectures") or [""]
    named: list[HeadKind] = [kind for ending, kind in TASK_CLASSES.items() if str(names[0]).endswith(ending)]
    return named[0] if named else "classification"


def task_class(prefix: str, head: HeadConfig) -> str:
    """The class that holds a task head: `BertForTokenClassification` for the prefix `Bert`."""
    return prefix + next(ending for ending, kind in TASK_CLASSES.items() if kind == head.kind)


def task_classes(prefix: str) -> dict[str, frozenset[str]]:
    """Class name → its heads, of the task classes that every family has under its own prefix."""
    return {prefix + ending: frozenset({"task"}) for ending in TASK_CLASSES}


def task_head(
    fields: Fields, shapes: Mapping[str, tuple[int, ...]], style: HeadStyle, dropout: float | None
) -> HeadConfig:
    """The task head that the config and the stored tensors speak of. Raises UserError for what no head of ours is."""
    kind = task_kind(fields, shapes)
    if kind == "question_answering":
        return HeadConfig(kind, style=style, dropout=dropout)
    found = classification(fields, shapes, style, dropout)
    return found if kind == "classification" else HeadConfig(kind, labels=found.labels, style=style, dropout=dropout)


def classification(
    fields: Fields, shapes: Mapping[str, tuple[int, ...]], style: HeadStyle, dropout: float | None
) -> HeadConfig:
    """The task head: as many labels as the config says, or as the stored classifier has rows where it says nothing."""
    rows = shapes.get(CLASSIFIER, ())
    silent = "id2label" not in fields.values and "num_labels" not in fields.values
    count = rows[0] if silent and len(rows) == 2 else count_labels(fields.values, fields.where)
    problem = read_problem(fields.values, count, fields.where)
    if problem == "regression" and count != 1:
        raise UserError(f"a regression with {count} outputs is not supported", where=fields.where, why="allowed: 1")
    return HeadConfig("classification", labels=count, problem=problem, style=style, dropout=dropout)
