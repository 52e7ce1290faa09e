"""Which modules of a model compute with quantized weights and inputs, as a part of its config. Imports no torch.

A quantized model is described module by module, not by the patterns that a recipe had: what it reloads to does not
depend on how a pattern is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from compress import registry
from compress.errors import UserError

if TYPE_CHECKING:
    from compress.contracts import PartRow

PACKAGE = "compress.quantizers"


@dataclass(frozen=True)
class PartQuantization:
    """Of one module. weight: of its matrix or table.  input: of what its matrix is multiplied with; None: floats."""

    weight: PartRow
    input: PartRow | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = {"weight": self.weight, "input": self.input}
        return {name: row.model_dump(mode="json") for name, row in rows.items() if row is not None}


@dataclass(frozen=True)
class Quantization:
    """modules: (name in the model, how), in the order of the model."""

    modules: tuple[tuple[str, PartQuantization], ...]

    def of(self) -> dict[str, PartQuantization]:
        """By name."""
        return dict(self.modules)

    def without(self, names: frozenset[str]) -> Quantization:
        """The same with the modules `names` left in float."""
        return Quantization(tuple((name, part) for name, part in self.modules if name not in names))

    def with_part(self, names: frozenset[str], part: PartQuantization) -> Quantization:
        """The same with the modules `names` quantized by `part`."""
        return Quantization(tuple((name, part if name in names else own) for name, own in self.modules))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same back."""
        return {name: part.to_dict() for name, part in self.modules}

    @classmethod
    def from_dict(cls, values: object) -> Quantization:
        """The inverse of `to_dict`. Raises UserError for what is no description of a quantized model."""
        where = "encoder.quantization"
        if not isinstance(values, Mapping) or not values:
            raise UserError("quantization must be an object of modules", where=where)
        found = []
        for name, part in values.items():
            at = f"{where}.{name}"
            if not isinstance(part, Mapping) or "weight" not in part or not set(part) <= {"weight", "input"}:
                raise UserError("each module must have weight and may have input", where=at)
            rows = {key: _row(row, f"{at}.{key}") for key, row in part.items()}
            found.append((str(name), PartQuantization(**rows)))
        return cls(tuple(found))


def _row(values: object, where: str) -> PartRow:
    if not isinstance(values, Mapping) or not isinstance(values.get("kind"), str):
        raise UserError("a quantizer must be an object with a kind", where=where)
    try:
        return registry.schema(PACKAGE, values["kind"]).model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UserError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", where=where) from None
