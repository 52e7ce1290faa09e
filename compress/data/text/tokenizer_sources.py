"""What the files of a tokenizer say, and the tokens in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken

from compress.errors import UserError, printable

CONFIG, SPECIAL, ADDED, PIPELINE = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.json",
)  # fmt: skip
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


@dataclass(frozen=True)
class Sources:
    """What the files say.

    values: tokenizer_config.json, and special_tokens_map.json where transformers reads that.  stated: id → added token.
    vocabulary: the model's tokens: a table of ids, or pieces with scores in order of the ids.
    """

    values: Mapping[str, Any]
    stated: Mapping[int, AddedToken]
    vocabulary: Any
    merges: list[tuple[str, str]]
    charsmap: bytes | None
    where: str

    def flag(self, key: str, default: bool) -> bool:
        """Raises UserError for what is neither true nor false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise UserError(
                f"'{key}' is neither true nor false", where=f"{self.where}: {CONFIG}", why=printable(repr(value), 40)
            )
        return value

    def token(self, role: str, default: str | None) -> str | AddedToken | None:
        """The special token of a role, with its settings where an added token has this text."""
        key = f"{role}_token"
        if key not in self.values:
            return default
        return self._known(self.values[key], key)

    def _known(self, value: Any, key: str) -> str | AddedToken | None:
        value = as_token(value, f"{self.where}: {CONFIG}: {key}")
        known = {token.content: token for token in self.stated.values()}
        return value if value is None else known.get(text_of(value), value)

    def further(self) -> list[str | AddedToken]:
        """Special tokens without one of the usual roles."""
        found: list[str | AddedToken] = []
        extra = "extra_special_tokens" if "extra_special_tokens" in self.values else "additional_special_tokens"
        for key, value in self.values.items():
            if key == extra:
                rows = list(value.values()) if isinstance(value, dict) else value
                if rows is not None and not isinstance(rows, list):
                    raise UserError(f"'{key}' is not a list of tokens", where=f"{self.where}: {CONFIG}")
                found += [token for row in rows or () if (token := as_token(row, f"{self.where}: {key}")) is not None]
            elif key.endswith("_token") and key.removesuffix("_token") not in ROLES and isinstance(value, str):
                found.append(value)
        return found


def as_token(value: Any, where: str) -> str | AddedToken | None:
    """A token as a configuration gives it: text, or an object with settings. Raises UserError for anything else."""
    if value is None or isinstance(value, str | AddedToken):
        return value
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        given = {key: flag for key, flag in value.items() if key not in ("__type", "content", "id")}
        known = ("lstrip", "rstrip", "single_word", "normalized", "special")
        if all(key in known and isinstance(flag, bool) for key, flag in given.items()):
            return AddedToken(value["content"], **given)
    raise UserError("this is not a token", where=where, why=printable(repr(value), 80))


def text_of(token: str | AddedToken | None) -> str:
    """The text of a token."""
    return token.content if isinstance(token, AddedToken) else str(token)
