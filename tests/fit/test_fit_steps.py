"""The steps of a fit with everything heavy replaced: which runtime serves, plans until time is up, what is printed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compress.console import Console
from compress.contracts import RunOptions
from compress.data.tables.table import Rows, Table
from compress.data.tasks import task_of
from compress.errors import ExitCode, Stopped, UserError
from compress.fit import report
from compress.fit.certificate import document as certificate
from compress.fit.certificate import verify
from compress.fit.make import candidates as making
from compress.fit.make.candidates import PLANS, Candidates
from compress.fit.make.evaluator import RECORD, Evaluation, Timing
from compress.fit.plan import forecast
from compress.fit.plan.plans import Plan
from compress.fit.request import clock as clocks
from compress.fit.request import setup, unlabelled
from compress.fit.request.bounds import Bounds
from compress.fit.request.case import LOSS_WORDS
from compress.fit.request.clock import Clock
from compress.fit.request.options import FitOptions
from compress.fit.train.in_loop import InTheLoop
from compress.fit.train.trainer import OutOfTime
from compress.recipe.schema import DataSpec
from compress.stages.shared.divergence import OF_VECTORS
from compress.storage.signals import StopFlag
from evaluation.cost.latency import Latency


def latency(p50: float, cpu_share: float = 1.0) -> Latency:
    return Latency(p50, 1.2 * p50, 1.3 * p50, 0.95 * p50, 50, cpu_share, 0.02)


def plan(name: str, ms: float = 4.0, bits: int = 8) -> Plan:
    return Plan((0,), (1,), (1,), (bits,), (bits,), name, 10, bits, 0, ms, 9.0, 0.5)


def judged(name: str, ms: float = 4.0, value: float = 0.9, mb: float = 9.0, bits: int = 8) -> Evaluation:
    lost = 100 * (0.9 - value)
    timing = Timing.of(latency(ms), latency(12.0))
    return Evaluation(
        name, plan(name, ms, bits), Path(f"plans/{name}"), mb, timing, value, lost, lost - 1, lost + 1, 0.0, 7.0
    )


# --- time -----------------------------------------------------------------------------------------------------------


def test_a_part_of_the_time_is_kept_for_measuring_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(clocks.time, "monotonic", lambda: now)
    clock = Clock(StopFlag(), 100.0)
    assert clock.deadline == 1080.0
    now = 1060.0
    assert not clock.late(20.0)
    assert clock.late(20.1), "another one like the last would not be done in time"
    assert Clock(StopFlag(), None).deadline is None
    assert not Clock(StopFlag(), None).late(1e9)


def test_a_signal_ends_it_between_steps() -> None:
    stop = StopFlag()
    Clock(stop, None).check()
    stop.request("SIGTERM")
    with pytest.raises(Stopped, match="stopped by SIGTERM"):
        Clock(stop, None).check()


# --- what is asked --------------------------------------------------------------------------------------------------


def test_options_that_do_not_go_together() -> None:
    FitOptions("m", Bounds(max_mb=1), train="full", trials=3, study="s").check()
    with pytest.raises(UserError, match="--trials: needs training"):
        FitOptions("m", Bounds(max_mb=1), trials=3).check()
    with pytest.raises(UserError, match="--study: only applies with --trials"):
        FitOptions("m", Bounds(max_mb=1), train="full", study="s").check()


def test_a_run_goes_on_with_another_limit_of_time_and_with_nothing_else() -> None:
    one = FitOptions("m", Bounds(max_mb=1))
    same = FitOptions("m", Bounds(max_mb=1), seconds=5.0, uncertified=True, trials=2, study="s", plan_only=True)
    assert one.digest() == same.digest()
    others = [
        FitOptions("m", Bounds(max_mb=2)),
        FitOptions("m", Bounds(max_mb=1), plans=5),
        FitOptions("n", one.bounds),
    ]
    assert len({one.digest(), *(other.digest() for other in others)}) == 4
    assert '"heal"' in FitOptions("m", one.bounds, train="recover").digest(), "as folders of version 1 call it"


@pytest.mark.parametrize(
    ("bounds", "family", "saves"),
    [
        (Bounds(max_mb=1), False, True), (Bounds(max_ms=1), False, False), (Bounds(max_ms=1), True, True),
        (Bounds(max_drop=1), False, True), (Bounds(max_drop=1, asked="fastest"), False, False),
    ],
)  # fmt: skip
def test_layers_share_only_where_bytes_are_to_be_saved(bounds: Bounds, family: bool, saves: bool) -> None:
    assert FitOptions("m", bounds, family=family).saves_bytes is saves


# --- labels of the parent -------------------------------------------------------------------------------------------


def rows(count: int = 3) -> Rows:
    column = pa.chunked_array([pa.array([f"text {i}" for i in range(count)], pa.large_string())])
    return Rows({"text": column}, np.full(count, -1), np.arange(1, count + 1))


def answers(problem: str, logits: list[list[float]], kind: str = "classification", pool: Any = None) -> Any:
    task = SimpleNamespace(kind="x", **({} if pool is None else {"pool_chunks": pool}))
    return SimpleNamespace(
        head=SimpleNamespace(kind=kind, problem=problem), task=task, logits=lambda _: np.array(logits, np.float32),
        encode_rows=lambda read, max_length: len(read),
    )  # fmt: skip


def test_the_parents_answers_become_labels() -> None:
    one = unlabelled._answered(rows(), answers("single_label", [[1, 2], [3, 2], [0, 9]]), 32)
    labels = np.asarray(one.labels)
    assert (labels.tolist(), labels.dtype) == ([1, 0, 1], np.int64)
    score = unlabelled._answered(rows(), answers("regression", [[1.5], [-2.0], [0.0]]), 32)
    assert np.asarray(score.labels).tolist() == [1.5, -2.0, 0.0]
    several = unlabelled._answered(rows(), answers("multi_label", [[1, -1], [0, 0.1], [-1, -1]]), 32)
    assert np.asarray(several.labels).tolist() == [[1, 0], [0, 1], [0, 0]]
    assert several.texts == rows().texts


def test_chunks_of_a_long_text_are_one_answer() -> None:
    pooled = answers("single_label", [[1, 2]] * 5, pool=lambda logits, _: logits[:3][:, ::-1])
    assert np.asarray(unlabelled._answered(rows(), pooled, 32).labels).tolist() == [0, 0, 0]


def test_tasks_without_one_answer_a_row_need_labels() -> None:
    with pytest.raises(UserError, match="--data: x needs labels: predictions can only replace labels"):
        unlabelled._answered(rows(), answers("single_label", [[1, 2]], kind="token_classification"), 32)


def test_the_labelled_table_has_a_fingerprint_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table({"train": rows(), "test": rows(2)}, "classification", ("a", "b"), {"text": "text"}, "abc", "x")
    made = [answers("single_label", [[1, 2], [3, 2], [0, 9]]), answers("single_label", [[3, 2], [3, 2], [0, 9]])]
    monkeypatch.setattr(unlabelled, "Predictor", lambda *_, **__: made[0])
    monkeypatch.setattr(
        unlabelled, "_answered", lambda r, p, _: Rows(r.columns, p.logits(0).argmax(-1)[: len(r)], r.numbers)
    )
    one = unlabelled.label_with_parent(table, Path("m"), 32)
    monkeypatch.setattr(unlabelled, "Predictor", lambda *_, **__: made[1])
    other = unlabelled.label_with_parent(table, Path("m"), 32)
    assert len({"abc", one.fingerprint, other.fingerprint}) == 3, "another parent gives other labels"


# --- which runtime serves -------------------------------------------------------------------------------------------


@pytest.fixture
def runtimes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Sets what each runtime does: milliseconds, a complaint about its answers, or an error at opening."""
    loaded: Any = SimpleNamespace(model=None, config=SimpleNamespace(vocabulary=9), path=Path("parent"))
    said: list[str] = []
    console: Any = SimpleNamespace(note=said.append)

    def choose(**found: float | str | UserError) -> tuple[Any, list[str]]:
        said.clear()
        monkeypatch.setattr(setup, "candidates", lambda *_: list(found))
        monkeypatch.setattr(setup, "quantize_to_bits", lambda *_: None)
        monkeypatch.setattr(setup, "content", lambda _: b"")
        monkeypatch.setattr(setup, "evaluation_batches", lambda *_: [])
        monkeypatch.setattr(setup, "draw_mixed_rows", lambda *_: None)
        monkeypatch.setattr(setup, "file_answer", lambda opened: opened)

        def open_runtime(_: bytes, serving: Any) -> Any:
            if isinstance(found[serving.runtime], UserError):
                raise found[serving.runtime]  # type: ignore[misc]
            return found[serving.runtime]

        def check(answer: Any) -> Any:
            return SimpleNamespace(complaint=answer if isinstance(answer, str) else None)

        monkeypatch.setattr(setup, "open_runtime", open_runtime)
        monkeypatch.setattr(setup, "compute_reference", lambda *_: SimpleNamespace(check=check))
        monkeypatch.setattr(setup, "build_parts", lambda _, serving, __: found[serving.runtime])
        monkeypatch.setattr(setup, "measure_interleaved", lambda calls, **_: [latency(ms) for ms in calls])
        shape = {"batch": 1, "length": 8, "device": "cpu"}
        return setup.choose_serving(loaded, None, shape, console), said

    return choose


def test_the_fastest_runtime_that_answers_right_serves(runtimes: Callable[..., Any]) -> None:
    serving, said = runtimes(onnxruntime=5.0, openvino=3.0)
    assert (serving.runtime, serving.length) == ("openvino", 8)
    assert said[-1] == "openvino: 2.85 ms for the full model in 8 bits"
    serving, said = runtimes(onnxruntime=5.0, openvino="it is wrong")
    assert (serving.runtime, said[0]) == ("onnxruntime", "openvino: skipped: it is wrong")
    serving, said = runtimes(**{"torch-int8": UserError("not supported"), "onnxruntime": 5.0})
    assert (serving.runtime, said[0]) == ("onnxruntime", "torch-int8: skipped: not supported")


def test_one_runtime_is_taken_untimed_and_none_is_an_error(runtimes: Callable[..., Any]) -> None:
    assert runtimes(openvino="never asked")[0].runtime == "openvino"
    with pytest.raises(UserError, match="parent: no runtime reproduces the model's outputs"):
        runtimes(onnxruntime="wrong", openvino="wrong")


# --- plans until there is no time -----------------------------------------------------------------------------------


class Planned:
    """A search that has these plans left."""

    def __init__(self, left: Sequence[Plan], too_large: Sequence[str] = ()) -> None:
        self.left, self.too_large, self.tried = list(left), too_large, []

    def next(self) -> Plan | None:
        return self.left.pop(0) if self.left else None

    def skip(self, one: Plan, mb: float) -> bool:
        return one.vocabulary in self.too_large


def fit(search: Planned, path: Path, bounds: Bounds, late: Callable[[float], bool] = lambda _: False) -> Any:
    said: list[str] = []
    clock = SimpleNamespace(check=lambda: None, late=late)
    console = SimpleNamespace(note=said.append, warn=said.append)
    case: Any = SimpleNamespace(
        bounds=bounds, clock=clock, console=console, metric="accuracy", wanted=SimpleNamespace(seconds=60.0),
        table=None, loaded=SimpleNamespace(config=None),
    )  # fmt: skip
    maker = SimpleNamespace(megabytes=lambda *_: 9.0)
    bench: Any = SimpleNamespace(whole=plan("whole"), maker=maker, serving=SimpleNamespace(bits=(8,)), evaluator=None)
    one = Candidates(case, bench, SimpleNamespace(path=path), search)  # type: ignore[arg-type]
    return one, said


def test_plans_are_made_until_none_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = Planned([plan("a"), plan("large"), plan("b")], too_large=["large"])
    one, said = fit(search, tmp_path, Bounds(max_mb=10))
    made = {"whole": 0.9, "a": 0.88, "b": 0.91}
    monkeypatch.setattr(one, "_judged", lambda p, place: judged(p.vocabulary, value=made[p.vocabulary]))
    one.make()
    assert [j.name for j in search.tried] == ["whole", "a", "b"], (
        "the whole model first; one over the budget is left out"
    )
    assert said[0].endswith("best so far: whole")
    assert said[-1].endswith("best so far: b")


def test_no_plan_is_begun_that_would_not_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    search = Planned([plan("a")])
    one, said = fit(search, tmp_path, Bounds(max_mb=1), lambda last: asked.append(last) or True)
    monkeypatch.setattr(one, "_judged", lambda p, place: judged(p.vocabulary))
    one.make()
    assert [j.name for j in search.tried] == ["whole"]
    assert asked == [7.0], "as many seconds as the last one took"
    assert said[0].endswith("closest so far: whole"), "it is over the budget"
    assert said[-1] == "no time left for another plan (limit 60 s)"


def test_a_fit_that_is_stopped_leaves_its_best_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[tuple[Path, Path]] = []
    monkeypatch.setattr(making.modelfolder, "duplicate", lambda source, target: copied.append((source, target)))
    search = Planned([])
    one, said = fit(search, tmp_path, Bounds(max_mb=5))
    one.leave()
    assert copied == [], "nothing was made yet"
    search.tried = [judged("a", mb=9), judged("b", mb=4)]
    one.leave()
    assert copied == [(Path("plans/b"), tmp_path / "model")]
    assert "b, which meets the bounds, was copied to" in said[-1]
    search.tried = [judged("a", mb=9)]
    one.leave()
    assert "a, which is closest to the bounds, was copied to" in said[-1]


def test_a_plan_that_was_judged_before_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, said = fit(Planned([]), tmp_path, Bounds(max_mb=5))
    remembered: list[Timing] = []
    one.bench.evaluator = SimpleNamespace(remember=remembered.append)
    before = judged("plan 1")
    before.write(tmp_path / PLANS / before.plan.key / RECORD)
    monkeypatch.setattr(making.atomic, "verify_folder", lambda _: [])
    found = one._judged(before.plan, 1)
    assert (found.name, found.value, said) == ("plan 1", 0.9, [])
    assert remembered == [found.timing], "the parent's pace is known again"


# --- training what is rounded ---------------------------------------------------------------------------------------


def test_the_best_model_is_trained_as_it_will_be_rounded(tmp_path: Path) -> None:
    jobs: list[Any] = []
    said: list[str] = []
    case: Any = SimpleNamespace(
        bounds=Bounds(max_mb=10), console=SimpleNamespace(note=said.append), wanted=SimpleNamespace(seconds=60.0)
    )
    maker = SimpleNamespace(save_parent=lambda p, folder: folder)
    attempt: Any = lambda job, write, told, seconds: jobs.append(job) or judged("trained", value=0.95)  # noqa: E731
    trainer: Any = SimpleNamespace(attempt=attempt)
    loop = InTheLoop(case, SimpleNamespace(maker=maker), tmp_path, trainer, 40)  # type: ignore[arg-type]
    tried = [judged("a, 400 steps", value=0.9), judged("b", value=0.8)]
    loop.train(tried)
    assert [j.name for j in tried] == ["a, 400 steps", "b", "trained"]
    assert jobs[0].name == "a, 40 steps, 40 of them quantized"
    assert jobs[0].folder == Path("plans/in-the-loop")

    def no_time(*_: Any) -> Any:
        raise OutOfTime

    trainer.attempt = no_time
    loop.train(tried)
    assert said[-1] == "no time left for quantization-aware training (limit 60 s)"
    loop.train([judged("float", bits=32)])
    assert said[-1] == "float is not quantized: no quantization-aware training"
    assert len(jobs) == 1


def test_models_in_few_bits_are_trained_beside_the_best(tmp_path: Path) -> None:
    jobs: list[Any] = []
    case: Any = SimpleNamespace(bounds=Bounds(max_mb=10), console=SimpleNamespace(note=lambda _: None))
    maker = SimpleNamespace(save_parent=lambda p, folder: folder)
    attempt: Any = lambda job, write, told, seconds: jobs.append(job) or judged("trained", value=0.95)  # noqa: E731
    loop = InTheLoop(case, SimpleNamespace(maker=maker), tmp_path, SimpleNamespace(attempt=attempt), 40)  # type: ignore[arg-type]
    poor = [judged("3 bits", value=0.6, bits=3), judged("2 bits", value=0.5, bits=2, mb=8.0)]
    loop.train([judged("best"), judged("other", value=0.7), *poor, judged("large", value=0.5, bits=2, mb=11.0)])
    assert [job.name for job in jobs] == [
        f"{name}, 40 steps, 40 of them quantized" for name in ("best", "3 bits", "2 bits")
    ]
    assert jobs[1].settings.rate > jobs[0].settings.rate, "weights have a longer way to the next code"


# --- what is said ---------------------------------------------------------------------------------------------------


def test_the_table_of_plans_begins_with_the_parent() -> None:
    case: Any = SimpleNamespace(metric="accuracy", bounds=Bounds(max_mb=8, max_ms=5), loss_words=LOSS_WORDS[OF_VECTORS])
    evaluator: Any = SimpleNamespace(value=0.9, parent_mb=40.0)
    columns, lines = report.plans(case, evaluator, [judged("a", ms=4.0, mb=9.0, value=0.88), judged("b", mb=7.0)])
    assert len(columns) == len(lines[0]) == len(lines[1])
    assert columns[3] == "1 - cosine"
    assert lines[0][:2] == ("parent, float", "90.00")
    assert lines[0][6] == "12.00"
    assert lines[1][2] == "2.00 [1.00, 3.00]"
    assert lines[1][-2:] == ("3.00x", "9.00 MB, bound 8")
    assert lines[2][-1] == "met"


def test_the_line_of_a_plan_and_of_a_certificate() -> None:
    one = judged("a", value=0.88)
    line = report.progress("accuracy", one, judged("b"), met=False)
    assert line == (
        "a: accuracy 88.00 % (-2.00 points), 9.00 MB, 4.00 ms, 3.00x the speed of the float parent; closest so far: b"
    )
    found = {"quality": {"value": None, "metric": "accuracy"}, "size_mb": 9.0, "latency": {"ms": 4.0}}
    assert report.short(found) == "9.00 MB, 4.00 ms"
    found["quality"] = {"value": 0.9, "metric": "accuracy"}
    assert report.short(found) == "9.00 MB, 4.00 ms, accuracy 90.00 %"
    assert (report.bits(32), report.bits(4)) == ("float", "int4")


def test_what_a_forecast_says_of_its_points() -> None:
    def row(plans: int, of: str) -> dict[str, Any]:
        return {"points_lost": {"plans": plans, "of": of}}

    told = [row(9, "this model"), row(19, "this model"), row(39, "all models"), {"points_lost": None}]
    own, every, unknown, closed = forecast._on_points(told, ["plan 4 (2 similar)"], "no such file")
    assert own.startswith("points lost: median and range of 9 or more earlier plans of this model")
    assert own.endswith("at least 80 % of such plans lie within the range"), "(n - 1) / (n + 1) of the fewest"
    assert "39 or more earlier plans of all models" in every
    assert every.endswith("at least 95 % of such plans lie within the range")
    assert "plan 4 (2 similar)" in unknown
    assert closed == "points lost are unknown because the store cannot be opened: no such file"
    assert forecast._on_points([{"points_lost": None}], [], "") == []


# --- the certificate ------------------------------------------------------------------------------------------------


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Verifies a certificate whose checks come out like this."""

    def run(status: str = "certified", **verdicts: str) -> list[str]:
        found = {"status": status, "why": ["the machine was busy"], "runtime": "torch"}
        checked = {w: verify.CheckedStatement(w, v, f"{w} is {v}") for w, v in verdicts.items()}  # type: ignore[arg-type]
        measured = [checked[what] for what in ("latency", "quality") if what in checked]
        monkeypatch.setattr(verify, "resolve", Path)
        monkeypatch.setattr(certificate, "read", lambda _: found)
        monkeypatch.setattr(verify, "check_files", lambda *_: checked["files"])
        monkeypatch.setattr(verify, "check_size", lambda *_: checked["size"])
        monkeypatch.setattr(verify, "_measured", lambda *_: measured)
        shown: list[str] = []
        console: Any = SimpleNamespace(
            table=lambda _, __, lines: shown.extend(f"{a}: {b}" for a, b, _ in lines), document=lambda _: None,
            result=shown.append,
        )  # fmt: skip
        verify.verify("m", RunOptions(), console)
        return shown

    return run


GOOD = {"files": "holds", "size": "holds", "latency": "holds", "quality": "holds"}


def test_a_certificate_that_holds(verified: Callable[..., Any]) -> None:
    assert verified(**GOOD) == [*(f"{what}: holds" for what in GOOD), "the certificate holds"]


@pytest.mark.parametrize(
    ("changed", "message", "code"),
    [
        ({"files": "fails"}, "m: the certificate does not hold: files: files is fails", ExitCode.DATA),
        ({"latency": "open", "quality": "fails"}, "m: the certificate does not hold: quality:", ExitCode.REFUSED),
        ({"latency": "open"}, "m: the certificate could not be checked completely: latency:", ExitCode.REFUSED),
        (
            {"status": "uncertified"},
            "status: the certificate's status is uncertified: the machine was busy",
            ExitCode.REFUSED,
        ),
    ],
)
def test_one_that_does_not(verified: Callable[..., Any], changed: dict[str, str], message: str, code: ExitCode) -> None:
    with pytest.raises(UserError) as refused:
        verified(**{**GOOD, **changed})
    assert message in refused.value.line()
    assert refused.value.code == code


def test_a_runtime_that_is_not_there_leaves_the_latency_open(
    verified: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "versions", lambda: {"torch": None})
    with pytest.raises(UserError, match="could not be checked completely: latency: torch is not installed"):
        verified(**GOOD)


def test_the_command_that_checks_a_certificate_reads_the_same_rows() -> None:
    data = DataSpec(source="my rows.csv", label_column="a b", limit=200, bad_rows="drop", max_length=64)
    assert report.name_data("my rows.csv", data) == (
        "--data 'my rows.csv' --label-column 'a b' --limit 200 --bad-rows drop"
    )
    assert report.name_data("opinions", None) == "--data opinions"


@pytest.mark.parametrize(
    ("task", "texts"),
    [("classification", ["some text"]), ("regression", ["some text", "--pair", "another text"])],
)
def test_the_printed_command_predicts_with_the_model(
    task: str, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    columns = dict.fromkeys(["text", "text_pair"][: 1 + (len(texts) > 1)], "column")
    case: Any = SimpleNamespace(console=Console(), task=task_of(task), table=SimpleNamespace(columns=columns))
    report.location(case, Path("my runs/cascade"))
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("use it"))
    assert shlex.split(line)[2:] == ["compress", "predict", "my runs/cascade", *texts]
