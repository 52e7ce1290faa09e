"""Reads the files of a tokenizer: settings, added tokens, vocabulary and merges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken

from compress.data.text import tokenizer_native as native
from compress.data.text.tokenizer_builders import BUILDERS, Builder
from compress.data.text.tokenizer_names import AS_STORED, CLASS
from compress.data.text.tokenizer_sources import ADDED, CONFIG, PIPELINE, ROLES, SPECIAL, Sources, as_token, text_of
from compress.errors import UserError, printable


def added_rows(stored: Mapping[str, Any] | None) -> list[Any]:
    """The added tokens of a tokenizer.json."""
    found = None if stored is None else stored.get("added_tokens")
    return found if isinstance(found, list) else []


def read_sources(
    files: Mapping[str, bytes], config: Mapping[str, Any], stored: Mapping[str, Any] | None, kind: str, where: str
) -> Sources:  # fmt: skip
    """What the class `kind` builds a tokenizer from. config: tokenizer_config.json.  stored: tokenizer.json, None where
    there is none.  Raises UserError for files that do not hold what they should."""
    values: dict[str, Any] = {key: value for key, value in config.items() if key != CLASS}
    if "additional_special_tokens" in values and not values.get("extra_special_tokens"):
        values["extra_special_tokens"] = values.pop("additional_special_tokens")
    decoder = config.get("added_tokens_decoder")
    if decoder is not None:
        stated = _tokens_of_decoder(decoder, f"{where}: {CONFIG}: added_tokens_decoder")
    else:
        values |= _special_values(files, where)
        stated = _tokens_of_other_files(files, stored, values, where)
    if kind == AS_STORED:
        return Sources(values, stated, None, [], None, where)
    vocabulary, merges = _vocabulary(files, stored, BUILDERS[kind], where)
    charsmap = None if stored is None else native.charsmap(stored.get("normalizer"))
    if kind == "CamembertTokenizer" and values.get("additional_special_tokens") is None:
        values["additional_special_tokens"] = ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]
    return Sources(values, stated, vocabulary, merges, charsmap, where)


def _tokens_of_decoder(decoder: Any, where: str) -> dict[int, AddedToken]:
    """id → token of `added_tokens_decoder`, which leaves nothing to the other files."""
    if not isinstance(decoder, dict):
        raise UserError("not a table of ids and tokens", where=where)
    return dict(_numbered(number, row, where) for number, row in decoder.items())


def _special_values(files: Mapping[str, bytes], where: str) -> dict[str, Any]:
    """special_tokens_map.json."""
    if SPECIAL not in files:
        return {}
    values = native.parse(files[SPECIAL], f"{where}: {SPECIAL}")
    is_row = {key: isinstance(value, dict) and isinstance(value.get("content"), str) for key, value in values.items()}
    return {key: {**value, "special": True} if is_row[key] else value for key, value in values.items()}


def _tokens_of_other_files(
    files: Mapping[str, bytes], stored: Mapping[str, Any] | None, values: Mapping[str, Any], where: str
) -> dict[int, AddedToken]:
    """id → token of added_tokens.json, and of tokenizer.json, which wins. values: which tokens are special."""
    stated: dict[int, AddedToken] = {}
    if ADDED in files:
        special = {text_of(token) for role in ROLES if (token := _plain(values.get(f"{role}_token"))) is not None}
        extra = values.get("extra_special_tokens")
        special |= {text_of(_plain(row)) for row in (extra if isinstance(extra, list) else ())}
        for text, number in native.parse(files[ADDED], f"{where}: {ADDED}").items():
            row = {"content": text, "normalized": text not in special, "special": text in special}
            index, token = _numbered(number, row, f"{where}: {ADDED}")
            stated[index] = token
    for row in added_rows(stored):
        number = row.get("id") if isinstance(row, dict) else None
        index, token = _numbered(number, row, f"{where}: {PIPELINE}: added_tokens")
        stated[index] = token
    return stated


def _numbered(number: Any, row: Any, where: str) -> tuple[int, AddedToken]:
    """The id of an added token, and the token. Raises UserError where they are none."""
    token = as_token(row, where)
    index = int(number) if isinstance(number, str) and number.isdecimal() else number
    if token is None or not isinstance(index, int) or isinstance(index, bool):
        raise UserError("not a table of ids and tokens", where=where, why=printable(repr((number, row)), 80))
    native.check_id(index, where)
    return index, AddedToken(token) if isinstance(token, str) else token


def _plain(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _read_merges(merges: Any, where: str) -> list[tuple[str, str]]:
    """The merges of a tokenizer.json, each a text of two tokens or a list of them. Raises UserError for others."""
    found: list[tuple[str, str]] = []
    for row in merges if isinstance(merges, list) else [merges]:
        pair = row.split(" ") if isinstance(row, str) else row
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(token, str) for token in pair):
            raise UserError("the merges are not a list of pairs", where=where, why=printable(repr(row), 60))
        found.append((pair[0], pair[1]))
    return found


def _vocabulary(
    files: Mapping[str, bytes], stored: Mapping[str, Any] | None, builder: Builder, where: str
) -> tuple[Any, list[tuple[str, str]]]:
    """The tokens, and the merges of BPE, of tokenizer.json or of the files that the class has without it."""
    if stored is not None:
        model = stored.get("model")
        model = model if isinstance(model, dict) else {}
        vocabulary, merges = model.get("vocab"), model.get("merges") or []
        if builder.model == "Unigram":
            fits = isinstance(vocabulary, list)
        else:
            fits = isinstance(vocabulary, dict) and (builder.model != "BPE" or "merges" in model)
        if not fits:
            raise UserError(
                f"the tokenizer is not a {builder.name}", where=f"{where}: {PIPELINE}",
                why=f"it has no vocabulary of {builder.model}",
                do=f'correct "{CLASS}" in {CONFIG}: PreTrainedTokenizerFast is any {PIPELINE}',
            )  # fmt: skip
        return vocabulary, _read_merges(merges, f"{where}: {PIPELINE}")
    if missing := [name for name in builder.files if name not in files]:
        raise UserError(
            f"{builder.name} needs {' and '.join(builder.files or (PIPELINE,))}", where=where,
            why=f"{missing[0]} is missing",
        )  # fmt: skip
    if not builder.files:
        raise UserError(f"{builder.name} needs {PIPELINE}", where=where, why=f"{PIPELINE} is missing")
    if builder.model == "WordPiece":
        return native.wordpieces(files["vocab.txt"], f"{where}: vocab.txt"), []
    return native.byte_pairs(files, where)
