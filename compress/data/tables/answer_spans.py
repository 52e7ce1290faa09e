"""Scores of starts and ends, over all windows of a question → its answers, best first, cut from the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compress.data.text.passages import CLS, Windows
from compress.errors import UserError

MOST_TOKENS = 30  # of an answer, as in BERT's scripts
BEST = 20  # answers that compete for the probability


@dataclass(frozen=True)
class Span:
    """An answer: characters start..end-1 of the context; the empty text at 0..0 is "no answer".

    logit: sum of its start and end score.  score: its share of the probability among the best, 0 to 1.
    """

    text: str
    start: int
    end: int
    logit: float
    score: float


@dataclass(frozen=True)
class Reply:
    """What a model says to one question. best: at least one span, best first, the empty one among them where "no
    answer" was allowed.  chosen: the one that it gives."""

    chosen: Span
    best: tuple[Span, ...]

    def as_json(self, most: int = 5) -> dict[str, Any]:
        """answer, score, start, end, and the `most` best as "n_best"."""
        shown = [{"answer": s.text, "score": s.score, "start": s.start, "end": s.end} for s in self.best[:most]]
        one = self.chosen
        return {"answer": one.text, "score": one.score, "start": one.start, "end": one.end, "n_best": shown}


def decode_spans(
    windows: Windows,
    logits: np.ndarray,
    contexts: Sequence[str],
    *,
    most_tokens: int = MOST_TOKENS,
    best: int = BEST,
    no_answer: bool = False,
    threshold: float = 0.0,
) -> list[Reply]:
    """One reply a question.

    logits: (T, 2) scores of start and end of every token.  contexts: as they were encoded.  most_tokens: of an answer.
    best: spans kept.  no_answer: whether "not in the context" is a reply: its score is that of CLS, in the window that
    is least sure of it (Devlin et al. 2019, section 4.3), and it is given when it beats the best span by more than
    `threshold`. Raises UserError when a score is not finite.
    """
    if logits.shape != (len(windows.ids), 2):
        raise UserError(
            "the model's outputs do not match the windows", why=f"shape {logits.shape} for {len(windows.ids)} tokens"
        )
    if not np.isfinite(logits).all():
        at = int(np.flatnonzero(~np.isfinite(logits).all(1))[0])
        window = int(np.searchsorted(windows.offsets, at, side="right")) - 1
        question = int(windows.questions[window])
        raise UserError(
            "the model's output contains NaN or infinity", where=f"row {question + 1}", do="check its weights"
        )
    found: list[dict[tuple[int, int], float]] = [{} for _ in contexts]
    nothing = np.full(len(contexts), np.inf)
    for w, question in enumerate(windows.questions.tolist()):
        begin, stop = windows.offsets[w], windows.offsets[w + 1]
        scores = logits[begin:stop].astype(np.float64)
        nothing[question] = min(nothing[question], scores[CLS].sum())
        inside = windows.context[begin:stop]
        spans = windows.spans[begin:stop][inside]
        for i, j, logit in _best_pairs(scores[inside], most_tokens, best):
            place = (int(spans[i, 0]), int(spans[j, 1]))
            held = found[question].get(place)
            if held is None or logit > held:
                found[question][place] = logit
    return [
        _reply(spans, contexts[q], float(nothing[q]) if no_answer else None, best, threshold)
        for q, spans in enumerate(found)
    ]


def _best_pairs(scores: np.ndarray, most_tokens: int, best: int) -> list[tuple[int, int, float]]:
    """The `best` pairs of a start i and an end j, i <= j < i + most_tokens, of (L, 2) scores; all are looked at."""
    length = len(scores)
    width = min(most_tokens, length)
    if not width:
        return []
    ends = np.full((length, width), -np.inf)
    for k in range(width):
        ends[: length - k, k] = scores[k:, 1]
    sums = (scores[:, :1] + ends).ravel()
    count = min(best, int(np.isfinite(sums).sum()))
    top = np.argpartition(-sums, count - 1)[:count]
    return [(int(at) // width, int(at) // width + int(at) % width, float(sums[at])) for at in top]


def _reply(
    spans: dict[tuple[int, int], float], context: str, nothing: float | None, best: int, threshold: float
) -> Reply:
    ranked = sorted(spans.items(), key=lambda item: (-item[1], item[0]))[:best]
    places = [(*_trimmed(context, *place), logit) for place, logit in ranked]
    if nothing is not None or not places:  # a context of characters that no token stands for has no span at all
        places.append((0, 0, nothing if nothing is not None else 0.0))
        places.sort(key=lambda item: -item[2])
    logits = np.array([logit for _, _, logit in places])
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    made = [Span(context[s:e], s, e, logit, float(p)) for (s, e, logit), p in zip(places, shares, strict=True)]
    first = next((span for span in made if span.end), None)
    empty = next((span for span in made if not span.end), None)
    refuses = first is None or (empty is not None and empty.logit - first.logit > threshold)
    chosen = empty if refuses else first
    assert chosen is not None
    return Reply(chosen, tuple(made))


def _trimmed(context: str, start: int, end: int) -> tuple[int, int]:
    """Without white space at its ends: some tokenizers count the space before a word to it."""
    text = context[start:end]
    return start + len(text) - len(text.lstrip()), end - (len(text) - len(text.rstrip()))
