"""Common spans of two tokenizations: every piece in one, in order, as small as both allow."""

from __future__ import annotations

import foreign_tokenizers
import numpy as np
import pytest
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.contracts import Batch
from compress.data.batches.examples import encode_texts
from compress.data.batches.paired import PairedBatches, PairedRows, get_teacher_batch
from compress.data.batches.task_batches import TaskBatches
from compress.data.text.alignment import BETWEEN, END, FIRST, SECOND, START, Spans, TokenRows, align
from compress.data.text.tokenizer import EncodedRows, Tokenizer
from compress.errors import UserError

TEXTS = [f"the {a} was {b} and I {c} it" for a in ("film", "plot") for b in ("good", "bad") for c in ("liked", "left")]
FAMILIES = ("bert", "roberta", "albert", "xlm-roberta", "modernbert")
ROW = st.text(alphabet=st.sampled_from("abcfilmgod té日本 😀.,\u0301\n\u200b"), max_size=24) | st.sampled_from(TEXTS)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {family: Tokenizer(foreign_tokenizers.of_family(family, TEXTS)) for family in FAMILIES}


def encoded(tokenizer: Tokenizer, texts: list[str], pairs: list[str] | None = None, length: int = 64) -> EncodedRows:
    return tokenizer.encode_batch(texts, pairs, max_length=length, spans=True)


def aligned(first: Tokenizer, second: Tokenizer, texts: list[str], pairs: list[str] | None = None, length: int = 64):
    ours, theirs = (TokenRows.of([encoded(t, texts, pairs, length)]) for t in (first, second))
    return ours, theirs, align(ours, theirs)


def check(ours: TokenRows, theirs: TokenRows, spans: Spans) -> None:
    """Monotone, whole, and every span has pieces of both."""
    for pieces, numbers in ((ours, spans.first), (theirs, spans.second)):
        assert len(numbers) == len(pieces.parts)
        for row, (start, end) in enumerate(zip(pieces.offsets[:-1], pieces.offsets[1:], strict=True)):
            own = numbers[start:end]
            assert own[0] == 0
            assert own[-1] == spans.counts[row] - 1
            assert set(np.diff(own)) <= {0, 1}


def reference(ours: TokenRows, theirs: TokenRows, row: int) -> list[tuple[int, int]]:
    """Spans of a row as (pieces of ours, pieces of theirs), found by walking along both; touching characters only."""

    def cuts(pieces: TokenRows) -> list[tuple[int, tuple[int, int], tuple[int, int]]]:
        start, end = pieces.offsets[row], pieces.offsets[row + 1]
        marks = [(int(p), int(a), int(b)) for p, (a, b) in zip(pieces.parts[start:end], pieces.spans[start:end])]
        found = []
        for i in range(1, len(marks)):
            low = max((p, b) for p, _, b in marks[:i])
            high = min((p, a) for p, a, _ in marks[i:])
            if marks[i - 1][0] != marks[i][0]:
                low, high = (marks[i - 1][0], 10**6), (marks[i][0], -1)
            if low <= high:
                found.append((i, low, high))
        return found

    mine, other, joint, j = cuts(ours), cuts(theirs), [(0, 0)], 0
    for i, low, high in mine:
        while j < len(other) and other[j][2] < low:
            j += 1
        if j < len(other) and other[j][1] <= high:
            joint.append((i, other[j][0]))
            j += 1
    return joint


@settings(max_examples=scaled(150), deadline=None)
@given(st.sampled_from(FAMILIES), st.sampled_from(FAMILIES), st.lists(ROW, min_size=1, max_size=4), st.booleans())
def test_spans_cover_both_sides_in_order(tokenizers, first: str, second: str, texts: list[str], paired: bool) -> None:
    ours, theirs, spans = aligned(tokenizers[first], tokenizers[second], texts, texts[::-1] if paired else None)
    check(ours, theirs, spans)
    if first == second:
        assert (np.diff(ours.offsets) == spans.counts).all()
        assert (spans.first == spans.second).all()
    for pieces, numbers in ((ours, spans.first), (theirs, spans.second)):
        start = pieces.offsets[:-1]
        assert (pieces.parts[start] == START).all()
        alone = start + 1  # what follows [CLS] is in another span
        assert (numbers[alone] == 1).all()


@settings(max_examples=scaled(150), deadline=None)
@given(st.sampled_from(FAMILIES[:3]), st.sampled_from(FAMILIES[3:]), st.lists(ROW, min_size=1, max_size=4))
def test_no_smaller_spans_are_possible(tokenizers, first: str, second: str, texts: list[str]) -> None:
    ours, theirs, spans = aligned(tokenizers[first], tokenizers[second], texts)
    for row in range(len(texts)):
        own = [
            np.flatnonzero(np.diff(numbers[side.offsets[row] : side.offsets[row + 1]], prepend=-1)).tolist()
            for side, numbers in ((ours, spans.first), (theirs, spans.second))
        ]
        assert len(own[0]) >= len(reference(ours, theirs, row))


def test_words_meet_and_spaces_belong_to_either_side(tokenizers: dict[str, Tokenizer]) -> None:
    ours, theirs, spans = aligned(tokenizers["bert"], tokenizers["roberta"], ["the film was good"])
    ends = [int(ours.spans[spans.first == n].max()) for n in range(int(spans.counts[0]))]
    assert {3, 8, 12, 17} <= set(ends)
    assert [int(ours.parts[0]), int(ours.parts[-1])] == [START, END]
    assert [int(theirs.parts[0]), int(theirs.parts[-1])] == [START, END]


def test_two_separators_are_one_span_beside_one(tokenizers: dict[str, Tokenizer]) -> None:
    ours, theirs, spans = aligned(tokenizers["bert"], tokenizers["roberta"], ["the film"], ["was good"])
    assert set(ours.parts.tolist()) == {START, FIRST, BETWEEN, SECOND, END}
    numbers = spans.first[ours.parts == BETWEEN]
    assert len(numbers) == 1
    assert spans.second[theirs.parts == BETWEEN].tolist() == [numbers[0], numbers[0]]
    assert (spans.first == numbers[0]).sum() == 1
    assert (spans.second == numbers[0]).sum() == 2


def test_the_rest_of_a_row_that_one_cut_shorter_is_in_the_last_span_of_its_text(tokenizers) -> None:
    ours, theirs, spans = aligned(tokenizers["bert"], tokenizers["roberta"], [" ".join(TEXTS)], length=12)
    check(ours, theirs, spans)
    last = spans.counts[0] - 1
    assert spans.first[-1] == spans.second[-1] == last
    assert (spans.first == last).sum() == (spans.second == last).sum() == 1  # [SEP] is compared with [SEP]


def source(tokenizers: dict[str, Tokenizer], first: str, second: str) -> PairedBatches:
    student, teacher = (encode_texts(tokenizers[name], TEXTS, max_length=32) for name in (first, second))
    spans = align(*(TokenRows.of([encoded(tokenizers[name], TEXTS, length=32)]) for name in (first, second)))
    return PairedBatches(TaskBatches(student, 4, 60, 3), PairedRows(student, teacher, spans))


def told(batch: Batch) -> list[list[int]]:
    return [batch.input_ids.tolist(), batch.row_ids.tolist(), get_teacher_batch(batch).batch.input_ids.tolist()]


def test_batches_are_a_function_of_epoch_and_step_and_carry_the_same_rows(tokenizers) -> None:
    one, other = (source(tokenizers, "bert", "roberta") for _ in range(2))
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint != source(tokenizers, "bert", "albert").fingerprint
    list(one.step(0, 0))
    for batch, again in zip(one.step(1, 1), other.step(1, 1), strict=True):
        assert told(batch) == told(again)
        made = get_teacher_batch(batch)
        assert made.spans is not None
        assert made.batch.row_ids.tolist() == batch.row_ids.tolist()
        view = made.spans.batch(batch)
        assert view.tokens == int(view.cu_seqlens[-1]) == len(made.spans.begins)
        assert view.rows == batch.rows
        assert int(view.cu_seqlens.diff().max()) == view.max_length
        for numbers, part in ((made.spans.ours, batch), (made.spans.theirs, made.batch)):
            firsts = numbers[part.cu_seqlens[:-1]]
            assert firsts.tolist() == view.cu_seqlens[:-1].tolist()
            assert numbers[part.cu_seqlens[1:] - 1].tolist() == (view.cu_seqlens[1:] - 1).tolist()


def test_processes_share_the_steps(tokenizers: dict[str, Tokenizer]) -> None:
    whole = source(tokenizers, "bert", "roberta")
    rows = sorted(r for b in whole.step(0, 0) for r in b.row_ids.tolist())
    parts = [whole.shard(rank, 2) for rank in range(2)]
    assert {p.fingerprint for p in parts} == {whole.fingerprint}
    assert sorted(r for p in parts for b in p.step(0, 0) for r in b.row_ids.tolist()) == rows


def test_rows_that_are_not_the_same_are_refused(tokenizers: dict[str, Tokenizer]) -> None:
    student, teacher = (encode_texts(tokenizers["bert"], TEXTS[:n], max_length=32) for n in (2, 3))
    with pytest.raises(UserError, match="split these texts into different rows"):
        PairedRows(student, teacher)
