"""The library `tokenizers` behind errors of ours, and the vocabulary files that it reads beside tokenizer.json."""

from __future__ import annotations

import base64
import json
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tokenizers

from compress.data.text import tokenizer_limits
from compress.errors import UserError, printable

Made = TypeVar("Made")
_BLANKS = " \t\n\r\x0b\x0c\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def build(data: bytes, where: str) -> tokenizers.Tokenizer:
    """The native tokenizer of a tokenizer.json."""
    return quietly(lambda: tokenizers.Tokenizer.from_buffer(data), f"{where}: tokenizer.json")


def quietly(make: Callable[[], Made], where: str) -> Made:
    """What `make` gives. It may panic, and a panic is no `Exception`: everything becomes a UserError."""
    try:
        return make()
    except (KeyboardInterrupt, SystemExit, UserError):
        raise
    except BaseException as error:
        raise UserError("cannot read this tokenizer", where=where, why=printable(str(error), 160)) from error


def parse(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object. Raises UserError for anything else."""
    try:
        found = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError("this is not JSON", where=where, why=printable(str(error), 120)) from error
    if not isinstance(found, dict):
        raise UserError("this is not a JSON object", where=where, why=f"found {type(found).__name__}")
    return found


def check_id(number: int, where: str) -> None:
    """Raise UserError for the id of an added token that no table of embeddings could have."""
    most = tokenizer_limits.MOST_TOKENS
    if not 0 <= number < most:
        raise UserError(f"an added token has the id {number:,}", where=where, why=f"allowed: below {most:,}")


def wordpiece(
    vocabulary: dict[str, int],
    *,
    lowercase: bool,
    unknown: str = "[UNK]",
    strip_accents: bool | None = None,
    chinese: bool = True,
) -> tokenizers.Tokenizer:
    """BERT's pipeline over a vocabulary, without the special tokens around a text."""
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    return made


def wordpieces(data: bytes, where: str) -> dict[str, int]:
    """Token → id of a vocab.txt. Raises UserError for a token that is there twice."""
    lines = _text(data, where).replace("\r\n", "\n").removesuffix("\n").split("\n")
    tokens = [line.rstrip(_BLANKS) for line in lines]
    if twice := len(tokens) - len(set(tokens)):
        raise UserError("this is not a BERT vocabulary", where=where, why=f"number of duplicate tokens: {twice}")
    return {token: i for i, token in enumerate(tokens)}


def byte_pairs(files: Mapping[str, bytes], where: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Token → id of vocab.json, and the merges of merges.txt. Raises UserError for files of another shape."""
    vocabulary = parse(files["vocab.json"], f"{where}: vocab.json")
    if not vocabulary or not all(isinstance(i, int) and not isinstance(i, bool) for i in vocabulary.values()):
        raise UserError("the file does not map tokens to ids", where=f"{where}: vocab.json")
    _check_own_ids(vocabulary, f"{where}: vocab.json")
    merges: list[tuple[str, str]] = []
    for line in _text(files["merges.txt"], f"{where}: merges.txt").split("\n"):
        line = line.removesuffix("\r")
        if line and not line.startswith("#version"):
            first, _, second = line.partition(" ")
            if not second or " " in second:
                raise UserError(
                    "the file is not a list of pairs", where=f"{where}: merges.txt", why=printable(line, 60)
                )
            merges.append((first, second))
    return vocabulary, merges


def _check_own_ids(vocabulary: Mapping[str, int], where: str) -> None:
    """Raise UserError for an id that no table of embeddings could have, and for one of several tokens."""
    owners: dict[int, str] = {}
    for token, number in vocabulary.items():
        if not 0 <= number < tokenizer_limits.MOST_TOKENS:
            why = f"allowed: 0 to {tokenizer_limits.MOST_TOKENS - 1:,}"
            raise UserError(
                f"token '{printable(token, 40)}' has the id {printable(f'{number:,}', 40)}", where=where, why=why
            )
        if number in owners:
            both = f"'{printable(owners[number], 40)}' and '{printable(token, 40)}'"
            raise UserError(f"tokens {both} have the same id {number:,}", where=where)
        owners[number] = token


def charsmap(normalizer: Any) -> bytes | None:
    """SentencePiece's table of replacements in a normalizer, the first where there are several."""
    for step in tokenizer_limits.steps(normalizer):
        if step.get("type") == "Precompiled" and isinstance(step.get("precompiled_charsmap"), str):
            return base64.b64decode(step["precompiled_charsmap"])
    return None


def _text(data: bytes, where: str) -> str:
    """Without the byte order mark that some editors write: it would be a part of the first token."""
    try:
        return data.removeprefix(BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError("this is not UTF-8 text", where=where, why=f"byte {error.start:,}") from error
