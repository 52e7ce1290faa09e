"""Data that needs no download: one seeded grammar of English-like opinions, read as every kind of task.

Meaning is composed (negation, contrast, who said what and whether it stands), so a bag of words does not see it. The
label of a text is the opinion that it leaves standing: of two contrasted clauses the one it comes down on, of two
speakers the last. The same name, seed and VERSION give the same rows on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from compress.data.embedded import claims, opinions, relations, spans
from compress.data.embedded.splits import Row
from compress.errors import UserError, did_you_mean

VERSION = "1"


@dataclass(frozen=True)
class Description:
    """What a set is: kind of task (`data.tasks`, or "corpus"), the columns of its rows in order, its label names
    (of classes or tags)."""

    task: str
    columns: tuple[str, ...]
    label_names: tuple[str, ...]
    summary: str


@dataclass(frozen=True)
class _Set:
    make: Callable[[int, str], dict[str, list[Row]]]
    description: Description


_SETS = {
    "opinions": _Set(
        opinions.opinions,
        Description(
            "classification",
            ("text", "label"),
            opinions.LABELS,
            "the final opinion of a text with negations and contrasts",
        ),
    ),
    "opinions-pairs": _Set(
        relations.pairs,
        Description(
            "pair-classification",
            ("sentence1", "sentence2", "label"),
            relations.PAIR_LABELS,
            "does the second sentence follow from the first",
        ),
    ),
    "opinions-similarity": _Set(
        relations.similarity,
        Description("regression", ("sentence1", "sentence2", "score"), (), "similarity in meaning, from 0 to 5"),
    ),
    "opinions-claims": _Set(
        claims.claims,
        Description(
            "multi-label", ("text", "labels"), claims.LABELS, "aspects that are praised, criticized or only mentioned"
        ),
    ),
    "opinions-tags": _Set(
        spans.tags,
        Description("token-classification", ("tokens", "labels"), spans.TAGS, "aspects and opinion words"),
    ),
    "opinions-qa": _Set(
        spans.questions,
        Description(
            "extractive-qa",
            ("context", "question", "answers", "answer_starts"),
            (),
            "who has which opinion of what; the answer is a span of the context",
        ),
    ),
    "opinions-corpus": _Set(
        opinions.corpus, Description("corpus", ("text",), (), "documents of several sentences, one sentence per line")
    ),
}
NAMES = tuple(_SETS)


def generate(name: str, seed: int = 0) -> dict[str, list[Row]]:
    """The rows of each split of the set `name`. Raises UserError for a name that is not in NAMES."""
    return _find(name).make(seed, VERSION)


def describe(name: str) -> Description:
    """Task, columns and label names of the set `name`. Raises UserError for a name that is not in NAMES."""
    return _find(name).description


def fingerprint(name: str, seed: int = 0) -> str:
    """sha256 that stands for the rows of `generate(name, seed)`: equal exactly when name, seed and VERSION are."""
    _find(name)
    return hashlib.sha256(f"compress/embedded/{VERSION}/{name}/{seed}".encode()).hexdigest()


def _find(name: str) -> _Set:
    if name not in _SETS:
        raise UserError(f"unknown embedded data set '{name}'", do=did_you_mean(name, NAMES))
    return _SETS[name]
