"""Dependencies between a tokenizer's tokens: which are always kept, and which tokens a token is merged from.

WordPiece   takes the longest piece that fits, again and again: where that piece stays, no shorter one is taken.
BPE         merges pairs by rank. All merges that lead to a piece lie within it, so a piece stays with the pieces that
            it is merged from (its parents), and merges without all three of their pieces go.
Unigram     takes the likeliest way through a text: where all pieces of that way stay, no other becomes likelier. What a
            character without a piece costs hangs on the lowest score of all, so the piece that has it stays.
WordLevel   looks words up.

So text whose pieces all stay, and which held no unknown piece, is cut as before.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokenizer_native import build
from compress.errors import UserError, printable

KINDS = ("WordPiece", "BPE", "Unigram", "WordLevel")


@dataclass(frozen=True)
class TokenizerParts:
    """A tokenizer, taken apart. pipeline: its tokenizer.json as the library writes it.  ids: piece → id, of the model's
    own pieces; tokens that were added to them are in `tokenizer` alone."""

    tokenizer: Tokenizer
    pipeline: Mapping[str, Any]
    ids: Mapping[str, int]

    @property
    def model(self) -> Mapping[str, Any]:
        return self.pipeline["model"]

    @property
    def kind(self) -> str:
        return self.model["type"]

    @cached_property
    def names(self) -> dict[int, str]:
        """id → piece or added token."""
        return {index: name for name, index in self.tokenizer.vocabulary.items()}

    @cached_property
    def added(self) -> frozenset[int]:
        """Ids of special and added tokens, and of those that the template puts around texts."""
        known = self.tokenizer.vocabulary
        found = {known[row["content"]] for row in self.pipeline["added_tokens"]}
        found |= set(self.tokenizer.specials.values())
        for step in post_processors(self.pipeline["post_processor"]):
            found |= {index for row in step.get("special_tokens", {}).values() for index in row["ids"]}
            found |= {step[end][1] for end in ("sep", "cls") if end in step}
        return frozenset(found)

    @cached_property
    def unknown(self) -> int | None:
        """Id of the piece for what has none."""
        if self.kind == "Unigram":
            return self.model["unk_id"]
        name = self.model["unk_token"]
        return None if name is None else self.ids.get(name)

    @cached_property
    def characters(self) -> dict[int, str]:
        """id → character, of the pieces of a single one, at the start of words and within. None of WordLevel."""
        if self.kind == "WordLevel":
            return {}
        prefix = self.model.get("continuing_subword_prefix") or ""
        suffix = self.model.get("end_of_word_suffix") or ""
        bare = {index: name.removeprefix(prefix).removesuffix(suffix) for name, index in self.ids.items()}
        return {index: name for index, name in bare.items() if len(name) == 1} | self._whole_characters

    @property
    def _whole_characters(self) -> dict[int, str]:
        """Of a piece such as "#": what is left of it without its prefix may be nothing."""
        return {index: name for name, index in self.ids.items() if len(name) == 1}

    @cached_property
    def bytes(self) -> frozenset[int]:
        """Ids of pieces that stand for single bytes: every text can be written in them."""
        if self.model.get("byte_fallback"):
            names = (f"<0x{byte:02X}>" for byte in range(256))
            return frozenset(self.ids[name] for name in names if name in self.ids)
        if "ByteLevel" in _types(self.pipeline["pre_tokenizer"]):
            return frozenset(self.characters)
        return frozenset()

    @cached_property
    def lowest(self) -> frozenset[int]:
        """Of Unigram: the id of the piece with the lowest score."""
        if self.kind != "Unigram":
            return frozenset()
        scores = [score for _, score in self.model["vocab"]]
        return frozenset({scores.index(min(scores))})

    @cached_property
    def parents(self) -> dict[int, frozenset[int]]:
        """id → the pieces that it may be merged from, directly; BPE alone has any."""
        found: dict[int, frozenset[int]] = {}
        for first, second, made in merges(self.model):
            pair = {self.ids[first], self.ids[second]}
            found[self.ids[made]] = found.get(self.ids[made], frozenset()) | pair
        return found

    def add_parents(self, wanted: Collection[int]) -> set[int]:
        """`wanted`, and all that they are merged from."""
        found, waiting = set(wanted), list(wanted)
        while waiting:
            for parent in self.parents.get(waiting.pop(), ()):
                if parent not in found:
                    found.add(parent)
                    waiting.append(parent)
        return found

    def find_used_characters(self, used: Collection[int]) -> set[int]:
        """Ids of the single characters that these pieces are spelled with, and of ASCII, which turns up everywhere."""
        letters = {letter for index in used for letter in self.names[index]}
        return {index for index, letter in self.characters.items() if letter in letters or letter.isascii()}


def take_apart(tokenizer: Tokenizer, where: str) -> TokenizerParts:
    """The pieces of a tokenizer. Raises UserError for one that cannot be made smaller."""
    # As the library writes it: old files spell merges otherwise and name no type.
    pipeline = json.loads(build(tokenizer.files()["tokenizer.json"], where).to_str())
    model = pipeline["model"]
    if model.get("type") not in KINDS:
        raise UserError(
            f"a tokenizer of the kind {printable(str(model.get('type')), 40)} cannot be rebuilt",
            where=where,
            why=f"known: {', '.join(KINDS)}",
        )
    vocab = model["vocab"]
    ids = {row[0]: index for index, row in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
    if isinstance(vocab, list) and len(ids) != len(vocab):
        raise UserError("the tokenizer has a duplicate token and cannot be rebuilt", where=where)
    pieces = TokenizerParts(tokenizer, pipeline, ids)
    if model.get("dropout"):
        raise UserError(
            "this BPE tokenizer drops merges at random, so tokenization is not deterministic",
            where=where,
            do='set "dropout" to null in its tokenizer.json',
        )
    return pieces


def merges(model: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(first, second, what they become) by rank; nothing of tokenizers that merge nothing."""
    skipped = len(model.get("continuing_subword_prefix") or "")
    for first, second in model.get("merges", ()):
        yield first, second, first + second[skipped:]


def post_processors(node: Any) -> Iterator[dict[str, Any]]:
    """The steps that put special tokens around a text."""
    if isinstance(node, dict):
        if isinstance(node.get("processors"), list):
            for inner in node["processors"]:
                yield from post_processors(inner)
        else:
            yield node


def _types(node: Any) -> set[str]:
    """The kinds of all steps of a part of the pipeline."""
    if isinstance(node, list):
        return {name for inner in node for name in _types(inner)}
    if not isinstance(node, dict):
        return set()
    own = {node["type"]} if isinstance(node.get("type"), str) else set()
    return own | {name for inner in node.values() for name in _types(inner)}
