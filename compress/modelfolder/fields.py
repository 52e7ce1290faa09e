"""Reads the values of a foreign `config.json`, each checked, so that a bad one is named before anything is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compress.encoder.config import checks, encoder
from compress.errors import UserError, nearest, printable

MAX_WIDTH = 65_536  # hidden, feed-forward: far above any encoder, far below what would fill a memory
MAX_LAYERS, MAX_POSITIONS = encoder.MAX_LAYERS, checks.MAX_POSITIONS
MAX_HEADS = 1_024
MAX_VOCABULARY = 4_000_000
MAX_SEGMENTS = 1_024


class Fields:
    """A JSON object and the name of the file it came from. Every method raises UserError naming file and key.

    spelled: key → what this file calls it, where it has keys of another kind.
    """

    def __init__(self, values: Mapping[str, Any], where: str, spelled: Mapping[str, str] | None = None) -> None:
        self.values, self.where, self._spelled = values, where, spelled or {}

    def get(self, name: str) -> Any:
        """The value of `name`, None where the file does not say."""
        return self.values.get(self.spell(name))

    def spell(self, name: str) -> str:
        """How the file calls `name`."""
        return self._spelled.get(name, name)

    def integer(self, name: str, *, most: int, least: int = 1, default: int | None = None) -> int:
        """The integer `name` in least..most; `default` when absent, refused when absent without a default."""
        value = self.get(name)
        if value is None:
            value = default
        if value is None:
            raise self._absent(name, f"an integer in {least}..{most}")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(name, f"an integer in {least}..{most}")
        if not least <= value <= most:
            raise self.wrong(name, f"{least}..{most}")
        return value

    def number(self, name: str, *, least: float, below: float, default: float) -> float:
        """The number `name` with least <= value < below (a NaN fails both)."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < below:
            raise self.wrong(name, f"a number from {least:g} to below {below:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def choice(self, name: str, allowed: Mapping[str, str], default: str) -> str:
        """`allowed[value]` of the value of `name`."""
        value = self.get(name)
        if value is None:
            value = default
        if not isinstance(value, str) or value not in allowed:
            hint = nearest(value, allowed) if isinstance(value, str) else None
            raise self.wrong(name, ", ".join(sorted(allowed)), do=f"did you mean '{hint}'?" if hint else None)
        return allowed[value]

    def refuse(self, name: str, harmless: Sequence[object], reason: str) -> None:
        """Refuses the config when `name` holds anything but one of `harmless` (or nothing)."""
        value = self.get(name)
        if value is None or any(type(value) is type(fine) and value == fine for fine in harmless):
            return
        raise UserError(f"{self.spell(name)} {_shown(value)} is not supported", where=self.where, why=reason)

    def wrong(self, name: str, allowed: str, do: str | None = None) -> UserError:
        return UserError(
            f"{self.spell(name)} is {_shown(self.get(name))}", where=self.where, why=f"allowed: {allowed}", do=do
        )

    def _absent(self, name: str, wanted: str) -> UserError:
        name = self.spell(name)
        meant = nearest(name, self.values)
        do = f"did you mean '{meant}'?" if meant else "check that the config file is complete"
        return UserError(f"{name} is missing", where=self.where, why=f"expected: {wanted}", do=do)


def divisible(fields: Fields, hidden_name: str, hidden: int, heads_name: str, heads: int) -> int:
    """The head width hidden / heads. Raises UserError when it is not whole."""
    if hidden % heads:
        near = [h for h in range(1, hidden + 1) if hidden % h == 0]
        best = min(near, key=lambda h: (abs(h - heads), h))
        raise UserError(
            f"{fields.spell(hidden_name)} {hidden} is not divisible by {fields.spell(heads_name)} {heads}",
            where=fields.where,
            do=f"the nearest number of heads that divides it is {best}",
        )
    return hidden // heads


def _shown(value: object) -> str:
    return printable(repr(value), 60)
