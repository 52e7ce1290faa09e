"""Small tokenizers as each family's folders hold them, trained here: kind, special tokens and template."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
MPNET = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "[UNK]", "mask": "<mask>"}
ALBERT = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def _special(names: dict[str, str]) -> list[AddedToken]:
    return [
        AddedToken(name, lstrip=role == "mask" and name != "[MASK]", normalized=False, special=True)
        for role, name in names.items()
    ]


def _files(made: Tokenizer, names: dict[str, str], kind: str) -> dict[str, bytes]:
    told = {"tokenizer_class": kind, **{f"{role}_token": name for role, name in names.items()}}
    return {
        "tokenizer.json": made.to_str(pretty=True).encode(),
        "tokenizer_config.json": json.dumps(told).encode(),
    }


def _surround(made: Tokenizer, names: dict[str, str], *, segments: bool, twice: bool) -> None:
    cls, sep, second = names["cls"], names["sep"], int(segments)
    between = f"{sep}:0 {sep}:0" if twice else f"{sep}:0"
    made.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {between} $B:{second} {sep}:{second}",
        special_tokens=[(name, made.token_to_id(name)) for name in (cls, sep)],
    )


def unigram(texts: Sequence[str], names: dict[str, str], size: int = 200) -> Tokenizer:
    """SentencePiece's Unigram, as tokenizer.json holds it."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()  # pyright: ignore[reportAttributeAccessIssue]
    made.pre_tokenizer = pre_tokenizers.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=_special(names), unk_token=names["unk"], show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    return made


def byte_bpe(texts: Sequence[str], names: dict[str, str], size: int = 330) -> Tokenizer:
    """BPE over bytes."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=_special(names),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made


def wordpiece(texts: Sequence[str], names: dict[str, str] = BERT, size: int = 200) -> Tokenizer:
    """BERT's."""
    made = Tokenizer(models.WordPiece(unk_token=names["unk"]))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)  # pyright: ignore[reportAttributeAccessIssue]
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.WordPiece()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=_special(names), show_progress=False)
    made.train_from_iterator(texts, trainer)
    return made


def of_family(family: str, texts: Sequence[str]) -> dict[str, bytes]:
    """The files of a tokenizer as folders of this family hold them."""
    if family in ("roberta", "longformer"):
        made = byte_bpe(texts, ROBERTA)
        ids = {role: made.get_vocab()[ROBERTA[role]] for role in ("sep", "cls")}
        made.post_processor = processors.RobertaProcessing(  # pyright: ignore[reportAttributeAccessIssue]
            (ROBERTA["sep"], ids["sep"]), (ROBERTA["cls"], ids["cls"])
        )
        return _files(made, ROBERTA, "RobertaTokenizer")
    if family in ("xlm-roberta", "camembert", "gte"):
        made = unigram(texts, ROBERTA)
        _surround(made, ROBERTA, segments=False, twice=True)
        return _files(made, ROBERTA, "PreTrainedTokenizerFast")
    if family == "albert":
        made = unigram(texts, ALBERT)
        _surround(made, ALBERT, segments=True, twice=False)
        return _files(made, ALBERT, "PreTrainedTokenizerFast")
    if family == "mpnet":
        made = wordpiece(texts, MPNET)
        ids = {role: made.get_vocab()[MPNET[role]] for role in ("sep", "cls")}
        made.post_processor = processors.RobertaProcessing(  # pyright: ignore[reportAttributeAccessIssue]
            (MPNET["sep"], ids["sep"]), (MPNET["cls"], ids["cls"]), add_prefix_space=False
        )
        return _files(made, MPNET, "MPNetTokenizer")
    if family == "deberta-v2":
        made = unigram(texts, BERT)
        made.normalizer = normalizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
            [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(), normalizers.Strip(left=False)]
        )
        _surround(made, BERT, segments=True, twice=False)
        return _files(made, BERT, "DebertaV2Tokenizer")
    if family == "modernbert":
        made = byte_bpe(texts, BERT)
        _surround(made, BERT, segments=False, twice=False)
        return _files(made, BERT, "PreTrainedTokenizerFast")
    made = wordpiece(texts)
    _surround(made, BERT, segments=True, twice=False)
    return _files(made, BERT, "PreTrainedTokenizerFast")
