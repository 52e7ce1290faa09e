"""Answers in words against gold answers: exact match and F1 by the rules of the official scripts.

"squad" (Rajpurkar et al. 2016): case, punctuation and articles do not count, F1 over words.  "squad_v2" (Rajpurkar et
al. 2018): the same, with no answer as an answer, the empty text.  "cmrc2018" (Cui et al. 2019): Chinese characters and
Latin words, F1 over the longest run that both have in common; no answer as in version 2 (its script knows none).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Rules = Literal["squad", "squad_v2", "cmrc2018"]

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# The marks that the script of CMRC 2018 drops. Its list also has a double ellipsis, which no single character equals.
_CMRC_MARKS = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_CHINESE = re.compile(r"[\u4e00-\u9fa5]")
_CMRC_PIECE = re.compile(r"[\u4e00-\u9fa5]|[^\W\u4e00-\u9fa5]+|[^\w\s]")


@dataclass(frozen=True)
class AnswerScores:
    """exact, f1: (N,) of each question, 0 to 1; their means are the published figures (times 100)."""

    exact: NDArray[np.float64]
    f1: NDArray[np.float64]


def normalize(text: str) -> str:
    """Lower case, without punctuation (ASCII), articles (a, an, the) and superfluous white space: SQuAD's rule."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def normalize_chinese(text: str) -> str:
    """Lower case, without surrounding white space and without the marks that CMRC 2018's script drops."""
    return "".join(c for c in text.lower().strip() if c not in _CMRC_MARKS)


def segments(text: str) -> list[str]:
    """Single Chinese characters, and words of everything else, without the marks that CMRC 2018's script drops.

    The script cuts what lies between Chinese characters with NLTK; here a word is a run of letters and digits, and any
    other mark is one of its own: the same but for English contractions and abbreviations.
    """
    return _CMRC_PIECE.findall(normalize_chinese(text))


def score_answers(predicted: Sequence[str], gold: Sequence[Sequence[str]], rules: Rules = "squad") -> AnswerScores:
    """Every answer against the nearest of its question's gold answers.

    predicted: one text a question, empty for "no answer".  gold: the accepted texts of each question; none: the
    question has no answer, and only the empty text is right. Raises ValueError when there are no questions, the numbers
    differ, or a question has no gold answer under the rules of "squad", which do not know such.
    """
    if len(predicted) != len(gold):
        raise ValueError(f"{len(predicted)} answers for {len(gold)} questions")
    if not predicted:
        raise ValueError("no rows to score")
    exact, f1 = _RULES[rules]
    scores = np.zeros((len(predicted), 2))
    for row, (answer, accepted) in enumerate(zip(predicted, gold, strict=True)):
        if rules != "squad":
            accepted = [text for text in accepted if normalize(text)] or [""]
        elif not accepted:
            raise ValueError(f"question {row} has no gold answer: score such data by the rules of squad_v2")
        scores[row] = max(exact(answer, a) for a in accepted), max(f1(answer, a) for a in accepted)
    return AnswerScores(scores[:, 0], scores[:, 1])


def rules_of(gold: Sequence[Sequence[str]]) -> Rules:
    """The rules that suit these gold answers.

    Those of Chinese where most hold Chinese characters, else of SQuAD, in version 2 where some questions have none.
    """
    texts = [text for accepted in gold for text in accepted]
    if 2 * sum(_CHINESE.search(text) is not None for text in texts) > len(texts):
        return "cmrc2018"
    return "squad" if all(gold) else "squad_v2"


def _exact(answer: str, gold: str) -> float:
    return float(normalize(answer) == normalize(gold))


def _exact_chinese(answer: str, gold: str) -> float:
    return float(normalize_chinese(answer) == normalize_chinese(gold))


def _f1(answer: str, gold: str) -> float:
    """Of the words that both have, counted as often as both have them."""
    ours, theirs = normalize(answer).split(), normalize(gold).split()
    return _harmonic(sum((Counter(ours) & Counter(theirs)).values()), len(ours), len(theirs))


def _f1_or_none(answer: str, gold: str) -> float:
    """As `_f1`; where a side is empty, 1 when both are."""
    if not normalize(answer) or not normalize(gold):
        return _exact(answer, gold)
    return _f1(answer, gold)


def _f1_chinese(answer: str, gold: str) -> float:
    ours, theirs = segments(answer), segments(gold)
    if not gold:
        return float(not ours)
    return _harmonic(_longest_common_run(ours, theirs), len(ours), len(theirs))


def _harmonic(common: int, ours: int, theirs: int) -> float:
    return 2 * common / (ours + theirs) if common else 0.0


def _longest_common_run(a: Sequence[str], b: Sequence[str]) -> int:
    """Pieces in the longest run that both hold without a gap."""
    best, lengths = 0, [0] * (len(b) + 1)  # of the common run that ends before each place of b
    for piece in a:
        lengths = [0] + [lengths[j] + 1 if piece == other else 0 for j, other in enumerate(b)]
        best = max(best, *lengths)
    return best


_RULES: dict[str, tuple[Callable[[str, str], float], Callable[[str, str], float]]] = {
    "squad": (_exact, _f1),
    "squad_v2": (_exact, _f1_or_none),
    "cmrc2018": (_exact_chinese, _f1_chinese),
}
