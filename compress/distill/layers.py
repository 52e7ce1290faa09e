"""Layer maps: which teacher layer each student layer starts from."""

from __future__ import annotations

from collections.abc import Sequence

from compress.distill.spec import StudentSpec
from compress.encoder.students import check_layer_map
from compress.errors import UserError


def resolve(student: StudentSpec, depth: int) -> list[int]:
    """The teacher layers (0..depth-1, ascending) that the student keeps; UserError naming the legal range."""
    if not isinstance(student.layers, str):
        layers = list(student.layers)
    else:
        count = student.count or 0
        if not 1 <= count <= depth:
            raise UserError(
                f"{count} layers cannot be taken from a teacher of {depth}", where="student.count", do=f"use 1..{depth}"
            )
        layers = _RULES[student.layers](count, depth)
    check_layer_map(layers, depth)
    return layers


def _every_other(count: int, depth: int) -> list[int]:
    if 2 * count - 1 > depth:
        raise UserError(
            f"every other layer of {depth} gives at most {(depth + 1) // 2}",
            where="student.count",
            why=f"{count} were asked for",
            do="use uniform",
        )
    return list(range(0, 2 * count, 2))


def _uniform(count: int, depth: int) -> list[int]:
    """From the first to the last, evenly; one alone is the last."""
    if count == 1:
        return [depth - 1]
    return [round(i * (depth - 1) / (count - 1)) for i in range(count)]


_RULES = {
    "every-other": _every_other,
    "first": lambda count, depth: list(range(count)),
    "last": lambda count, depth: list(range(depth - count, depth)),
    "uniform": _uniform,
}


def sentence(layers: Sequence[int], depth: int) -> str:
    """The map as people read it."""
    pairs = ", ".join(f"{i} from {layer}" for i, layer in enumerate(layers))
    left = ", ".join(str(i) for i in range(depth) if i not in layers) or "none"
    return f"layer map (student from teacher, of 0..{depth - 1}): {pairs}; left out: {left}"
