"""A question and its context → windows of a length that the model reads, which overlap, with characters per token.

A context that is longer than the window is read in several, each with the whole question before it (Devlin et al.
2019, section 4.2). Every token of the context knows the characters that it stands for, so that an answer is cut from
the context as it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compress.data.batches.ragged import Ragged
from compress.data.tables.table import UNLABELLED
from compress.data.text.texts import is_empty
from compress.data.text.tokenizer import Tokenizer, check_length
from compress.errors import UserError, printable

CLS = 0  # place of the token in every window; an answer there means that there is none
DEFAULT_SHARE = 3  # the overlap is this part of the window where nothing else is said: 128 of 384, as BERT's scripts


@dataclass(frozen=True)
class Windows:
    """W windows of N questions, T tokens in all.

    ids: (T,) int32.  offsets: (W+1,) int64, window w is ids[offsets[w]:offsets[w+1]].  segments: (T,) uint8.
    questions: (W,) int64, place 0..N-1 of the window's question, ascending.
    context: (T,) bool, true on the tokens of the context.  spans: (T, 2) int32, the characters of the context that a
    token stands for, from and up to; (0, 0) elsewhere.
    """

    ids: np.ndarray
    offsets: np.ndarray
    segments: np.ndarray
    questions: np.ndarray
    context: np.ndarray
    spans: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1


def overlap(stride: int | None, max_length: int) -> int:
    """Tokens that neighbouring windows share: as given, else a third of the window. Raises UserError."""
    if stride is None:
        return max_length // DEFAULT_SHARE
    if not 0 <= stride < max_length - 3:  # [CLS], [SEP], [SEP]
        raise UserError(
            f"a stride of {stride} tokens is not possible for windows of {max_length}",
            where="data.stride",
            why="neighbouring windows overlap by the stride, and a window has room for fewer tokens"
            if stride >= 0
            else "it cannot be negative",
            do=f"give less than {max_length - 3}, e.g. {max_length // DEFAULT_SHARE}",
        )
    return stride


def encode_windows(
    tokenizer: Tokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    *,
    max_length: int,
    stride: int | None = None,
    numbers: Sequence[int] | np.ndarray | None = None,
) -> Windows:
    """Questions and contexts, N of each, in windows of at most `max_length` tokens.

    stride: tokens of the context that neighbouring windows share; None: a third of the window.  numbers: what errors
    call the rows, 1 to N where they have no other. Raises UserError for an empty question or context, a question that
    leaves no room for new tokens of the context, and a stride that does not fit the window.
    """
    check_length(max_length)
    shared = overlap(stride, max_length)
    called = range(1, len(questions) + 1) if numbers is None else numbers
    _check_texts(questions, contexts, called)
    _check_lengths(tokenizer, questions, max_length, shared, called)
    ids: list[int] = []
    segments: list[int] = []
    sides: list[int] = []
    lengths: list[int] = []
    owners: list[int] = []
    spans: list[np.ndarray] = [np.zeros((0, 2), dtype=np.int32)]
    for row, window in tokenizer.encode_windows(questions, contexts, max_length=max_length, stride=shared):
        ids += window.ids
        segments += window.type_ids
        sides += [-1 if side is None else side for side in window.sequence_ids]
        spans.append(np.array(window.offsets, dtype=np.int32).reshape(-1, 2))
        lengths.append(len(window))
        owners.append(row)
    context = np.array(sides, dtype=np.int64) == 1
    places = np.concatenate(spans)
    places[~context] = 0
    return Windows(
        np.array(ids, dtype=np.int32),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]),
        np.array(segments, dtype=np.uint8),
        np.array(owners, dtype=np.int64),
        context,
        places,
    )


def gold_positions(windows: Windows, answers: Ragged) -> np.ndarray:
    """(W, 2) int64: first and last token of the answer, counted from the start of the window.

    answers: (start, end) characters of each question's answers (`answers.Answers`); the first one counts. A question
    without one has it at CLS in all of its windows. So has a window that does not hold the whole answer, when another
    one does; when none does (the answer is longer than the overlap) or it is not known, all are UNLABELLED.
    """
    gold = np.full((len(windows), 2), CLS, dtype=np.int64)
    held = answers.lengths == 0
    for w, question in enumerate(windows.questions.tolist()):
        if answers.offsets[question] == answers.offsets[question + 1]:
            continue
        start, end = answers.values[answers.offsets[question]].tolist()
        found = None if start == UNLABELLED else _tokens_of(windows, w, start, end)
        if found is not None:
            gold[w] = found
            held[question] = True
    gold[~held[windows.questions]] = UNLABELLED
    return gold


def _tokens_of(windows: Windows, w: int, start: int, end: int) -> tuple[int, int] | None:
    """(first, last) token of window `w` that touch characters start..end-1; None unless all of them are in it."""
    begin, stop = windows.offsets[w], windows.offsets[w + 1]
    inside = np.flatnonzero(windows.context[begin:stop])
    if not len(inside):
        return None
    spans = windows.spans[begin:stop][inside]
    touched = np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > start))
    # The answer goes on beyond the window when its text begins before the first token, or ends after the last, and
    # that edge is a cut: at the true end of the context nothing is missing (white space stands in no token).
    if not len(touched):
        return None
    cut_before = touched[0] == 0 and spans[0, 0] > start and _goes_on(windows, w, -1)
    cut_after = touched[-1] == len(spans) - 1 and spans[-1, 1] < end and _goes_on(windows, w, 1)
    if cut_before or cut_after:
        return None
    return int(inside[touched[0]]), int(inside[touched[-1]])


def _goes_on(windows: Windows, w: int, step: int) -> bool:
    """Whether the context has another window before (-1) or after (1) this one."""
    other = w + step
    return 0 <= other < len(windows) and windows.questions[other] == windows.questions[w]


def _check_texts(questions: Sequence[str], contexts: Sequence[str], numbers: Sequence[int] | np.ndarray) -> None:
    for what, texts in (("question", questions), ("context", contexts)):
        for row, text in enumerate(texts):
            if is_empty(text):
                raise UserError(f"the {what} is empty", where=f"row {numbers[row]}", do="fill it in, or remove the row")


def _check_lengths(
    tokenizer: Tokenizer,
    questions: Sequence[str],
    max_length: int,
    shared: int,
    numbers: Sequence[int] | np.ndarray,
) -> None:
    """Every window must bring at least one token of the context that the one before did not have."""
    specials = len(tokenizer.encode_batch([""], [""], max_length=max(max_length, 8)).ids)
    lengths = np.diff(tokenizer.encode_plain(questions, words=False).offsets)
    room = max_length - specials - lengths
    longest = int(np.argmin(room)) if len(room) else 0
    if len(room) and room[longest] <= shared:
        raise UserError(
            f"the question is too long: it takes {lengths[longest]:,} of the window's {max_length} tokens",
            where=f"row {numbers[longest]}",
            why=f"'{printable(questions[longest], 60)}' leaves {max(0, int(room[longest]))} for the context, and "
            f"windows overlap by {shared}",
            do="shorten it, raise data.max_length, or lower data.stride",
        )
