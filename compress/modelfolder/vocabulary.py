"""The tokenizer files of a model folder: which they are, what vocabulary they hold, whether two are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from compress.data.text import tokenizer_files
from compress.errors import UserError

# Whatever a tokenizer of the ecosystem may consist of; everything here is copied from folder to folder as it is.
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
)
MAX_BYTES = 100 * 2**20


def read_files(folder: Path) -> dict[str, bytes]:
    """The tokenizer files that are there, by name."""
    found: dict[str, bytes] = {}
    for name in FILES:
        path = folder / name
        if not path.is_file():
            continue
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise UserError(
                f"{size / 2**20:.0f} MB is too large", where=str(path), why=f"at most {MAX_BYTES // 2**20} MB"
            )
        found[name] = path.read_bytes()
    return found


def settled(
    files: Mapping[str, bytes], config: Mapping[str, Any], where: str, *, ours: bool
) -> dict[str, bytes]:  # fmt: skip
    """A folder's tokenizer files with a tokenizer.json that encodes as transformers does with the folder.

    config: its config.json.  ours: a folder that we wrote has been settled, or its model was trained with the
    tokenizer.json as it is.  Raises UserError as `tokenizer_files.settle`.
    """
    if ours and "tokenizer.json" in files:
        return dict(files)
    return tokenizer_files.settle(files, config, where)


def tokens(files: Mapping[str, bytes], where: str) -> dict[str, int] | None:
    """Token → id, special and added tokens included; None without tokenizer.json, vocab.txt and vocab.json."""
    if "tokenizer.json" in files:
        return _of_json(files["tokenizer.json"], f"{where}/tokenizer.json")
    if "vocab.txt" in files:
        lines = _text(files["vocab.txt"], f"{where}/vocab.txt").split("\n")
        lines = lines[:-1] if lines and not lines[-1] else lines
        return {line.rstrip("\r"): i for i, line in enumerate(lines)}
    if "vocab.json" in files:
        place = f"{where}/vocab.json"
        return _checked(_parsed(files["vocab.json"], place, lambda values: dict(values)), place)
    return None


def digest(vocabulary: Mapping[str, int]) -> str:
    """sha256 of the (id, token) pairs in order of the ids: equal for vocabularies that agree on every id."""
    whole = hashlib.sha256()
    for token, index in sorted(vocabulary.items(), key=lambda item: (item[1], item[0])):
        whole.update(json.dumps([index, token]).encode())
    return whole.hexdigest()


def check_fits(vocabulary: Mapping[str, int], rows: int, where: str) -> None:
    """Raises UserError when a token's id has no row in a word table of `rows` rows."""
    if not vocabulary:
        raise UserError("the tokenizer has no tokens", where=where)
    token, highest = max(vocabulary.items(), key=lambda item: item[1])
    if highest >= rows or min(vocabulary.values()) < 0:
        raise UserError(
            f"the tokenizer's highest id is {highest} ({token!r})",
            where=where,
            why=f"the model has {rows} word embeddings",
            do="use the tokenizer that belongs to this model",
        )


def _of_json(data: bytes, where: str) -> dict[str, int]:
    def vocabulary(values: Any) -> dict[Any, Any]:
        model, added = values["model"], values.get("added_tokens") or []
        vocab = model["vocab"]
        # Unigram lists [token, score] in order of the ids; WordPiece and BPE map tokens to ids.
        found = {row[0]: i for i, row in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
        return found | {row["content"]: row["id"] for row in added}

    return _checked(_parsed(data, where, vocabulary), where)


def _parsed(data: bytes, where: str, read: Callable[[Any], dict[Any, Any]]) -> dict[Any, Any]:
    """What `read` finds in the JSON. Raises UserError when it is of another shape."""
    try:
        return read(json.loads(_text(data, where)))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise UserError("not a valid tokenizer file", where=where, why=f"{type(error).__name__}: {error}") from None


def _checked(found: Mapping[Any, Any], where: str) -> dict[str, int]:
    if not all(isinstance(t, str) and isinstance(i, int) and not isinstance(i, bool) for t, i in found.items()):
        raise UserError("not a valid tokenizer file", where=where, why="its vocabulary does not map tokens to ids")
    return dict(found)


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError("not UTF-8", where=where, why=f"byte {error.start}") from None
