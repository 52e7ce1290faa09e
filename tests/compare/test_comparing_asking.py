"""Names that a person types about rows: filters, order, columns; and what stands in cells."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import Any

import pytest
from compare_rows import row

from compress.compare.frontier import rank_rows, require_like
from compress.compare.gather import one_row_each
from compress.compare.query import check_key, filter_rows, ordered
from compress.compare.rows import Row, drop_busy_speeds
from compress.compare.table import as_csv, cells, columns, document, fitting, heads, quality_cell
from compress.contracts import TextLengths
from compress.errors import UserError
from compress.tracking.reading import StoredRun

A = row("a", 180, 40.0, 8.0)
B = row("b", 176, 10.0, 4.0, facts={"method": "quantize"})
C = row("c", None, 20.0, None)
ROWS = [A, B, C]


def names(rows) -> list[str]:
    return [r.name for r in rows]


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        (["size/disk_mb<20"], "b"),
        (["size/disk_mb <= 20"], "bc"),
        (["quality>0.89"], "a"),
        (["method=quantize"], "b"),
        (["method != quantize", "size/disk_mb>=40"], "a"),
        (["student.layers==3.0"], "abc"),
        (["name=c"], "c"),
        ([], "abc"),
    ],
)
def test_filters(filters, left) -> None:
    assert names(filter_rows(ROWS, filters)) == list(left)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("size", "--filter 'size': not a valid filter; write KEY<NUMBER, KEY>=NUMBER, KEY=TEXT or KEY!=TEXT"),
        ("size/disk_mg<3", "--filter 'size/disk_mg<3': no row has a 'size/disk_mg'; did you mean 'size/disk_mb'?"),
        ("disk_mb<3", "--filter 'disk_mb<3': no row has a 'disk_mb'; did you mean 'size/disk_mb'?"),
        ("method<3", "--filter 'method<3': < and > only compare numbers: found 'distill'; write = or !="),
        (
            "size/disk_mb<x",
            "--filter 'size/disk_mb<x': < and > only compare numbers: 'x' is not a number; write = or !=",
        ),
        ("size/disk_mb<1", "--filter: none of the 3 rows matches; remove a filter"),
    ],
)
def test_bad_filters(text, line) -> None:
    with pytest.raises(UserError) as caught:
        filter_rows(ROWS, [text])
    assert caught.value.line() == line


@pytest.mark.parametrize(
    ("key", "order"),
    [
        ("quality", "abc"), ("size/disk_mb", "bca"), ("-size/disk_mb", "acb"), ("speed/latency_p50_ms", "bac"),
        ("name", "abc"), ("-name", "cba"), ("method", "acb"), ("student.layers", "abc"),
    ],
)  # fmt: skip
def test_the_best_comes_first_and_what_lacks_the_figure_last(key, order) -> None:
    assert names(ordered(ROWS, key)) == list(order)


def test_an_unknown_column_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"--columns: no row has a 'metod'; did you mean 'method'\?"):
        check_key("metod", ROWS, "--columns")


def test_cells_and_what_is_missing() -> None:
    judged, notes = rank_rows(ROWS)
    keys = columns(ROWS, [])
    assert keys == ["pareto", "name", "quality", "size/disk_mb", "speed/latency_p50_ms"]
    assert heads(keys, ROWS) == ["Pareto", "model", "accuracy", "MB", "p50, ms"]
    assert cells(judged[2], keys) == ["—", "c", "—", "20.00", "—"]
    assert cells(judged[1], keys)[:2] == ["yes", "b"]
    assert "1 row with missing values, shown as —: c (quality, latency)" in notes


def test_a_metric_of_a_task_of_ones_own_keeps_its_interval() -> None:
    values = {"quality/kappa": 0.6, "quality/kappa_low": 0.5, "quality/kappa_high": 0.7}
    assert quality_cell(row("a", None, values=values, context={"metric": "kappa"})) == "0.600 [0.500, 0.700]"


def test_a_dominated_row_says_by_which_and_json_how() -> None:
    worse, better = row("worse", 160, 40.0, 8.0), row("better", 180, 10.0, 4.0)
    judged, _ = rank_rows([worse, better])
    assert cells(judged[0], ["pareto", "name"]) == ["no: better", "worse"]
    first, second = document(judged, [])["rows"]
    assert (first["frontier"], first["by"], first["paired"]) == ("dominated", "better", True)
    assert (second["frontier"], second["by"], second["paired"]) == ("on it", None, None)


def test_notes_name_the_metric_as_the_table_does() -> None:
    searched = row("b", context={"metric": "ndcg_at_10"}, values={"quality/ndcg_at_10": 0.9})
    assert "quality: nDCG@10 on 200 rows of opinions/test" in rank_rows([searched])[1]
    told = "1 row: accuracy on 200 rows of opinions/test; 1 row: nDCG@10 on 200 rows of opinions/test"
    assert any(line.endswith(f"so it is not ranked: {told}") for line in rank_rows([row("a"), searched])[1])


def test_rows_without_resamples_are_compared_by_unpaired_intervals_and_said() -> None:
    judged, notes = rank_rows([row("worse", 178, 40.0, 8.0, paired=False), row("better", 180, 10.0, 4.0)])
    assert (judged[0].place, judged[0].by) == ("undecided", "better")
    assert cells(judged[0], ["pareto"]) == ["maybe: better"]
    assert any(line.startswith("1 row compared with some others by unpaired intervals") for line in notes)


def test_six_digits_of_the_store_are_the_same_quality() -> None:
    whole = row("measured", 177, 10.0, 4.0)
    stored = row("stored", 177, 10.0, 4.0)
    values = {**stored.values, "quality/accuracy": stored.values["quality/accuracy"] - 1e-7}
    judged, _ = rank_rows([whole, replace(stored, values=values)])
    assert [j.place for j in judged] == ["on it", "on it"]


def test_csv_has_numbers_and_nothing_that_a_spreadsheet_computes() -> None:
    judged, _ = rank_rows([row("=1+1", 180), C])
    first, second = csv.DictReader(io.StringIO(as_csv(judged, ["pareto", "name", "quality", "size/disk_mb"])))
    assert first["name"] == "'=1+1"
    assert float(first["quality"]) == 0.9
    assert float(first["quality_low"]) < 0.9 < float(first["quality_high"])
    assert (second["quality"], second["size/disk_mb"], second["pareto"]) == ("", "20.0", "not ranked")


def test_latencies_of_unlike_conditions_are_refused_and_never_ranked() -> None:
    here, there = row("here", 160, 40.0, 8.0), row("there", 190, 10.0, 4.0, context={"threads": "4"})
    require_like([here, C])
    with pytest.raises(UserError) as caught:
        require_like([here, there, here])
    assert caught.value.code == 3
    assert caught.value.line() == (
        "latencies were measured under 2 different conditions (threads): 2 rows with 1; 1 row with 4; choose with "
        "--filter 'threads=1', measure again in one run, or show them with --mixed-conditions"
    )
    judged, notes = rank_rows([here, there])
    assert [j.place for j in judged] == ["on it", "on it"]
    assert "latencies were measured under 2 different conditions and are not ranked against each other" in notes


def test_latencies_of_other_data_may_be_measured_under_other_conditions() -> None:
    other = {"dataset": "reviews/test", "dataset_digest": "1" * 64, "threads": "4"}
    rows = [row("here", 160, 40.0, 8.0), row("there", 190, 10.0, 4.0, context=other)]
    require_like(rows)
    assert [j.place for j in rank_rows(rows)[0]] == ["on it", "on it"]
    with pytest.raises(UserError, match="2 different conditions"):
        require_like([*rows, row("again", 190, 10.0, 4.0, context=other | {"threads": "2"})])


def test_latencies_of_texts_and_of_a_fixed_length_are_refused_with_the_way_out() -> None:
    run: Any = object()
    stored = replace(row("stored", 160, 40.0, 8.0), run=run)
    texts = {"latency_shape": str(TextLengths(1, "sst2/test", "0" * 64, 1821))}
    now = row("now", 190, 10.0, 4.0, context=texts)
    with pytest.raises(UserError) as caught:
        require_like([stored, now])
    assert "under 2 different conditions (length or texts)" in caught.value.line()
    assert "measure the models with --length 128, or show them with --mixed-conditions" in caught.value.line()
    both = [row("x", 1, 1.0, 1.0, context=texts), row("y", 1, 1.0, 1.0, context=texts)]
    require_like(both)
    assert "batch 1 x texts of sst2/test (1,821 rows, digest 00000000), tokenized" in "".join(rank_rows(both)[1])


def test_latencies_in_other_precisions_are_refused() -> None:
    fp32, bf16 = ({"serving_precision": found} for found in ("fp32", "bf16"))
    old, integers = row("old", context={"precision": "fp32"}), row("integers", context={"precision": "int8"} | fp32)
    require_like([old, integers, row("new", context=fp32), row("older")])
    said = r"\(serving_precision\): 1 row with fp32; 1 row with bf16; .*'serving_precision=fp32'"
    with pytest.raises(UserError, match=said):
        require_like([old, row("gpu", context=bf16)])
    half = row("half", context={"precision": "bf16"})  # of a version that recorded nothing else
    assert filter_rows([old, half], ["serving_precision=fp32"]) == [old]


def test_quality_on_other_data_is_not_ranked() -> None:
    judged, notes = rank_rows([row("x", 100, 40.0), row("y", 190, 10.0, context={"dataset_digest": "other"})])
    assert [j.place for j in judged] == ["on it", "on it"]
    assert any("different data or with different metrics" in line for line in notes)


def test_simulated_integers_have_no_latency_and_say_so() -> None:
    values = {"fake_quantized/accuracy": 0.9, "fake_quantized/accuracy_low": 0.88, "fake_quantized/accuracy_high": 0.92}
    simulated = row("int8", None, 5.0, None, values=values)
    judged, notes = rank_rows([simulated, row("float", 170, 20.0)])
    assert cells(judged[0], ["quality"]) == ["90.00 % [88.00, 92.00] (simulated)"]
    assert [j.place for j in judged] == ["on it", "on it"]
    assert "simulated quantization, so latency is unknown and the row is not ranked: int8" in notes


INT8 = {"runtime": "onnxruntime 1.31.1"}


def test_the_runtime_is_part_of_the_model() -> None:
    """It does not keep latencies from being compared, and is a column where models differ in it."""
    float_, int8 = row("float", 180, 40.0, 8.0), row("int8", 180, 10.0, 4.0, context=INT8)
    require_like([float_, int8])
    judged, notes = rank_rows([float_, int8])
    assert cells(judged[0], ["pareto", "runtime"]) == ["no: int8", "torch"]
    assert columns([float_, int8], [])[-1] == "runtime"
    assert "runtime" not in columns([float_, float_], [])
    assert "latency: a processor, 1 thread, batch 1 x 128 tokens, floats in fp32, onnxruntime or torch" in notes


def test_speeds_of_a_busy_machine_are_unknown() -> None:
    """Earlier versions logged them."""
    values = {"speed/latency_p50_ms": 0.1, "vs_teacher/speedup": 34.0, "size/disk_mb": 3.0, "speed/gflops": 1.0}
    assert drop_busy_speeds(values, {"contaminated": "no"}) == values
    assert drop_busy_speeds(values, {"contaminated": "yes"}) == {"size/disk_mb": 3.0, "speed/gflops": 1.0}
    judged, notes = rank_rows(
        [row("fast", 180, 10.0, None, context={"contaminated": "yes"}), row("slow", 180, 10.0, 9.0)]
    )
    assert [j.place for j in judged] == ["on it", "on it"]
    assert "1 row timed on a busy machine, so without a latency: fast" in notes


def test_speeds_by_processor_time_are_named() -> None:
    _, notes = rank_rows([row("fast", context={"clock": "processor time"}), row("slow", context={"clock": "wall"})])
    said = "1 row timed on a busy machine, by processor time, what a call takes when alone: fast"
    assert [note for note in notes if "processor time" in note] == [said]


def test_figures_against_the_models_of_several_runs_are_named_as_such() -> None:
    """A quantized student's run compares it with the student; the student's, with its teacher."""

    def made(name: str, beside: str | None) -> Row:
        run = StoredRun(name, name, "compress", 0, "")
        values = {"vs_teacher/speedup": 2.0, "vs_teacher/accuracy_difference": 0.0}
        return replace(row(name, values=values), run=run, beside=beside)

    said = "against reference, faster: each row against the teacher or parent that its own run measured"
    assert said in rank_rows([made("student", None), made("int8", None)])[1]
    assert said in rank_rows([made("student", "teacher"), made("int8", "student")])[1]
    assert said not in rank_rows([made("one", "teacher"), made("other", "teacher")])[1]
    assert said not in rank_rows([made("student", None), row("measured now")])[1]


def test_rows_of_other_data_are_marked() -> None:
    rows = [row("x", 100, 40.0), row("y", 190, 10.0, context={"dataset_digest": "other", "dataset": "mine/test"})]
    assert columns(rows, [])[-1] == "data"
    judged, _ = rank_rows(rows)
    assert [cells(j, ["data"]) for j in judged] == [["opinions/test, 200 rows"], ["mine/test, 200 rows"]]


def test_a_model_is_one_row() -> None:
    teacher = {"role": "teacher"}
    of: Any = {"facts": {"fingerprint": "1"}}
    rows = [
        row("now", facts={"fingerprint": "1"}), row("run", **of), row("again", 170, **of),
        row("other data", **of, context={"dataset_digest": "else"}), row("other"), row("same figures"),
        row("old teacher", facts=teacher), row("the same", facts=teacher), row("another", 170, facts=teacher),
    ]  # fmt: skip
    rows[1:] = [replace(r, run=StoredRun(r.name, r.name, "e", 0, "")) for r in rows[1:]]
    also = row("named too", facts={"fingerprint": "1"})
    found, notes = one_row_each([*rows, also])
    assert found.pop() is also, "models that were measured now were named"
    assert [r.name for r in found] == ["now", "other data", "other", "same figures", "old teacher", "another"]
    assert notes == ["not shown: 3 more measurements of the same models"]
    assert one_row_each(rows[:1]) == (rows[:1], [])


def test_a_narrow_terminal_has_fewer_columns() -> None:
    rows = [row("a", values={"size/params_m": 1.0, "vs_teacher/speedup": 2.0}), row("b", 170, context=INT8)]
    judged, _ = rank_rows(rows)
    every = columns(rows, [])
    assert fitting(judged, every, 1000) == every
    assert fitting(judged, every, 74) == [
        "pareto",
        "name",
        "quality",
        "size/disk_mb",
        "speed/latency_p50_ms",
        "vs_teacher/speedup",
    ]
    assert fitting(judged, every, 1) == ["pareto", "name", "quality", "size/disk_mb", "speed/latency_p50_ms"]
