"""The files of a tokenizer: read them from a folder, refuse what is hostile, leave out what does not belong."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import tokenizers

from compress.contracts import SPECIAL_TOKENS
from compress.data.text import tokenizer_classes, tokenizer_limits, tokenizer_names, tokenizer_probe
from compress.data.text import tokenizer_native as native
from compress.errors import UserError
from compress.storage import safe

NAMES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "added_tokens.json")
BPE = ("vocab.json", "merges.txt")  # what RoBERTa's tokenizer consists of in older folders
CONFIG, SIDE = "tokenizer_config.json", "truncation_side"
OURS = "compress.json"  # lies in the folders that we wrote
SENTENCE_PIECE = ("sentencepiece.bpe.model", "spiece.model", "spm.model")
LIMIT = 64 << 20  # bytes of one file; the largest honest tokenizer.json known has 33 MB


def read_folder(folder: Path) -> dict[str, bytes]:
    """The tokenizer's files that are in `folder`. Raises UserError saying which were looked for."""
    found: dict[str, bytes] = {}
    for name in (*NAMES, *BPE, *SENTENCE_PIECE):
        path = folder / name
        if path.is_file():
            if path.stat().st_size > LIMIT:
                raise UserError("the file is too large", where=str(path), why=f"limit {LIMIT >> 20} MiB")
            found[name] = path.read_bytes()
    if not found.keys() & {"tokenizer.json", "vocab.txt", *BPE, *SENTENCE_PIECE}:
        raise UserError(
            "no tokenizer found",
            where=str(folder),
            why="looked for tokenizer.json and vocab.txt" if folder.is_dir() else "no such folder",
            do="save the tokenizer in the model folder",
        )
    return found


def read_settled(folder: Path) -> dict[str, bytes]:
    """`read_folder`, and of a foreign folder `settle`. Raises UserError."""
    files = read_folder(folder)
    if (folder / OURS).is_file() and "tokenizer.json" in files:
        return files
    config = folder / "config.json"
    return settle(files, safe.read_json(config) if config.is_file() else {}, str(folder))


def normal(files: dict[str, bytes], where: str, model: Mapping[str, Any] | None = None) -> dict[str, bytes]:
    """The files with a tokenizer.json that neither truncates nor pads (else every user would inherit that).

    The side at which it truncates goes into tokenizer_config.json, where that has none.  model: the folder's
    config.json.
    """
    for name, data in files.items():
        if len(data) > LIMIT:
            raise UserError("the file is too large", where=f"{where}: {name}", why=f"limit {LIMIT >> 20} MiB")
    if "tokenizer.json" not in files:
        return {"tokenizer.json": from_vocabulary(files, where, model or {}), **files}
    files["tokenizer.json"] = files["tokenizer.json"].removeprefix(BOM_UTF8)  # which the library cannot read
    pipeline = native.parse(files["tokenizer.json"], f"{where}: tokenizer.json")
    tokenizer_limits.check(pipeline, f"{where}: tokenizer.json")
    tokenizer_probe.require_harmless(pipeline, f"{where}: tokenizer.json")
    truncation = pipeline.get("truncation")
    if truncation is not None or pipeline.get("padding") is not None:
        if isinstance(truncation, dict) and truncation.get("direction") == "Left":
            told = native.parse(files[CONFIG], f"{where}: {CONFIG}") if CONFIG in files else {}
            files[CONFIG] = (json.dumps({SIDE: "left"} | told, ensure_ascii=False, indent=2) + "\n").encode()
        pipeline["truncation"] = pipeline["padding"] = None
        files["tokenizer.json"] = json.dumps(pipeline, ensure_ascii=False, indent=2).encode()
    return files


def complete(files: Mapping[str, bytes], where: str) -> dict[str, bytes]:
    """The files of a tokenizer with the tokenizer.json that other programs read, made of its vocabulary where it has
    none; those of a SentencePiece model alone, and no files at all, stay what they are. Raises UserError as `normal`.
    """
    known = "tokenizer.json" in files or "vocab.txt" in files or files.keys() >= {*BPE}
    return normal(dict(files), where) if known else dict(files)


def settle(files: Mapping[str, bytes], model: Mapping[str, Any], where: str) -> dict[str, bytes]:
    """The files of a foreign folder with a tokenizer.json that encodes as transformers does with them (`settle` of
    `tokenizer_classes`), and without truncation and padding.

    model: the folder's config.json.  Raises UserError for files of a class that is not built here.
    """
    known = "tokenizer.json" in files or "vocab.txt" in files or files.keys() >= {*BPE}
    if not known:
        if files:
            told = native.parse(files[CONFIG], f"{where}: {CONFIG}") if CONFIG in files else {}
            tokenizer_names.class_of(told, model, where)
        return dict(files)
    told = json.dumps({key: model.get(key) for key in ("model_type", "tokenizer_class")})
    return dict(_settled(tuple(files.items()), told, where))


@lru_cache(maxsize=2)  # a command opens a folder several times, and XLM-R's tokenizer takes seconds
def _settled(files: tuple[tuple[str, bytes], ...], model: str, where: str) -> dict[str, bytes]:
    """model: what config.json says of the tokenizer, as JSON."""
    made = normal(dict(files), where, json.loads(model))
    settled = tokenizer_classes.settle(made, json.loads(model), where)
    return made if settled == made["tokenizer.json"] else {**made, "tokenizer.json": settled}


def from_vocabulary(files: Mapping[str, bytes], where: str, model: Mapping[str, Any]) -> bytes:
    """The tokenizer.json of a folder that has none, of the class that it names; without a name BERT's over vocab.txt,
    or RoBERTa's over vocab.json and merges.txt.

    Raises UserError where there is neither; for a SentencePiece model it says how to convert it.
    """
    if "vocab.txt" in files or files.keys() >= {*BPE}:
        return tokenizer_classes.settle(files, model, where)
    for name in SENTENCE_PIECE:
        if name in files:
            line = f"t.AutoTokenizer.from_pretrained('{where}').save_pretrained('{where}')"
            raise UserError(
                f"the only tokenizer file is {name}",
                where=where,
                why="SentencePiece models are supported only as tokenizer.json",
                do=f'convert it with transformers and sentencepiece: python -c "import transformers as t; {line}"',
            )
    raise UserError("no tokenizer found", where=where, why="neither tokenizer.json nor vocab.txt")


def finish(made: tokenizers.Tokenizer) -> None:
    """Declare the five special tokens and wrap texts as [CLS] A [SEP] (B [SEP])."""
    from tokenizers import processors

    made.add_special_tokens([names[0] for names in SPECIAL_TOKENS.values()])
    pairs = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=pairs
    )


def lowercased(files: Mapping[str, bytes], where: str) -> dict[str, bytes]:
    """The files with a tokenizer.json that lower-cases texts before it does anything else with them, as
    `do_lower_case` of sentence-transformers; those that lower-case already as they are."""
    made = complete(files, where)
    if "tokenizer.json" not in made:
        return made
    pipeline = native.parse(made["tokenizer.json"], f"{where}: tokenizer.json")
    steps = list(tokenizer_limits.steps(pipeline.get("normalizer")))
    if any(step.get("type") == "Lowercase" or step.get("lowercase") is True for step in steps):
        return made
    pipeline["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *steps]}
    return {**made, "tokenizer.json": json.dumps(pipeline, ensure_ascii=False).encode()}


def settings(files: Mapping[str, bytes], where: str) -> dict[str, Any]:
    """tokenizer_config.json over special_tokens_map.json, empty where neither is there."""
    merged: dict[str, Any] = {}
    for name in ("special_tokens_map.json", CONFIG):
        if name in files:
            merged.update(native.parse(files[name], f"{where}: {name}"))
    return merged


def truncation_side(told: Mapping[str, Any], where: str) -> Literal["left", "right"]:
    """At which side a text that is too long is cut. Raises UserError for another value."""
    side = told.get(SIDE, "right")
    if side not in ("left", "right"):
        raise UserError(f"invalid '{SIDE}'", where=f"{where}: {CONFIG}", why="allowed: left and right")
    return side


def special_tokens(told: Mapping[str, Any], vocabulary: Mapping[str, int]) -> dict[str, int]:
    """role → id, by the names the configuration gives, else the usual ones. Roles without a token are left out."""
    named = {role: _named(told, role, vocabulary) for role in SPECIAL_TOKENS}
    return {role: vocabulary[name] for role, name in named.items() if name is not None}


def _named(told: Mapping[str, Any], role: str, vocabulary: Mapping[str, int]) -> str | None:
    own = told.get(f"{role}_token")
    own = own.get("content") if isinstance(own, dict) else own
    return next((name for name in (own, *SPECIAL_TOKENS[role]) if isinstance(name, str) and name in vocabulary), None)
