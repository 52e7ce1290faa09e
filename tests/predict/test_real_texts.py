"""Latency over the texts of the data: which rows are timed, by whose lengths, and what the figures are."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compress.contracts import FixedLength, TextLengths, fixed_length_of
from compress.data.batches.evaluation_batches import bucketed_batches
from compress.data.tables.table import Rows
from compress.data.tasks import task_of
from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError
from compress.predict import real_texts
from compress.predict.real_texts import CHARACTERS, LEAST, TIMED, TextCalls, TextLatency, mean_of_calls, sample_texts
from evaluation.cost.latency import measure_interleaved

pytestmark = pytest.mark.usefixtures("as_many_texts_as_measured")
DATA: dict[str, Any] = {"data": "x/test", "digest": "0123456789abcdef", "max_length": 16}


@pytest.fixture
def as_many_texts_as_measured(monkeypatch: pytest.MonkeyPatch, few_rounds: None) -> None:
    """Other tests take few."""
    monkeypatch.setattr(real_texts, "TIMED", TIMED)


def rows_of(*texts: str, pairs: list[str] | None = None) -> Rows:
    columns = {"text": pa.chunked_array([pa.array(list(texts), pa.string())])}
    if pairs is not None:
        columns["text_pair"] = pa.chunked_array([pa.array(pairs, pa.string())])
    return Rows(columns, np.zeros(len(texts), dtype=np.int64), np.arange(1, len(texts) + 1))


def words(*counts: int) -> Rows:
    """Texts of so many words."""
    return rows_of(*(" ".join(["film"] * n) for n in counts))


def test_rows_are_chosen_at_evenly_spaced_quantiles_of_their_length() -> None:
    many = words(*np.random.default_rng(0).permutation(np.arange(1, 1001)).tolist())
    sample = sample_texts(many, **DATA)
    found = [len(text.split()) for text in sample.rows.texts]
    assert len(found) == TIMED
    assert found == sorted(found)
    assert np.mean(found) == pytest.approx(500.5, rel=0.01), "the mean of the sample is that of the data"
    assert np.allclose(np.diff(found), 1000 / TIMED, atol=1)
    assert [len(text.split()) for text in sample_texts(words(3, 1, 2), **DATA).rows.texts] == [1, 2, 3], "all of few"


def test_fewer_of_long_rows_are_timed() -> None:
    def count(words_each: int) -> int:
        return len(sample_texts(words(*[words_each] * 100), **DATA).rows)

    assert count(CHARACTERS // len("film ")) == TIMED
    assert count(2 * CHARACTERS // len("film ")) == TIMED // 2
    assert count(100 * CHARACTERS) == LEAST


def test_the_second_text_of_a_pair_counts() -> None:
    pairs = rows_of("a", "bbbb", "cc", pairs=["x" * 9, "", "x"])
    assert sample_texts(pairs, **DATA).rows.texts == ["cc", "bbbb", "a"]


def test_a_batch_has_texts_of_like_length() -> None:
    sample = sample_texts(words(*range(1, 101)), **DATA, batch=4)
    calls = [[len(text.split()) for text in rows.texts] for rows in sample.calls()]
    assert len(calls) == TIMED
    assert all(len(each) == 4 and max(each) - min(each) == 3 for each in calls)
    assert [len(rows) for rows in sample_texts(words(1, 2, 3), **DATA, batch=8).calls()] == [8] * 3, "rows repeat"


@pytest.mark.parametrize(("rows", "said"), [(rows_of(), "there are no rows"), (rows_of("", ""), "all texts are empty")])
def test_data_without_a_text_has_no_latency(rows: Rows, said: str) -> None:
    with pytest.raises(UserError) as error:
        sample_texts(rows, **DATA)
    assert error.value.line() == (
        f"x/test: {said}: their latency cannot be measured; use data with texts, or give a fixed number of tokens: "
        "--length 128"
    )
    assert error.value.code == 2


def test_a_condition_names_its_data_and_is_of_no_fixed_length() -> None:
    real, fixed = TextLengths(1, "sst2/test", "0123456789abcdef", 1821), FixedLength(2, 128)
    assert str(real) == "batch 1 x texts of sst2/test (1,821 rows, digest 01234567), tokenized"
    assert str(fixed) == "batch 2 x 128 tokens", "as runs of version 0.1 have it"
    assert (fixed_length_of(str(real)), fixed_length_of(str(fixed)), fixed_length_of("unknown")) == (None, 128, None)
    assert str(real) != str(dataclasses.replace(real, digest="fedcba9876543210"))


@pytest.fixture
def calls(toy_tokenizer_files: dict[str, bytes]) -> TextCalls:
    tokenizer = Tokenizer.from_files(toy_tokenizer_files)
    return TextCalls(sample_texts(words(3, 1, 30), **DATA), task_of("classification"), tokenizer, 12, "cpu")


def test_texts_are_read_as_the_model_reads_them(calls: TextCalls) -> None:
    assert calls.tokens.tolist() == [3, 5, 12], "with [CLS] and [SEP], and no more than the model reads"
    assert calls.sequences.tolist() == [1, 1, 1]
    assert calls.describe() == "mean 6.7, median 5, p95 11, 3 to 12"
    answered: list[int] = []
    parts = calls.parts(lambda batch: answered.append(len(batch.input_ids)))
    assert len(parts) == 6
    for part in parts:
        part()
    assert answered == [3, 5, 12]


def test_sequences_of_a_row_are_named_where_it_has_several(calls: TextCalls) -> None:
    calls.sequences = np.array([30, 30, 30])
    assert calls.describe().endswith("; 30.0 sequences a row")


def test_a_call_has_the_batches_that_its_model_answers_with(toy_tokenizer_files: dict[str, bytes]) -> None:
    """A file pads: of three rows together, the short ones would cost as much as the longest."""
    predictor: Any = SimpleNamespace(
        task=task_of("classification"), tokenizer=Tokenizer.from_files(toy_tokenizer_files), max_length=16,
        device="cpu", keep_texts=lambda examples, *_: examples,
        batches=lambda examples: bucketed_batches(examples, 64, call_tokens=1),
    )  # fmt: skip
    calls = TextCalls.of(sample_texts(words(1, 1, 12), **DATA, batch=3), predictor)
    assert [[batch.cu_seqlens.diff().tolist() for batch in each] for each in calls.batches] == [[[3, 3], [14]]] * 3
    assert calls.tokens.tolist() == [20] * 3
    assert calls.sequences.tolist() == [3] * 3


def test_figures_are_quantiles_over_texts_and_tokenization_is_part_of_them() -> None:
    found: Any = SimpleNamespace(parts=np.array([0.1, 1.0, 0.1, 2.0, 0.4, 6.0]))
    told = TextLatency.of(found)
    assert (told.mean, told.p50, told.tokenization) == pytest.approx((9.6 / 3, 2.1, 0.2))
    assert told.p95 == pytest.approx(2.1 + 0.9 * (6.4 - 2.1))


def test_a_part_of_a_call_has_its_own_median_and_the_call_their_sum() -> None:
    work = lambda count: lambda: sum(range(count))  # noqa: E731
    found = measure_interleaved([[work(2000), work(40_000)]], device="cpu", repeats=5)[0]
    assert found.parts.shape == (2,)
    assert found.parts[0] < found.parts[1]
    each = mean_of_calls(found, 2)
    assert (each.p50, each.minimum, each.repeats) == (found.p50 / 2, found.minimum / 2, found.repeats)
    assert np.allclose(each.times, found.times / 2)
