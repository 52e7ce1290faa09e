"""Rebuilds a tokenizer's files with a subset of its tokens."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokenizer_files import BPE, SENTENCE_PIECE
from compress.data.text.tokenizer_native import parse
from compress.errors import UserError, printable
from compress.stages.prune_vocab.dependencies import TokenizerParts, merges, post_processors

LEFT_OUT = SENTENCE_PIECE
"""Files that hold the whole vocabulary in a form that is not written here; tokenizer.json says all that they say."""


def rebuild_tokenizer_files(pieces: TokenizerParts, kept: np.ndarray, where: str) -> dict[str, bytes]:
    """name → content of every tokenizer file over the pieces `kept` (ids, ascending), in their order from 0.

    Raises UserError where the library would not read it as meant.
    """
    new = {int(old): index for index, old in enumerate(kept)}
    pipeline = _pipeline(pieces, new)
    files = {name: data for name, data in pieces.tokenizer.files().items() if name not in LEFT_OUT}
    files["tokenizer.json"] = json.dumps(pipeline, ensure_ascii=False, indent=2).encode()
    model = pipeline["model"]
    if "vocab.txt" in files:
        files["vocab.txt"] = "".join(f"{token}\n" for token in model["vocab"]).encode()
    vocabulary, listed = BPE
    if vocabulary in files:
        files[vocabulary] = json.dumps(model["vocab"], ensure_ascii=False).encode()
    if listed in files:
        lines = [f"{first} {second}\n" for first, second in model["merges"]]
        files[listed] = "".join(["#version: 0.2\n", *lines]).encode()
    known = pieces.tokenizer.vocabulary
    if "added_tokens.json" in files:
        told = parse(files["added_tokens.json"], f"{where}: added_tokens.json")
        files["added_tokens.json"] = _written({name: new[known[name]] for name in told if known.get(name) in new})
    if "tokenizer_config.json" in files:
        told = parse(files["tokenizer_config.json"], f"{where}: tokenizer_config.json")
        files["tokenizer_config.json"] = _written(_settings(told, known, new))
    _check(files, {name: new[index] for name, index in known.items() if index in new}, where)
    return files


def _pipeline(pieces: TokenizerParts, new: Mapping[int, int]) -> dict[str, Any]:
    """tokenizer.json."""
    made = copy.deepcopy(dict(pieces.pipeline))
    model, known = made["model"], pieces.tokenizer.vocabulary
    if pieces.kind == "Unigram":
        model["vocab"] = [row for index, row in enumerate(model["vocab"]) if index in new]
        model["unk_id"] = None if model["unk_id"] is None else new[model["unk_id"]]
    else:
        order = sorted((new[index], name) for name, index in pieces.ids.items() if index in new)
        model["vocab"] = {name: index for index, name in order}
    if "merges" in model:
        parts = [all(pieces.ids[name] in new for name in merge) for merge in merges(model)]
        model["merges"] = [pair for pair, stays in zip(model["merges"], parts, strict=True) if stays]
    for row in made["added_tokens"]:
        row["id"] = new[known[row["content"]]]
    made["added_tokens"].sort(key=lambda row: row["id"])
    for step in post_processors(made["post_processor"]):
        for row in step.get("special_tokens", {}).values():
            row["ids"] = [new[index] for index in row["ids"]]
        for end in ("sep", "cls"):
            if end in step:
                step[end] = [step[end][0], new[step[end][1]]]
    return made


def _settings(told: Mapping[str, Any], known: Mapping[str, int], new: Mapping[int, int]) -> dict[str, Any]:
    """tokenizer_config.json: where it names ids, the new ones."""
    made = dict(told)
    decoder = made.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        rows = [row for row in decoder.values() if isinstance(row, dict) and row.get("content") in known]
        made["added_tokens_decoder"] = {str(new[known[row["content"]]]): row for row in rows}
    for key, value in told.items():
        if key.endswith("_token_id") and isinstance(value, int) and value in new:
            made[key] = new[value]
    return made


def _written(values: Any) -> bytes:
    return (json.dumps(values, ensure_ascii=False, indent=2) + "\n").encode()


def _check(files: Mapping[str, bytes], wanted: Mapping[str, int], where: str) -> None:
    """Read the files back: every piece that stays has the id that the table's row has."""
    found = Tokenizer.from_files(files, where=where).vocabulary
    wrong = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    if wrong:
        name = wrong[0]
        raise UserError(
            "the tokenizer cannot be rebuilt",
            where=where,
            why=f"'{printable(name, 40)}' would have the id {found.get(name)} instead of {wanted.get(name)}",
            do="renumber its tokens without gaps first",
        )
