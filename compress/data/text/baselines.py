"""Answers that need no encoder, for a row of the table: what a model must be better than.

With scikit-learn: TF-IDF with logistic regression, or ridge regression for numbers. Without it: naive Bayes over words
(McCallum and Nigam 1998, multinomial, add-one), and no figure for numbers. For tags: the tag that a word has most often
in training (Charniak et al. 1993). For questions: the sentence of the context that shares the most words with the
question, a rare word counting more (SQuAD's sliding window without the window, Rajpurkar et al. 2016).
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compress.contracts import BASELINES

ROWS = 20_000
"""Most training rows that are read, evenly spaced."""
FEATURES = 50_000
"""Most different words and pairs of words."""
MOST_WEIGHTS = 10_000_000
"""Most weights, one for each word and class, of logistic regression, which holds twenty copies of them, and of naive
Bayes in a full table."""
LOGISTIC, BAYES, RIDGE, TAG, SENTENCE, _ = BASELINES

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")
"""A word, or one character of scripts without spaces."""
_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")


def words_of(text: str) -> list[str]:
    """Words in lower case; of Chinese, Japanese and Korean text, characters."""
    return _WORD.findall(text.lower())


def classify(texts: Sequence[str], labels: np.ndarray, asked: Sequence[str], classes: int) -> tuple[str, np.ndarray]:
    """(baseline, (M, classes) scores of `asked`), learned from N texts and their (N,) class numbers."""
    different = len(np.unique(labels))
    if different < 2 or not _has_sklearn():
        return BAYES, naive_bayes(texts, labels, asked, classes)
    learned, new = _tf_idf(texts, asked)
    if different * learned.shape[1] > MOST_WEIGHTS:
        return BAYES, naive_bayes(texts, labels, asked, classes)
    scores = np.full((len(asked), classes), -1e9)
    seen, found = _logistic(learned, labels, new)
    scores[:, seen] = found
    return LOGISTIC, scores


def label_sets(texts: Sequence[str], labels: np.ndarray, asked: Sequence[str]) -> tuple[str, np.ndarray]:
    """(baseline, (M, C) scores of `asked`, above 0 where a label applies), learned from (N, C) of 0 and 1."""
    scores = np.zeros((len(asked), labels.shape[1]))
    use = _has_sklearn()
    learned, new = _tf_idf(texts, asked) if use else (None, None)
    for column in range(labels.shape[1]):
        gold = (labels[:, column] > 0.5).astype(np.int64)
        if len(np.unique(gold)) < 2:
            scores[:, column] = 1.0 if gold.all() else -1.0
        elif use:
            _, found = _logistic(learned, gold, new)
            scores[:, column] = found[:, 1] - found[:, 0]
        else:
            found = naive_bayes(texts, gold, asked, 2)
            scores[:, column] = found[:, 1] - found[:, 0]
    return (LOGISTIC if use else BAYES), scores


def regress(
    texts: Sequence[str], pairs: Sequence[str] | None, scores: np.ndarray, asked: Sequence[str],
    asked_pairs: Sequence[str] | None,
) -> tuple[str, np.ndarray] | None:  # fmt: skip
    """(baseline, (M,) numbers), learned from (N,) scores of texts or pairs; None without scikit-learn."""
    if not _has_sklearn():
        return None
    from scipy.sparse import csr_matrix, hstack
    from sklearn.linear_model import Ridge

    if pairs is None or asked_pairs is None:
        learned, new = _tf_idf(texts, asked)
    else:
        first, second, left, right = _tf_idf(texts, pairs, asked, asked_pairs)
        learned, new = (
            hstack([a.multiply(b), csr_matrix(_cosines(a, b))]).tocsr() for a, b in ((first, second), (left, right))
        )
    return RIDGE, np.asarray(Ridge(alpha=1.0).fit(learned, scores).predict(new))


def tag_words(
    words: Sequence[Sequence[str]], tags: Sequence[Sequence[int]], asked: Sequence[Sequence[str]]
) -> list[list[int]]:
    """For every word the tag that it has most often in training; of a word that is new there, the commonest of all
    words that occur once."""
    known: dict[str, Counter[int]] = defaultdict(Counter)
    for row, numbers in zip(words, tags, strict=True):
        for word, number in zip(row, numbers, strict=True):
            known[word][number] += 1
    every = Counter(number for counts in known.values() for number in counts.elements())
    rare = Counter(number for counts in known.values() if counts.total() == 1 for number in counts)
    unknown = (rare or every).most_common(1)[0][0]
    return [[known[w].most_common(1)[0][0] if w in known else unknown for w in row] for row in asked]


def nearest_sentences(questions: Sequence[str], contexts: Sequence[str]) -> list[str]:
    """For every question the sentence of its context that shares the most words with it; words that few contexts have
    count more."""
    spread = Counter(word for context in dict.fromkeys(contexts) for word in set(words_of(context)))
    weight = lambda word: math.log(1 + len(contexts) / (1 + spread[word]))  # noqa: E731
    answers = []
    for question, context in zip(questions, contexts, strict=True):
        asked = set(words_of(question))
        sentences = [part for part in _END.split(context) if part.strip()] or [context]
        shared = [sum(map(weight, asked & set(words_of(one)))) / math.sqrt(1 + len(words_of(one))) for one in sentences]
        answers.append(sentences[int(np.argmax(shared))])
    return answers


def naive_bayes(texts: Sequence[str], labels: np.ndarray, asked: Sequence[str], classes: int) -> np.ndarray:
    """(M, classes) log-probabilities but for a constant of each row; words that training does not have say nothing."""
    places: dict[str, int] = {}
    for text in texts:
        for word in words_of(text):
            places.setdefault(word, len(places))
    if classes * len(places) > MOST_WEIGHTS:
        return _sparse_bayes(texts, labels, asked, classes, places)
    counts = np.ones((classes, len(places)))
    for text, label in zip(texts, labels.tolist(), strict=True):
        for word in words_of(text):
            counts[label, places[word]] += 1
    logs = np.log(counts) - np.log(counts.sum(1, keepdims=True))
    prior = np.log((np.bincount(labels, minlength=classes) + 1) / (len(labels) + classes))
    found = np.tile(prior, (len(asked), 1))
    for row, text in enumerate(asked):
        at = [places[word] for word in words_of(text) if word in places]
        found[row] += logs[:, at].sum(1)
    return found


def _sparse_bayes(
    texts: Sequence[str], labels: np.ndarray, asked: Sequence[str], classes: int, places: Mapping[str, int]
) -> np.ndarray:
    """`naive_bayes` in float32, without a table of all words and classes: most words are in few of them."""
    words = [[places[word] for word in words_of(text)] for text in texts]
    lengths = np.array([len(row) for row in words])
    held = np.concatenate([np.array(row, np.int64) for row in words])
    pairs, counts = np.unique(held * classes + np.repeat(labels, lengths), return_counts=True)
    word, label = np.divmod(pairs, classes)
    starts = np.searchsorted(word, np.arange(len(places) + 1))
    gain = np.log(counts + 1.0)  # the log of a count and one; where a word never occurred it is 0
    totals = np.log(np.bincount(np.repeat(labels, lengths), minlength=classes) + len(places))
    prior = np.log((np.bincount(labels, minlength=classes) + 1) / (len(labels) + classes))
    found = np.empty((len(asked), classes), np.float32)
    for row, text in enumerate(asked):
        at = [places[word] for word in words_of(text) if word in places]
        scores = prior - len(at) * totals
        for one in at:
            here = slice(starts[one], starts[one + 1])
            scores[label[here]] += gain[here]
        found[row] = scores
    return found


def join_pairs(texts: Sequence[str], pairs: Sequence[str] | None) -> list[str]:
    """One text a row: the text alone where there are no pairs, else `join_pair` of both."""
    return [join_pair(text, pair) for text, pair in zip(texts, pairs or [None] * len(texts), strict=True)]


def join_pair(text: str, pair: str | None) -> str:
    """One text of two, in which words of the second one, and words of both, are words of their own."""
    if pair is None:
        return text
    first, second = words_of(text), words_of(pair)
    both = sorted(set(first) & set(second))
    return " ".join([*first, *(f"{word}__2" for word in second), *(f"{word}__both" for word in both)])


def _has_sklearn() -> bool:
    return importlib.util.find_spec("sklearn") is not None


def _tf_idf(texts: Sequence[str], *others: Sequence[str]) -> list[Any]:
    """Matrices of TF-IDF of words and pairs of words, learned from `texts`."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    made = TfidfVectorizer(
        tokenizer=words_of, lowercase=False, token_pattern=None,  # pyright: ignore[reportArgumentType]
        ngram_range=(1, 2), sublinear_tf=True,
        max_features=FEATURES,
    )  # fmt: skip
    return [made.fit_transform(texts), *(made.transform(other) for other in others)]


def _logistic(learned: Any, labels: np.ndarray, new: Any) -> tuple[np.ndarray, np.ndarray]:
    """(classes that were seen, (M, seen) log-probabilities)."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(C=10.0, max_iter=100).fit(learned, labels)
    return model.classes_, model.predict_log_proba(new)


def _cosines(first: Any, second: Any) -> np.ndarray:
    """(N, 1): rows are of length 1 already."""
    return np.asarray(first.multiply(second).sum(1))
