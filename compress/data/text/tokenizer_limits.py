"""Reject a tokenizer.json that would use up memory or time, or whose parts do not fit together."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from compress.errors import UserError, printable

MOST_TOKENS = 2_000_000
DEEPEST = 40
_REPLACEMENT = 64  # characters that one step may insert for a match
_PATTERN = 1000  # characters of a regular expression
_TEMPLATE = 16
_WORD = 1000  # characters of a word that WordPiece looks up: its time grows with the third power
_AFFIX = 64
_GROWTH = 64  # by which the replacements together may multiply the length of a text
_GROWTH_IN_ALL = 4096  # with Unicode normalization, which grows only rare characters
_UNICODE = {"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11}  # U+FDFA: 3 bytes become 33
_SPLITS = (
    "BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits", "UnicodeScripts", "ByteLevel",
    "Metaspace", "CharDelimiterSplit",
)  # fmt: skip
_OTHERS = ("BertNormalizer", "Lowercase", "Strip", "StripAccents", "Nmt", "Prepend", "WordPiece", "BPEDecoder", "Fuse")
PLAIN = frozenset((*_SPLITS, *_OTHERS, *_UNICODE, "ByteFallback"))
"""Steps without a pattern or table of their own: what they do to a text is known."""


def check(pipeline: Mapping[str, Any], where: str) -> None:
    """Raise UserError for steps that make texts grow without bound, for patterns, templates and tables that are too
    large, and for a model whose unknown token is missing."""
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        _walk(pipeline.get(part), where, 0)
    _check_growth([*steps(pipeline.get("normalizer")), *steps(pipeline.get("pre_tokenizer"))], where)
    _check_growth(list(steps(pipeline.get("decoder"))), where)
    _check_templates(pipeline.get("post_processor"), where)
    _check_model(pipeline.get("model"), where)
    added = pipeline.get("added_tokens")
    if isinstance(added, list) and len(added) > 10_000:
        raise UserError("too many added tokens", where=where, why=f"{len(added):,}, limit 10,000")
    for token in added if isinstance(added, list) else []:
        number = token.get("id") if isinstance(token, dict) else None
        if isinstance(number, int) and not 0 <= number < MOST_TOKENS:
            raise UserError(f"an added token has the id {number:,}", where=where, why=f"allowed: below {MOST_TOKENS:,}")


def steps(node: Any) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder in order, those of nested sequences included."""
    if not isinstance(node, dict):
        return
    if node.get("type") != "Sequence":
        yield node
        return
    for value in node.values():
        for item in value if isinstance(value, list) else []:
            yield from steps(item)


def _walk(node: Any, where: str, depth: int) -> None:
    """Every Replace and Split below `node` within bounds."""
    if depth > DEEPEST:
        raise UserError("the tokenizer is nested too deeply", where=where, why=f"limit {DEEPEST}")
    if isinstance(node, list):
        if len(node) > 64:
            raise UserError("the tokenizer has too many steps", where=where, why=f"{len(node)}, limit 64")
        for item in node:
            _walk(item, where, depth + 1)
    elif isinstance(node, dict):
        pattern = _pattern(node)
        if len(pattern) > _PATTERN:
            raise UserError("a pattern of the tokenizer is too long", where=where, why=f"{len(pattern):,} characters")
        for key in ("content", "prepend"):
            value = node.get(key)
            grows = node.get("type") == "Replace" and not pattern and value  # inserted at every place of the text
            if isinstance(value, str) and (len(value) > _REPLACEMENT or grows):
                raise UserError("a step of the tokenizer makes texts grow too much", where=where, why=f"'{key}'")
        for key, value in node.items():
            if key != "precompiled_charsmap":
                _walk(value, where, depth + 1)


def _check_growth(chain: list[Mapping[str, Any]], where: str) -> None:
    """The chain within both bounds: each step multiplies the bytes of the worst text by its factor."""
    replaced, total, settled = 1, 1, False
    for step in chain:
        kind = str(step.get("type"))
        if kind in _UNICODE:
            total *= 1 if settled else _UNICODE[kind]  # normalizing what is normal changes nothing
            settled = True
        elif kind == "Precompiled":
            total *= _longest_entry(step.get("precompiled_charsmap"))
        elif kind in ("Replace", "ByteLevel"):
            factor = 2 if kind == "ByteLevel" else _replacement_growth(step)
            replaced, total, settled = replaced * factor, total * factor, False
        for grown, limit in ((replaced, _GROWTH), (total, _GROWTH_IN_ALL)):
            if grown > limit:
                why = f"{len(chain)} steps can make a text more than {limit:,} times as long"
                raise UserError("the tokenizer makes texts grow too much", where=where, why=why)


def _replacement_growth(step: Mapping[str, Any]) -> int:
    content = len(str(step.get("content") or "").encode("utf-8", "replace"))
    pattern = step.get("pattern")
    if isinstance(pattern, dict) and isinstance(pattern.get("String"), str):
        return max(1, -(-content // max(1, len(pattern["String"].encode("utf-8", "replace")))))
    return 1 + content  # an expression may match one character, or the empty text before each


def _longest_entry(table: Any) -> int:
    """Bytes of the longest text in SentencePiece's table of replacements: size of the index, index, texts."""
    try:
        data = base64.b64decode(table)
    except (TypeError, ValueError):
        return 1  # the library rejects it
    texts = data[4 + int.from_bytes(data[:4], "little") :]
    return max(1, *map(len, texts.split(b"\0")))


def _check_templates(processor: Any, where: str) -> None:
    found = list(steps(processor))
    if len(found) > _TEMPLATE:
        raise UserError("the tokenizer has too many steps", where=where, why=f"{len(found)}, limit {_TEMPLATE}")
    for step in found:
        for shape, texts in (("single", ["A"]), ("pair", ["A", "B"])):
            template = step.get(shape)
            if not isinstance(template, list):
                continue
            if len(template) > _TEMPLATE:
                why = f"{len(template)}, limit {_TEMPLATE}"
                raise UserError("the template adds too many tokens", where=where, why=why)
            pieces = [piece for one in template if isinstance(one, dict) for piece in one.items()]
            kinds = [value.get("type_id") for _, value in pieces if isinstance(value, dict)]
            if any(kind not in (0, 1) for kind in kinds):
                raise UserError(f"invalid segment in the template '{shape}'", where=where, why="allowed: 0 and 1")
            if sorted(str(v.get("id")) for k, v in pieces if k == "Sequence" and isinstance(v, dict)) != texts:
                why = f"expected each of {', '.join(texts)} once"
                raise UserError(f"the template '{shape}' does not contain the text", where=where, why=why)
        tokens = step.get("special_tokens")
        for token in tokens.values() if isinstance(tokens, dict) else []:
            if isinstance(token, dict) and len(token.get("ids") or ()) > _TEMPLATE:
                why = f"limit {_TEMPLATE}"
                raise UserError("a special token stands for too many ids", where=where, why=why)


def _check_model(model: Any, where: str) -> None:
    if not isinstance(model, dict):
        return
    for key, limit in (
        ("max_input_chars_per_word", _WORD),
        ("continuing_subword_prefix", _AFFIX),
        ("end_of_word_suffix", _AFFIX),
    ):
        value = model.get(key)
        size = len(value) if isinstance(value, str) else value
        if isinstance(size, int) and size > limit:
            raise UserError(f"'{key}' of the tokenizer is too large", where=where, why=f"{size:,}, limit {limit:,}")
    vocabulary, unknown = model.get("vocab"), model.get("unk_token")
    if isinstance(vocabulary, dict) and isinstance(unknown, str) and unknown not in vocabulary:
        what = f"the unknown token '{printable(unknown, 40)}' is not in the vocabulary"
        raise UserError(what, where=where, do="add it to the vocabulary, or correct 'unk_token'")
    if isinstance(vocabulary, list) and model.get("unk_id") is None:
        raise UserError("the tokenizer has no unknown token", where=where, why="'unk_id' is not set")


def _pattern(node: Mapping[str, Any]) -> str:
    pattern = node.get("pattern")
    text = next(iter(pattern.values()), "") if isinstance(pattern, dict) and pattern else ""
    return text if isinstance(text, str) else ""
