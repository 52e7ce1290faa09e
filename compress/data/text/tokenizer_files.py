"""The files of a tokenizer: read them from a folder, refuse what is hostile, leave out what does not belong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from compress.contracts import SPECIAL_TOKENS
from compress.data.text import tokenizer_limits, tokenizer_probe
from compress.errors import UserError, printable

NAMES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "added_tokens.json")
BPE = ("vocab.json", "merges.txt")  # what RoBERTa's tokenizer consists of in older folders
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


def normal(files: dict[str, bytes], where: str) -> dict[str, bytes]:
    """The files with a tokenizer.json that neither truncates nor pads (else every user would inherit that)."""
    for name, data in files.items():
        if len(data) > LIMIT:
            raise UserError("the file is too large", where=f"{where}: {name}", why=f"limit {LIMIT >> 20} MiB")
    if "tokenizer.json" not in files:
        return {"tokenizer.json": from_vocabulary(files, where), **files}
    pipeline = parse(files["tokenizer.json"], f"{where}: tokenizer.json")
    tokenizer_limits.check(pipeline, f"{where}: tokenizer.json")
    tokenizer_probe.require_harmless(pipeline, f"{where}: tokenizer.json")
    if pipeline.get("truncation") is not None or pipeline.get("padding") is not None:
        pipeline["truncation"] = pipeline["padding"] = None
        files["tokenizer.json"] = json.dumps(pipeline, ensure_ascii=False, indent=2).encode()
    return files


def complete(files: Mapping[str, bytes], where: str) -> dict[str, bytes]:
    """The files of a tokenizer with the tokenizer.json that other programs read, made of its vocabulary where it has
    none; those of a SentencePiece model alone, and no files at all, stay what they are. Raises UserError as `normal`.
    """
    known = "tokenizer.json" in files or "vocab.txt" in files or files.keys() >= {*BPE}
    return normal(dict(files), where) if known else dict(files)


def from_vocabulary(files: Mapping[str, bytes], where: str) -> bytes:
    """The tokenizer.json of a folder that has none: BERT's over vocab.txt, or RoBERTa's over vocab.json and merges.txt.

    Raises UserError where there is neither; for a SentencePiece model it says how to convert it.
    """
    if "vocab.txt" in files:
        return from_wordpieces(files, where)
    if files.keys() >= {*BPE}:
        return from_merges(files, where)
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


def from_merges(files: Mapping[str, bytes], where: str) -> bytes:
    """RoBERTa's byte-level BPE (1907.11692) over vocab.json and merges.txt, as AutoTokenizer builds it."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

    vocabulary = parse(files["vocab.json"], f"{where}: vocab.json")
    if not vocabulary or not all(isinstance(i, int) and not isinstance(i, bool) for i in vocabulary.values()):
        raise UserError("the file does not map tokens to ids", where=f"{where}: vocab.json")
    lines = _text(files["merges.txt"], f"{where}: merges.txt").splitlines()
    merges: list[tuple[str, str]] = []
    for line in lines:
        if line.strip() and not line.startswith("#version"):
            first, _, second = line.partition(" ")
            if not second or " " in second:
                raise UserError(
                    "the file is not a list of pairs", where=f"{where}: merges.txt", why=printable(line, 60)
                )
            merges.append((first, second))
    told = settings(files, where)
    names = {role: _named(told, role, vocabulary) for role in SPECIAL_TOKENS}
    if missing := [role for role, name in names.items() if name is None]:
        raise UserError("this is not a RoBERTa vocabulary", where=f"{where}: vocab.json", why=f"no {missing[0]} token")
    known = {role: str(name) for role, name in names.items()}
    space = bool(told.get("add_prefix_space", False))
    made = _quietly(lambda: tokenizers.Tokenizer(models.BPE(vocabulary, merges)), where)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.RobertaProcessing(
        (known["sep"], vocabulary[known["sep"]]), (known["cls"], vocabulary[known["cls"]]), True, space
    )
    for role, name in known.items():  # the blank before a mask belongs to it
        made.add_special_tokens([AddedToken(name, lstrip=role == "mask", normalized=False, special=True)])
    return made.to_str(pretty=True).encode()


def from_wordpieces(files: Mapping[str, bytes], where: str) -> bytes:
    """BERT's pipeline over vocab.txt alone; `do_lower_case` of tokenizer_config.json is kept (default true)."""
    text = _text(files["vocab.txt"], f"{where}: vocab.txt")
    tokens = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    twice = len(tokens) - len(set(tokens))
    missing = [names[0] for names in SPECIAL_TOKENS.values() if names[0] not in tokens]
    if twice or missing:
        why = f"number of duplicate tokens: {twice}" if twice else "missing: " + ", ".join(missing)
        raise UserError("this is not a BERT vocabulary", where=f"{where}: vocab.txt", why=why)
    told = settings(files, where)
    made = wordpiece(
        {token: i for i, token in enumerate(tokens)},
        lowercase=bool(told.get("do_lower_case", True)),
        strip_accents=told.get("strip_accents"),
        chinese=bool(told.get("tokenize_chinese_chars", True)),
    )
    return made.to_str(pretty=True).encode()


def wordpiece(
    vocabulary: dict[str, int], *, lowercase: bool, strip_accents: bool | None = None, chinese: bool = True
) -> tokenizers.Tokenizer:
    """BERT's tokenizer over a vocabulary that holds the five special tokens."""
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    finish(made)
    return made


def finish(made: tokenizers.Tokenizer) -> None:
    """Declare the five special tokens and wrap texts as [CLS] A [SEP] (B [SEP])."""
    from tokenizers import processors

    made.add_special_tokens([names[0] for names in SPECIAL_TOKENS.values()])
    pairs = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=pairs
    )


def build(data: bytes, where: str) -> tokenizers.Tokenizer:
    """The native tokenizer."""
    return _quietly(lambda: tokenizers.Tokenizer.from_buffer(data), f"{where}: tokenizer.json")


def _quietly(make: Callable[[], tokenizers.Tokenizer], where: str) -> tokenizers.Tokenizer:
    """What `make` gives. It may panic, and a panic is no `Exception`: everything becomes a UserError."""
    try:
        return make()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise UserError("cannot read this tokenizer", where=where, why=printable(str(error), 160)) from error


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError("this is not UTF-8 text", where=where, why=f"byte {error.start:,}") from error


# --- judging foreign files --------------------------------------------------------------------------------------


def parse(data: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError("this is not JSON", where=where, why=printable(str(error), 120)) from error
    if not isinstance(found, dict):
        raise UserError("this is not a JSON object", where=where, why=f"found {type(found).__name__}")
    return found


def settings(files: Mapping[str, bytes], where: str) -> dict[str, Any]:
    """tokenizer_config.json over special_tokens_map.json, empty where neither is there."""
    merged: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if name in files:
            merged.update(parse(files[name], f"{where}: {name}"))
    return merged


def special_tokens(told: Mapping[str, Any], vocabulary: Mapping[str, int]) -> dict[str, int]:
    """role → id, by the names the configuration gives, else the usual ones. Roles without a token are left out."""
    named = {role: _named(told, role, vocabulary) for role in SPECIAL_TOKENS}
    return {role: vocabulary[name] for role, name in named.items() if name is not None}


def _named(told: Mapping[str, Any], role: str, vocabulary: Mapping[str, int]) -> str | None:
    own = told.get(f"{role}_token")
    own = own.get("content") if isinstance(own, dict) else own
    return next((name for name in (own, *SPECIAL_TOKENS[role]) if isinstance(name, str) and name in vocabulary), None)
