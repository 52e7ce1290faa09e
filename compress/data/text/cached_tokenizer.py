"""A tokenizer for many short texts: each word is tokenized once (`word_cache`), and looked up from then on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compress.data.text.chunks import frame_rows
from compress.data.text.tokenizer import CHARACTERS_PER_TOKEN, SHORTEST, EncodedRows, Tokenizer, check_length
from compress.data.text.word_cache import WordCache

WORDS = 1 << 17
"""Words that are remembered: some 20 MB."""


class CachedTokenizer(Tokenizer):
    """Encodes as `tokenizer` does, with the same parts. Single texts go through the cache where their tokens are those
    of their words between [CLS] and [SEP]; everything else goes the usual way."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.__dict__.update(tokenizer.__dict__)
        self._cache = WordCache(tokenizer, most=WORDS)
        around = tokenizer.encode_batch([""], max_length=SHORTEST).ids.tolist()
        named = [tokenizer.specials.get(role) for role in ("cls", "sep")]
        self._plain = around == named and not self.cuts_left

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int,
        words: bool = False,
        spans: bool = False,
    ) -> EncodedRows:
        """As of `Tokenizer`."""
        check_length(max_length)
        short = all(len(text) <= max_length * CHARACTERS_PER_TOKEN for text in texts)
        if self._plain and short and pairs is None and not words and not spans:
            found = self._cache.encode(texts)
            if found is not None:
                ids, _, sizes = found
                ends = np.cumsum(sizes)
                kept = np.minimum(sizes, max_length - 2)
                cut = int((sizes > kept).sum())
                return frame_rows(self, ids, ends - sizes, ends - sizes + kept, cut)
        return super().encode_batch(texts, pairs, max_length=max_length, words=words, spans=spans)
