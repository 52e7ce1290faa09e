"""Layer maps: which layer of the teacher each layer of the student is compared with.

Layers are counted from 0. A map is a list of pairs (student layer, teacher layer); rules give it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from compress.encoder.config.encoder import EncoderConfig
from compress.errors import UserError, did_you_mean

Pairs = tuple[tuple[int, int], ...]
Choice = Literal["fixed", "learned", "smallest"]


@dataclass(frozen=True)
class ModelPair:
    """What an objective that compares layers is told before training.

    pairs: what a map with fixed pairs says.  choice: "fixed"; "learned": each student layer weighs all teacher layers
    by a softmax that trains along; "smallest": at each step the teacher layer with the smallest loss.
    """

    student: EncoderConfig
    teacher: EncoderConfig
    pairs: Pairs
    choice: Choice = "fixed"


def _spread(student: int, teacher: int) -> Pairs:
    """g(m) = m·N/M on the outputs counted from 1, rounded up where M does not divide N."""
    return tuple((m, -(-(m + 1) * teacher // student) - 1) for m in range(student))


def _tinybert(student: int, teacher: int) -> Pairs:
    if teacher % student:
        fitting = ", ".join(str(n) for n in range(1, teacher + 1) if teacher % n == 0)
        raise UserError(
            f"map tinybert: {student} student layers do not divide {teacher} teacher layers",
            where="layer_map",
            why="g(m) = m·N/M must be an integer",
            do=f"use uniform, or a student of {fitting} layers",
        )
    return _spread(student, teacher)


def halve_depth(depth: int) -> int:
    """Half of so many layers, rounded up: how many a student has by default, and as many as every other layer gives."""
    return (depth + 1) // 2


def _every_other(student: int, teacher: int) -> Pairs:
    if 2 * student - 1 > teacher:
        raise UserError(
            f"map every-other needs teacher layer {2 * student - 2}",
            where="layer_map",
            why=f"the teacher's layers are 0..{teacher - 1}",
            do=f"use uniform, or a student of at most {halve_depth(teacher)} layers",
        )
    return tuple((m, 2 * m) for m in range(student))


def _pkd(rule: str, pairs: Pairs) -> Pairs:
    if len(pairs) < 2:
        raise UserError(
            f"map {rule} skips the last student layer, but the student has only one",
            where="layer_map",
            do="use uniform",
        )
    return pairs[:-1]


RULES: dict[str, Callable[[int, int], Pairs]] = {
    "uniform": _spread,
    "first": lambda s, t: tuple((m, m) for m in range(s)),
    "last": lambda s, t: tuple((m, t - s + m) for m in range(s)),
    "every-other": _every_other,
    "tinybert": _tinybert,
    "pkd-skip": lambda s, t: _pkd("pkd-skip", _spread(s, t)),
    "pkd-last": lambda s, t: _pkd("pkd-last", tuple((m, t - s + m) for m in range(s))),
}
"""Rules that need nothing but the two depths (PKD: Sun et al., arXiv 1908.09355; TinyBERT: arXiv 1909.10351)."""

MEASURED = "cka"
"""Each student layer takes the teacher layer it resembles most, measured on data before training."""
TRAINED: dict[str, Choice] = {"learned": "learned", "smallest": "smallest"}
START = "start"
"""Each student layer is compared with the teacher layer that it was copied from."""
NAMES = (*RULES, START, MEASURED, *TRAINED)


def resolve(name: str, student: int, teacher: int) -> Pairs:
    """The pairs of a rule for these depths. Raises UserError for a rule that cannot be followed, with what can."""
    if name not in RULES:
        raise UserError(f"unknown layer map '{name}'", where="layer_map", do=did_you_mean(name, NAMES))
    if student > teacher:
        raise UserError(
            f"the student has {student} layers, the teacher {teacher}",
            where="layer_map",
            why=f"map {name} assigns a different teacher layer to each student layer",
            do=f"list the pairs: student 0..{student - 1}, teacher 0..{teacher - 1}",
        )
    return RULES[name](student, teacher)


def check(pairs: Sequence[tuple[int, int]], student: int, teacher: int) -> Pairs:
    """`pairs` when every layer exists and no student layer is named twice. Raises UserError with the legal ranges."""
    legal = f"allowed: student 0..{student - 1}, teacher 0..{teacher - 1}"
    if not pairs:
        raise UserError("the layer map is empty", where="layer_map", why=legal)
    for index, (ours, theirs) in enumerate(pairs):
        if not (0 <= ours < student and 0 <= theirs < teacher):
            raise UserError(f"layers [{ours}, {theirs}] do not exist", where=f"layer_map.{index}", why=legal)
    seen = [ours for ours, _ in pairs]
    twice = next((s for s in seen if seen.count(s) > 1), None)
    if twice is not None:
        raise UserError(f"student layer {twice} is listed twice", where="layer_map", do="map it to one teacher layer")
    return tuple((s, t) for s, t in pairs)
