"""BM25: the documents whose words answer a query best, of all that there are (Robertson & Zaragoza 2009)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from compress.data.text.baselines import words_of

K1, B = 1.2, 0.75
"""How fast a word that comes again counts less, and how much long documents are marked down: the usual values."""


class BM25:
    """An index of documents by their words, for any number of queries."""

    def __init__(self, documents: Sequence[str]) -> None:
        self.count = len(documents)
        counted = [Counter(words_of(text)) for text in documents]
        lengths = np.array([sum(words.values()) for words in counted], dtype=np.float64)
        norms = K1 * (1 - B + B * lengths / max(1e-9, lengths.mean())) if len(lengths) else lengths
        rows: dict[str, list[int]] = {}
        times: dict[str, list[int]] = {}
        for row, words in enumerate(counted):
            for word, count in words.items():
                rows.setdefault(word, []).append(row)
                times.setdefault(word, []).append(count)
        self._rows = {word: np.array(found, dtype=np.int64) for word, found in rows.items()}
        self._weights: dict[str, np.ndarray] = {}
        for word, found in self._rows.items():
            rare = math.log(1 + (self.count - len(found) + 0.5) / (len(found) + 0.5))
            seen = np.array(times[word], dtype=np.float64)
            self._weights[word] = rare * seen * (K1 + 1) / (seen + norms[found])

    def scores(self, query: str) -> np.ndarray:
        """(documents,) float64, 0 where no word is shared."""
        out = np.zeros(self.count)
        for word, times in Counter(words_of(query)).items():
            if word in self._rows:
                out[self._rows[word]] += times * self._weights[word]
        return out

    def best(self, queries: Sequence[str], top: int) -> Iterator[np.ndarray]:
        """For each query the rows of the `top` best documents, best first; of equal ones the first row comes first."""
        for query in queries:
            scores = self.scores(query)
            kept = np.arange(self.count)
            if top < self.count:  # all that are as good as the last one: which of them stay is decided by their rows
                kept = np.flatnonzero(scores >= np.partition(scores, -top)[-top])
            yield kept[np.lexsort((kept, -scores[kept]))][:top]
