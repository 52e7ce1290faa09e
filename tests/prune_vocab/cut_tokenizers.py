"""Small tokenizers of every kind, and one call that cuts any of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import numpy as np
from foreign_tokenizers import BERT, ROBERTA, of_family
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from compress.data.text.tokenizer import Tokenizer
from compress.stages.prune_vocab.dependencies import TokenizerParts, take_apart
from compress.stages.prune_vocab.rebuild import rebuild_tokenizer_files
from compress.stages.prune_vocab.selection import Choice, always, choose
from compress.stages.prune_vocab.spec import Spec

TEXTS = [
    "The film was not very good, she said; but he liked it again and again.",
    "Actors acting in unlikely plots: unlikelier films, filming, filmed, filmings.",
    "A café in Zürich, naïve and çurious; 2024-11-05 at 10:30, 3 ½ hours.",
    "the plot, the plotters and the plotting of the replotted plot",
    "bad badly badness baddest, good goodness goodly",
] * 3
OTHERS = ("mixed letters: qwxz jkv", "filmplotter unfilmed", "the ünknown ☃ snow", "")


def _files(made: Library, names: Mapping[str, str]) -> dict[str, bytes]:
    told = {f"{role}_token": name for role, name in names.items()}
    return {"tokenizer.json": made.to_str().encode(), "tokenizer_config.json": json.dumps(told).encode()}


def _word_level() -> dict[str, bytes]:
    made = Library(models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.WordLevelTrainer(special_tokens=list(BERT.values()), show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    return _files(made, BERT)


def _bpe_with_ends() -> dict[str, bytes]:
    """Characters, not bytes: ends of words are marked, as in the first BPE, and within words there is a prefix."""
    made = Library(
        models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", continuing_subword_prefix="@@", fuse_unk=True)
    )
    made.normalizer = normalizers.Lowercase()  # pyright: ignore[reportAttributeAccessIssue]
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.BPEDecoder(suffix="</w>")  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=260,
        special_tokens=list(ROBERTA.values()),
        end_of_word_suffix="</w>",
        continuing_subword_prefix="@@",
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    return _files(made, ROBERTA)


def _bytes_for_the_rest(kind: str) -> dict[str, bytes]:
    """Unigram or BPE over characters, in which a character without a piece is its bytes."""
    specials, letters = list(ROBERTA.values()), sorted(set("".join(TEXTS).replace(" ", "▁")))
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    if kind == "unigram":
        words = sorted({f"▁{word}" for text in TEXTS for word in text.split()})
        rows = [(piece, 0.0 if piece in specials else -9.0 - i / 100) for i, piece in enumerate(pieces)]
        rows += [(word, -3.0 - i / 50) for i, word in enumerate(words)]
        made = Library(models.Unigram(rows, unk_id=specials.index("<unk>"), byte_fallback=True))
    else:
        pairs = [("▁", "f"), ("▁f", "i"), ("l", "m"), ("▁fi", "lm"), ("p", "l"), ("▁", "pl"), ("▁", "p"), ("▁p", "l")]
        vocabulary = dict.fromkeys([*pieces, *("".join(pair) for pair in pairs)])
        ids = {piece: index for index, piece in enumerate(vocabulary)}
        made = Library(models.BPE(ids, pairs, unk_token="<unk>", byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
    steps = [decoders.ByteFallback(), decoders.Metaspace()]
    made.decoder = decoders.Sequence(steps)  # pyright: ignore[reportAttributeAccessIssue]
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    return _files(made, ROBERTA)


def _with_added_tokens() -> dict[str, bytes]:
    """BERT's, with tokens of its user's own behind the vocabulary."""
    files = of_family("bert", TEXTS)
    made = Library.from_buffer(files["tokenizer.json"])
    made.add_special_tokens(["[ENTITY]"])
    made.add_tokens([AddedToken("filmography", single_word=True)])
    known = made.get_vocab()
    decoder = {str(known[t]): {"content": t, "special": t[0] == "["} for t in ("[PAD]", "[ENTITY]", "filmography")}
    told = json.loads(files["tokenizer_config.json"]) | {"added_tokens_decoder": decoder}
    added = {t: known[t] for t in ("[ENTITY]", "filmography")}
    return {
        "tokenizer.json": made.to_str().encode(),
        "tokenizer_config.json": json.dumps(told).encode(),
        "added_tokens.json": json.dumps(added).encode(),
    }


KINDS = {
    "wordpiece": lambda: of_family("bert", TEXTS),
    "wordpiece with added tokens": _with_added_tokens,
    "byte-level bpe": lambda: of_family("roberta", TEXTS),
    "byte-level bpe with a template": lambda: of_family("modernbert", TEXTS),
    "bpe with ends of words": _bpe_with_ends,
    "bpe with bytes for the rest": lambda: _bytes_for_the_rest("bpe"),
    "unigram": lambda: of_family("xlm-roberta", TEXTS),
    "unigram with segments": lambda: of_family("albert", TEXTS),
    "unigram with bytes for the rest": lambda: _bytes_for_the_rest("unigram"),
    "word level": _word_level,
}


@cache
def pieces_of(kind: str) -> TokenizerParts:
    return take_apart(Tokenizer.from_files(KINDS[kind](), where=kind), kind)


def counted(pieces: TokenizerParts, texts: Collection[str]) -> np.ndarray:
    """How often the texts hold each piece."""
    tokenizer = pieces.tokenizer
    ids = tokenizer.encode_plain(list(texts), words=False).ids
    return np.bincount(ids[~tokenizer.special_mask(ids)], minlength=tokenizer.vocabulary_size)


def cut(
    pieces: TokenizerParts, texts: Collection[str], rows: Collection[int] = (0,), **asked: Any
) -> tuple[Choice, Tokenizer]:
    """The pieces that these texts need, and the tokenizer over them."""
    spec, counts = Spec.model_validate({"kind": "prune_vocab", **asked}), counted(pieces, texts)
    choice = choose(pieces, counts, always(pieces, counts, spec, rows, "here"), spec, "here")
    return choice, Tokenizer.from_files(rebuild_tokenizer_files(pieces, choice.kept, "here"), where="here")
