"""Layer maps: which teacher layer initializes each student layer, and which it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from compress.contracts import Batch
from compress.encoder.config import layer_maps
from compress.encoder.config.layer_maps import ModelPair, halve_depth
from compress.encoder.modules.model import Model
from compress.encoder.reshape.students import check_layer_map
from compress.errors import UserError
from compress.stages.distill.matching import match_layers
from compress.stages.distill.student_spec import StudentSpec


def resolve(student: StudentSpec, depth: int) -> list[int]:
    """The layers (0..depth-1, ascending) of its model that the student keeps; UserError naming the legal range."""
    if student.layers is None:
        return list(range(depth))
    if not isinstance(student.layers, str):
        layers = list(student.layers)
    else:
        count = student.count or halve_depth(depth)
        if not 1 <= count <= depth:
            raise UserError(
                f"{count} layers cannot be taken from a teacher with {depth} layers",
                where="student.count",
                do=f"use 1..{depth}",
            )
        layers = _RULES[student.layers](count, depth)
    check_layer_map(layers, depth, "student.layers")
    return layers


def _every_other(count: int, depth: int) -> list[int]:
    """0, 2, 4 …"""
    if 2 * count - 1 > depth:
        raise UserError(
            f"every other layer of {depth} gives at most {halve_depth(depth)}",
            where="student.count",
            why=f"{count} were requested",
            do="use uniform",
        )
    return list(range(0, 2 * count, 2))


def _every_other_from_last(count: int, depth: int) -> list[int]:
    """The last, the one two before it …, in ascending order."""
    return [depth - 1 - layer for layer in reversed(_every_other(count, depth))]


def _uniform(count: int, depth: int) -> list[int]:
    """From the first to the last, evenly; one alone is the last."""
    if count == 1:
        return [depth - 1]
    return [round(i * (depth - 1) / (count - 1)) for i in range(count)]


_RULES = {
    "every-other": _every_other,
    "every-other-from-last": _every_other_from_last,
    "first": lambda count, depth: list(range(count)),
    "last": lambda count, depth: list(range(depth - count, depth)),
    "uniform": _uniform,
}


def sentence(layers: Sequence[int], depth: int, donor: str = "teacher") -> str:
    """The map as people read it. donor: whose layers they are."""
    pairs = ", ".join(f"{i} from {layer}" for i, layer in enumerate(layers))
    left = ", ".join(str(i) for i in range(depth) if i not in layers) or "none"
    return f"layer map (student layers from {donor}, which has 0..{depth - 1}): {pairs}; not used: {left}"


def resolve_compared_layers(
    rule: str | Sequence[int | tuple[int, int]],
    student: Model,
    teacher: Model,
    *,
    copied: Sequence[int] | None,
    batches: Callable[[], Iterable[Batch]],
) -> ModelPair:
    """Which layers objectives compare, by the recipe's `layer_map`.

    copied: the teacher layers that the student was cut from, where that is known.  batches: real input, for the rule
    that measures. Raises UserError with the legal ranges for a map that does not fit these models.
    """
    depths = student.config.depth, teacher.config.depth
    choice: layer_maps.Choice = "fixed"
    if not isinstance(rule, str):
        pairs = tuple(item if isinstance(item, tuple) else (i, item) for i, item in enumerate(rule))
        if len(pairs) != depths[0] and not isinstance(rule[0], tuple):
            raise UserError(
                f"{len(pairs)} teacher layers for a student of {depths[0]}",
                where="layer_map",
                do="give one for each student layer, or pairs [student, teacher]",
            )
        pairs = layer_maps.check(pairs, *depths)
    elif rule in layer_maps.TRAINED:
        pairs, choice = (), layer_maps.TRAINED[rule]
    elif rule == layer_maps.START:
        if copied is None:
            raise UserError(
                "layer map start needs a student initialized from the teacher's layers in this stage",
                where="layer_map",
                do=f"use uniform, or list the pairs: student 0..{depths[0] - 1}, teacher 0..{depths[1] - 1}",
            )
        pairs = tuple(enumerate(copied))
    elif rule == layer_maps.MEASURED:
        pairs = match_layers(student, teacher, batches())
    else:
        pairs = layer_maps.resolve(rule, *depths)
    return ModelPair(student.config, teacher.config, pairs, choice)


def comparison(pair: ModelPair, rule: str | Sequence[object]) -> str:
    """The map of compared layers as people read it."""
    name = rule if isinstance(rule, str) else "listed"
    if pair.choice == "learned":
        return f"compared layers ({name}): each with all of 0..{pair.teacher.depth - 1}, by trained weights"
    if pair.choice == "smallest":
        return f"compared layers ({name}): at each step the one of 0..{pair.teacher.depth - 1} with the smallest loss"
    return f"compared layers ({name}): " + ", ".join(f"{s} with {t}" for s, t in pair.pairs)
