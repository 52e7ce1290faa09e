"""Questions and contexts: answers checked, windows that cover every token, answers found again across windows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.data.batches.ragged import Ragged, bounds_of
from compress.data.reading.frame import Frame
from compress.data.tables.answer_spans import decode_spans
from compress.data.tables.answers import MISPLACED, extract_answer_texts, gather_cells, mismatch, read_answers
from compress.data.tables.table import UNLABELLED
from compress.data.text.passages import CLS, encode_windows, gold_positions, overlap
from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError

WORDS = "the river runs north past Rollo's old mill and then, slowly, into the sea at Fécamp 1,066 times"
QUESTION = "who ran?"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([WORDS, QUESTION, WORDS.upper()] * 3, vocabulary_size=120, min_frequency=1)


def spans(*rows: list[tuple[int, int]]) -> Ragged:
    flat = [span for row in rows for span in row]
    return Ragged(np.array(flat, dtype=np.int64).reshape(-1, 2), bounds_of([len(row) for row in rows]))


def said(answers: Ragged) -> list[list[tuple[int, int]]]:
    return [[tuple(span) for span in answers.row(i).tolist()] for i in range(len(answers))]


# --- answers ------------------------------------------------------------------------------------------------------

CONTEXT = "Rollo met Rollo in Fécamp."


@pytest.mark.parametrize(
    "columns",
    [
        {"answers": [{"text": ["Rollo"], "answer_start": [10]}]},
        {"answers": [[{"text": "Rollo", "answer_start": 10}]]},
        {"answers": [["Rollo"]], "answer_starts": [[10]]},
        {"answers": ["Rollo"], "Answer_Start": [10]},
    ],
)
def test_every_way_of_writing_answers_is_read_alike(columns):
    columns = columns | {"context": [CONTEXT]}
    for made in (columns, {name: pa.chunked_array([pa.array(column)]) for name, column in columns.items()}):
        found = read_answers(gather_cells(Frame(made, 1), "answers", "context"), "set")
        assert (said(found.spans), found.bad) == ([[(10, 15)]], {})
        assert extract_answer_texts(found.spans, [CONTEXT]) == [["Rollo"]]


def read(*answers):
    return read_answers([(value, None, CONTEXT) for value in answers], "set")


def test_no_answer_and_an_unknown_answer_are_two_things():
    found = read({"text": [], "answer_start": []}, None)
    assert said(found.spans) == [[], [(UNLABELLED, UNLABELLED)]]


@pytest.mark.parametrize(
    ("text", "start", "told"),
    [
        ("Rollo", 11, "'Rollo' is not at character 11: the context has 'ollo ' there; it starts at 10"),
        ("Rollo", 1, "'Rollo' is not at character 1: the context has 'ollo ' there; it starts at 0"),
        ("Rolf", 0, "'Rolf' is not at character 0: the context has 'Roll' there, and the answer does not occur in it"),
        ("Rollo", 99, "'Rollo' is not at character 99: the context has 26 characters; it starts at 10"),
        ("Rollo", -1, "'Rollo' is not at character -1: the context has 26 characters; it starts at 0"),
        (".", 26, "it starts at 25, and 26 is its offset in UTF-8 bytes: count characters"),
        ("", 0, "the answer is empty (for a question without an answer, write an empty list)"),
        (7, 0, "the answer is int, not text"),
        ("Rollo", None, "the offset of 'Rollo' is missing, not a whole number"),
        ("Rollo", 1.0, "the offset of 'Rollo' is '1.0', not a whole number"),
    ],
)
def test_an_answer_that_is_not_there_is_told(text, start, told):
    assert told in (mismatch(text, start, CONTEXT) or "")


def test_rows_of_another_shape_are_told():
    found = read({"text": ["a", "b"], "answer_start": [0]}, {"answer_start": [0]})
    assert found.bad == {0: "2 answers and 1 offset", 1: "the answers have no key 'text', found: answer_start"}
    assert said(found.spans) == [[(MISPLACED, MISPLACED)]] * 2


def test_answers_without_offsets_are_refused():
    with pytest.raises(UserError, match="set: the answers have no offsets: row 1 has 'Rollo' without one"):
        read(["Rollo"])


# --- windows ------------------------------------------------------------------------------------------------------


@settings(max_examples=scaled(60), deadline=None)
@given(
    words=st.lists(st.sampled_from([*WORDS.split(), "Ωmega", "…"]), min_size=1, max_size=40),
    max_length=st.integers(14, 40),
    stride=st.integers(0, 5),
    data=st.data(),
)
def test_windows_cover_the_context_and_find_the_answer_again(words, max_length, stride, data):
    tokenizer = _toy()
    context = " ".join(words)
    windows = encode_windows(tokenizer, [QUESTION], [context], max_length=max_length, stride=stride)
    whole = encode_windows(tokenizer, [QUESTION], [context], max_length=500, stride=0)
    pieces = [tuple(span) for span in whole.spans[whole.context].tolist()]
    seen: list[tuple[int, int]] = []
    for w in range(len(windows)):
        part = slice(windows.offsets[w], windows.offsets[w + 1])
        inside = windows.context[part]
        here = [tuple(span) for span in windows.spans[part][inside].tolist()]
        assert len(inside) <= max_length
        assert windows.ids[part][CLS] == tokenizer.cls_id
        assert set(windows.segments[part][inside].tolist()) == {1}
        assert pieces[len(seen) - min(stride, len(seen)) :][: len(here)] == here, "shared tokens, then new ones"
        seen += here[min(stride, len(seen)) :]
    assert seen == pieces
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, min(first + 2, len(words) - 1)))
    start = len(" ".join(words[:first])) + (first > 0)
    end = start + len(" ".join(words[first : last + 1]))
    gold = gold_positions(windows, spans([(start, end)]))
    if (gold == UNLABELLED).any():
        assert (gold == UNLABELLED).all()
        assert len(windows) > 1, "only a cut can tear an answer"
        return
    holding = np.flatnonzero(gold[:, 0] != CLS)
    assert len(holding)
    logits = np.zeros((len(windows.ids), 2), dtype=np.float32)
    for w in holding:
        logits[windows.offsets[w] + gold[w, 0], 0] = logits[windows.offsets[w] + gold[w, 1], 1] = 9.0
    (reply,) = decode_spans(windows, logits, [context])
    assert (reply.chosen.text, reply.chosen.start, reply.chosen.end) == (context[start:end], start, end)


_TOY: list[Tokenizer] = []


def _toy() -> Tokenizer:
    if not _TOY:
        _TOY.append(Tokenizer.train([WORDS, QUESTION] * 3, vocabulary_size=120, min_frequency=1))
    return _TOY[0]


def test_an_answer_that_no_window_holds_teaches_nothing(tokenizer):
    windows = encode_windows(tokenizer, [QUESTION], [WORDS], max_length=16, stride=0)
    assert (gold_positions(windows, spans([(0, len(WORDS))])) == UNLABELLED).all()
    assert (gold_positions(windows, spans([])) == CLS).all()
    assert (gold_positions(windows, spans([(UNLABELLED, UNLABELLED)])) == UNLABELLED).all()


def test_the_overlap_is_a_third_where_nothing_is_said():
    assert overlap(None, 384) == 128
    assert overlap(0, 16) == 0


@pytest.mark.parametrize(
    ("question", "context", "options", "told"),
    [
        (" ", WORDS, {}, "row 7: the question is empty; fill it in, or remove the row"),
        (QUESTION, "\n", {}, "row 7: the context is empty; fill it in, or remove the row"),
        (
            WORDS,
            WORDS,
            {},
            "leaves 0 for the context, and windows overlap by 5; shorten it, raise data.max_length, or lower",
        ),
        (
            QUESTION,
            WORDS,
            {"stride": 16},
            "data.stride: a stride of 16 tokens is not possible for windows of 16: neighbouring windows overlap by the "
            "stride, and a window has room for fewer tokens; give less than 13, e.g. 5",
        ),
        (QUESTION, WORDS, {"stride": -1}, "data.stride: a stride of -1 tokens is not possible for windows of 16"),
        (QUESTION, WORDS, {"stride": 12}, "for the context, and windows overlap by 12; shorten it"),
    ],
)
def test_what_fits_no_window_is_refused(tokenizer, question, context, options, told):
    with pytest.raises(UserError) as error:
        encode_windows(tokenizer, [question], [context], max_length=16, numbers=[7], **options)
    assert told in error.value.line()


# --- decoding -----------------------------------------------------------------------------------------------------


def _scored(windows, *scores: tuple[int, int, float, float]) -> np.ndarray:
    """Logits of zero but for (window, token, start, end)."""
    logits = np.zeros((len(windows.ids), 2), dtype=np.float32)
    for w, token, start, end in scores:
        logits[windows.offsets[w] + token] = start, end
    return logits


def test_only_spans_of_the_context_that_run_forward_and_are_short_enough_compete(tokenizer):
    windows = encode_windows(tokenizer, [QUESTION], [WORDS], max_length=60)
    inside = np.flatnonzero(windows.context)
    a, b, c = inside[0], inside[2], inside[12]
    scores = [(0, 1, 99, 99), (0, b, 9, 0), (0, a, 0, 9), (0, c, 0, 5)]  # the question's; backward; too long
    (reply,) = decode_spans(windows, _scored(windows, *scores), [WORDS], most_tokens=5)
    assert reply.chosen.end - reply.chosen.start < 30
    assert all(span.logit <= 9 for span in reply.best)
    (longer,) = decode_spans(windows, _scored(windows, *scores), [WORDS], most_tokens=12)
    assert longer.chosen.logit == 14
    assert (longer.chosen.start, longer.chosen.end) == (windows.spans[b, 0], windows.spans[c, 1])
    assert sum(span.score for span in longer.best) == pytest.approx(1.0)
    assert [s.logit for s in longer.best] == sorted((s.logit for s in longer.best), reverse=True)
    assert len(longer.best) == 20


def test_the_best_span_is_sought_among_all_pairs(tokenizer):
    windows = encode_windows(tokenizer, [QUESTION], [WORDS], max_length=60)
    logits = np.random.default_rng(0).normal(size=(len(windows.ids), 2)).astype(np.float32)
    inside = np.flatnonzero(windows.context)
    pairs = [(logits[i, 0] + logits[j, 1], i, j) for i in inside for j in inside if i <= j < i + 6]
    top, i, j = max(pairs)
    (reply,) = decode_spans(windows, logits, [WORDS], most_tokens=6)
    assert reply.chosen.logit == pytest.approx(float(top), rel=1e-6)
    assert (reply.chosen.start, reply.chosen.end) == (windows.spans[i, 0], windows.spans[j, 1])


def test_no_answer_is_what_the_least_sure_window_says_of_it(tokenizer):
    windows = encode_windows(tokenizer, [QUESTION], [WORDS], max_length=20, stride=2)
    assert len(windows) > 1
    quiet = _scored(windows, *((w, CLS, 3, 3) for w in range(len(windows))))
    (reply,) = decode_spans(windows, quiet, [WORDS], no_answer=True)
    assert (reply.chosen.text, reply.chosen.start, reply.chosen.end, reply.chosen.logit) == ("", 0, 0, 6)
    (high,) = decode_spans(windows, quiet, [WORDS], no_answer=True, threshold=6.0)
    assert high.chosen.text
    (never,) = decode_spans(windows, quiet, [WORDS])
    assert never.chosen.text
    assert all(span.text for span in never.best)
    sure = quiet.copy()
    sure[windows.offsets[1]] = -3  # one window holds the answer and says so
    (found,) = decode_spans(windows, sure, [WORDS], no_answer=True)
    assert found.chosen.text
    assert json.dumps(found.as_json())
    assert set(found.as_json()) == {"answer", "score", "start", "end", "n_best"}


def test_a_span_seen_by_two_windows_counts_once(tokenizer):
    windows = encode_windows(tokenizer, [QUESTION], [WORDS], max_length=20, stride=8)
    (reply,) = decode_spans(windows, _scored(windows), [WORDS], best=1000)
    places = [(s.start, s.end) for s in reply.best]
    assert len(places) == len(set(places))


def test_scores_that_are_not_numbers_are_refused(tokenizer):
    windows = encode_windows(tokenizer, [QUESTION] * 2, [WORDS] * 2, max_length=60)
    with pytest.raises(UserError, match="row 2: the model's output contains NaN or infinity; check its weights"):
        decode_spans(windows, _scored(windows, (1, 3, float("nan"), 0)), [WORDS] * 2)
    with pytest.raises(UserError, match="the model's outputs do not match the windows"):
        decode_spans(windows, np.zeros((3, 2)), [WORDS] * 2)


# --- real sets ----------------------------------------------------------------------------------------------------

DATA = Path(os.environ.get("COMPRESS_DATA", "/nowhere"))


@pytest.mark.parametrize("name", ["squad_xquad_en", "policyqa", "cmrc2018_zh"])
def test_answers_of_real_sets_are_all_where_they_say(name):
    path = DATA / name / "validation.jsonl"
    if not path.is_file():
        pytest.skip("COMPRESS_DATA has no such set")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    contexts = [row["context"] for row in rows]
    found = read_answers([(r["answers"], r["answer_starts"], r["context"]) for r in rows], name)
    assert found.bad == {}
    assert extract_answer_texts(found.spans, contexts) == [row["answers"] for row in rows]
