"""Label names between our list and the `id2label` / `label2id` pair of a `config.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from compress.encoder.config.encoder import HeadConfig, Problem
from compress.errors import UserError, printable

MAX_LABELS = 100_000

PROBLEMS: Mapping[str, Problem] = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


RELEVANCE = ("LABEL_0",)
"""The one answer of a reranker, as sentence-transformers and transformers call it."""
SPAN_NAMES = ("start", "end")
"""What a question-answering head answers, whatever a config calls it (transformers writes LABEL_0 and LABEL_1)."""
_STORED: Mapping[str, Problem] = {"ranking": "regression"}
"""What transformers calls a problem that it has no word for; `cross_encoder` writes beside it what it is."""


def names_of(head: HeadConfig, values: Mapping[str, Any], where: str) -> list[str]:
    """The names of a task head's answers by a config; none of an embedding. Raises as `read_names`."""
    if head.kind == "embedding":
        return []
    if head.problem == "ranking":
        return list(RELEVANCE)
    return list(SPAN_NAMES) if head.kind == "question_answering" else read_names(values, head.labels, where)


def default_names(count: int) -> list[str]:
    """LABEL_0, LABEL_1 ...: what transformers calls the labels of a model that names none."""
    return [f"LABEL_{i}" for i in range(count)]


def read_names(values: Mapping[str, Any], count: int, where: str) -> list[str]:
    """The `count` label names of a config, in order of their ids; LABEL_i where it names none.

    Raises UserError when the names are not those of ids 0..count-1, or when the two maps disagree.
    """
    id2label = _id2label(values, where)
    if id2label is None:
        return default_names(count)
    by_id = {_id(key, where): str(name) for key, name in id2label.items()}
    if sorted(by_id) != list(range(count)):
        found = ", ".join(map(str, sorted(by_id)[:8])) or "none"
        raise UserError(f"id2label has ids {found}", where=where, why=f"the classifier's ids are 0..{count - 1}")
    names = [by_id[i] for i in range(count)]
    if len(set(names)) != count:
        twice = next(name for name, times in Counter(names).items() if times > 1)
        raise UserError(f"id2label has two labels named '{printable(twice, 40)}'", where=where)
    label2id = values.get("label2id")
    if label2id is not None and label2id != {name: i for i, name in enumerate(names)}:
        raise UserError("label2id is not the inverse of id2label", where=where, do="correct or remove label2id")
    return names


def count_labels(values: Mapping[str, Any], where: str) -> int:
    """How many labels a config speaks of, before its weights were looked at (transformers' default is 2)."""
    id2label = _id2label(values, where)
    count = values.get("num_labels", 2 if id2label is None else len(id2label))
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_LABELS:
        found = printable(repr(count), 40)
        raise UserError(f"the number of labels is {found}", where=where, why=f"allowed: 1..{MAX_LABELS}")
    return count


def read_problem(values: Mapping[str, Any], count: int, where: str) -> Problem:
    """The problem of a classification head; with none named, one output is a regression, as in transformers."""
    problem = values.get("problem_type")
    if problem is None:
        return "regression" if count == 1 else "single_label"
    if not isinstance(problem, str) or problem not in PROBLEMS:
        raise UserError(
            f"problem_type {printable(repr(problem), 60)} is not supported",
            where=where,
            why="known: " + ", ".join(PROBLEMS),
        )
    return PROBLEMS[problem]


def write_names(names: Sequence[str], problem: str) -> dict[str, Any]:
    """The part of a `config.json` that tells labels and problem."""
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        "problem_type": next(theirs for theirs, ours in PROBLEMS.items() if ours == _STORED.get(problem, problem)),
    }


def _id2label(values: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    found = values.get("id2label")
    if found is None:
        return None
    if not isinstance(found, dict) or not all(isinstance(name, str | int | float) for name in found.values()):
        raise UserError("id2label must map ids to names", where=where)
    return found


def _id(key: object, where: str) -> int:
    try:
        return int(str(key))
    except ValueError:
        raise UserError(
            f"id2label has the key {printable(repr(key), 40)}", where=where, why="keys are ids: 0, 1, 2 ..."
        ) from None
