"""A WordPiece tokenizer of a given vocabulary."""

from __future__ import annotations

import json
from collections.abc import Sequence

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def make_wordpiece_files(vocabulary: Sequence[str]) -> dict[str, bytes]:
    """The files of a model folder. vocabulary: by id; it has all of SPECIALS."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    ids = {token: i for i, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    tokenizer.decoder = decoders.WordPiece()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens(SPECIALS)
    names = zip(("pad", "unk", "cls", "sep", "mask"), SPECIALS, strict=True)
    config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "model_max_length": 32,
        **{f"{name}_token": token for name, token in names},
    }
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
        "vocab.txt": ("\n".join(vocabulary) + "\n").encode(),
    }
