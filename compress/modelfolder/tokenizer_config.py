"""The tokenizer files as a folder of ours holds them: what other programs read of them is what the model was made for.

A source's fixed padding and truncation are not inherited, and `model_max_length`, by which programs without an option
for it cut a text, is the longest text that the model was trained with.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from compress.contracts import SPECIAL_TOKENS
from compress.errors import UserError, printable

PIPELINE, CONFIG, SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
SENTENCE_PIECE = ("sentencepiece.bpe.model", "spiece.model", "spm.model")
MAX_LENGTH = "model_max_length"
_INHERITED = ("max_length", "stride", "pad_to_multiple_of")
"""Keys by which some sources repeat their truncation and padding."""


def as_written(
    files: Mapping[str, bytes], vocabulary: Collection[str] | None, reads: int | None, positions: int, where: str
) -> dict[str, bytes]:
    """The files with neither padding nor truncation, and a tokenizer_config.json that says how long a text may be.

    vocabulary: the tokens; None: they are not known here, as of a SentencePiece model alone.  reads: longest text in
    tokens; None: what the files say, at most `positions`. Files that say this already stay as they are, byte by byte,
    and so does a folder without a tokenizer. Raises UserError for what is no JSON object.
    """
    if vocabulary is None and not files.keys() & {CONFIG, *SENTENCE_PIECE}:
        return dict(files)
    made = dict(files)
    if PIPELINE in made:
        pipeline = _object(made[PIPELINE], f"{where}/{PIPELINE}")
        if pipeline.get("truncation") is not None or pipeline.get("padding") is not None:
            pipeline |= {"truncation": None, "padding": None}
            made[PIPELINE] = json.dumps(pipeline, ensure_ascii=False, indent=2).encode()
    values = _object(made[CONFIG], f"{where}/{CONFIG}") if CONFIG in made else _named(made, vocabulary or (), where)
    settled = {key: value for key, value in values.items() if key not in _INHERITED}
    settled[MAX_LENGTH] = min(reads or _said(values), positions)
    if CONFIG not in made or settled != values:
        made[CONFIG] = (json.dumps(settled, ensure_ascii=False, indent=2) + "\n").encode()
    return made


def _said(values: Mapping[str, Any]) -> int:
    """What a tokenizer_config.json gives as the longest text; without bound where it says nothing."""
    value = values.get(MAX_LENGTH)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
        return 10**30
    return int(value)


def _named(files: Mapping[str, bytes], vocabulary: Collection[str], where: str) -> dict[str, Any]:
    """The special tokens of a folder without tokenizer_config.json: as it names them elsewhere, else the usual ones."""
    told = _object(files[SPECIAL], f"{where}/{SPECIAL}") if SPECIAL in files else {}
    usual = {role: next((n for n in names if n in vocabulary), None) for role, names in SPECIAL_TOKENS.items()}
    return {f"{role}_token": name for role, name in usual.items() if name is not None} | told


def _object(data: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError("not JSON", where=where, why=printable(str(error), 100)) from error
    if not isinstance(found, dict):
        raise UserError("not a JSON object", where=where)
    return found
