"""How each class of transformers that is supported makes its pipeline from the files of a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from compress.data.text import tokenizer_native as native
from compress.data.text.tokenizer_sources import Sources

Number = Callable[[str], tuple[str, int]]


@dataclass(frozen=True)
class Builder:
    """How one class makes its pipeline.

    model: of `tokenizers`.  files: those that suffice without tokenizer.json.  tokens: role → special token where the
    configuration names none.  eager_mask: whether the mask takes the blank before it.  make: pipeline with the unknown
    token.  around: roles of the tokens around texts.
    """

    name: str
    model: str
    files: tuple[str, ...]
    tokens: Mapping[str, str | None]
    make: Callable[[Sources, str], tokenizers.Tokenizer]
    around_texts: Callable[[Sources, Number], Any]
    around: tuple[str, str] = ("cls", "sep")
    eager_mask: bool = False


_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ROBERTA = {
    "bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>",
}  # fmt: skip


def _wordpiece(sources: Sources, unknown: str) -> tokenizers.Tokenizer:
    accents = None if sources.values.get("strip_accents") is None else sources.flag("strip_accents", False)
    return native.wordpiece(
        sources.vocabulary, unknown=unknown, lowercase=sources.flag("do_lower_case", True), strip_accents=accents,
        chinese=sources.flag("tokenize_chinese_chars", True),
    )  # fmt: skip


def _roberta(sources: Sources, unknown: str) -> tokenizers.Tokenizer:
    model = models.BPE(
        vocab=sources.vocabulary, merges=sources.merges, continuing_subword_prefix="", end_of_word_suffix="",
        fuse_unk=False,
    )  # fmt: skip
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=sources.flag("add_prefix_space", False))
    made.decoder = decoders.ByteLevel()
    return made


def _herbert(sources: Sources, unknown: str) -> tokenizers.Tokenizer:
    """Word-end BPE behind BERT's own way of cutting (2005.00630)."""
    model = models.BPE(
        vocab=sources.vocabulary, merges=sources.merges, unk_token=unknown, end_of_word_suffix="</w>"
    )  # fmt: skip
    made = tokenizers.Tokenizer(model)
    made.normalizer = normalizers.BertNormalizer(
        lowercase=False, strip_accents=False, clean_text=True, handle_chinese_chars=True
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.BPEDecoder(suffix="</w>")
    return made


def _pieces(sources: Sources) -> list[tuple[str, float]]:
    return [tuple(row) for row in sources.vocabulary]


def _metaspace(made: tokenizers.Tokenizer, sources: Sources) -> tokenizers.Tokenizer:
    scheme = "always" if sources.flag("add_prefix_space", True) else "never"
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme=scheme)]
    )
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return made


def _xlm_roberta(sources: Sources, unknown: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram(_pieces(sources), unk_id=3, byte_fallback=False))
    if sources.charsmap is not None:
        made.normalizer = normalizers.Precompiled(sources.charsmap)
    return _metaspace(made, sources)


def _camembert(sources: Sources, unknown: str) -> tokenizers.Tokenizer:
    pieces = _pieces(sources)
    at = next((i for i, (piece, _) in enumerate(pieces) if piece == unknown), 0)
    made = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=at, byte_fallback=False))
    if sources.charsmap is not None:
        made.normalizer = normalizers.Precompiled(sources.charsmap)
    return _metaspace(made, sources)


def _albert(sources: Sources, unknown: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram(_pieces(sources), unk_id=1, byte_fallback=False))
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not sources.flag("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if sources.flag("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    if sources.charsmap is not None:
        steps.append(normalizers.Precompiled(sources.charsmap))
    made.normalizer = normalizers.Sequence(steps)
    return _metaspace(made, sources)


def _deberta(sources: Sources, unknown: str) -> tokenizers.Tokenizer:
    pieces = _pieces(sources)
    given = sources.values.get("unk_id", 1)
    at = pieces.index((unknown, 0.0)) if (unknown, 0.0) in pieces else given
    made = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=at, byte_fallback=False))
    steps: list[Any] = [normalizers.Lowercase()] if sources.flag("do_lower_case", False) else []
    steps += [
        normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(), normalizers.Strip(left=False),
    ]  # fmt: skip
    made.normalizer = normalizers.Sequence(steps)
    scheme = "always" if sources.flag("add_prefix_space", True) else "first"
    cuts: list[Any] = [pre_tokenizers.Metaspace(prepend_scheme=scheme)]
    if sources.flag("split_by_punct", False):
        cuts.insert(0, pre_tokenizers.Punctuation(behavior="isolated"))
    made.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return made


def _with_segments(_: Sources, number: Number) -> Any:
    cls, sep = number("cls"), number("sep")
    return processors.TemplateProcessing(
        single=f"{cls[0]}:0 $A:0 {sep[0]}:0", pair=f"{cls[0]}:0 $A:0 {sep[0]}:0 $B:1 {sep[0]}:1",
        special_tokens=[cls, sep],
    )  # fmt: skip


def _two_separators(_: Sources, number: Number) -> Any:
    bos, eos = number("bos"), number("eos")
    return processors.TemplateProcessing(
        single=[bos[0], "$A", eos[0]], pair=[bos[0], "$A", eos[0], eos[0], "$B", eos[0]], special_tokens=[bos, eos]
    )


def _of_roberta(sources: Sources, number: Number) -> Any:
    trim, space = sources.flag("trim_offsets", True), sources.flag("add_prefix_space", False)
    return processors.RobertaProcessing(number("sep"), number("cls"), trim, space)


def _of_mpnet(_: Sources, number: Number) -> Any:
    return processors.RobertaProcessing(number("sep"), number("cls"), True, False)


def _of_herbert(_: Sources, number: Number) -> Any:
    return processors.BertProcessing((number("sep")[0], 2), (number("cls")[0], 0))


def _of_albert(_: Sources, number: Number) -> Any:
    cls, sep = ("[CLS]", number("cls")[1]), ("[SEP]", number("sep")[1])
    return processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[cls, sep]
    )


_BPE = ("vocab.json", "merges.txt")
_MPNET = {**_ROBERTA, "unk": "[UNK]"}
_DEBERTA = {"bos": "[CLS]", "eos": "[SEP]", **_BERT}
_ALBERT = {**_DEBERTA, "unk": "<unk>", "pad": "<pad>"}
_HERBERT = {role: name for role, name in _ROBERTA.items() if role not in ("bos", "eos")}
_BUILDERS = (
    Builder("BertTokenizer", "WordPiece", ("vocab.txt",), _BERT, _wordpiece, _with_segments),
    Builder("RobertaTokenizer", "BPE", _BPE, _ROBERTA, _roberta, _of_roberta),
    Builder("HerbertTokenizer", "BPE", _BPE, _HERBERT, _herbert, _of_herbert),
    Builder("MPNetTokenizer", "WordPiece", ("vocab.txt",), _MPNET, _wordpiece, _of_mpnet, eager_mask=True),
    Builder("XLMRobertaTokenizer", "Unigram", (), _ROBERTA, _xlm_roberta, _two_separators, ("bos", "eos")),
    Builder(
        "CamembertTokenizer", "Unigram", (), _ROBERTA, _camembert, _two_separators, ("bos", "eos"), eager_mask=True
    ),
    Builder("AlbertTokenizer", "Unigram", (), _ALBERT, _albert, _of_albert),
    Builder("DebertaV2Tokenizer", "Unigram", (), _DEBERTA, _deberta, _with_segments),
)
BUILDERS: Mapping[str, Builder] = {builder.name: builder for builder in _BUILDERS}
"""The classes that are built here, by name."""
