"""What a certificate says of times that were made up, and how it is held against what is found."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from compress.contracts import Measurement
from compress.errors import UserError
from compress.fit import report
from compress.fit.certificate import document as certificate
from compress.fit.certificate import issue, verify
from compress.fit.certificate.checks import check_files, check_latency, check_quality, check_size
from compress.fit.certificate.document import sentences
from compress.fit.cost.serving import Serving
from compress.fit.make.candidates import PLANS, Candidates
from compress.fit.make.evaluator import RECORD, Evaluation, Evaluator, Timing, best_of, read_evaluation, share_timings
from compress.fit.plan.plans import Plan
from compress.fit.plan.search import choose_result, find_front
from compress.fit.request.bounds import Bounds
from compress.predict.real_texts import TextLatency
from compress.storage import manifest
from evaluation.cost.latency import Latency
from evaluation.quality.pairing import ResampledMetric


def latency(p50: float = 4.0, cpu_share: float = 1.0, spread: float = 0.02) -> Latency:
    return Latency(p50, 1.2 * p50, 1.3 * p50, 0.95 * p50, 50, cpu_share, spread)


def timing(p50: float = 4.0, **busy: float) -> Timing:
    return Timing.of(latency(p50, **busy), latency(12.0))


def judged(name: str, mb: float, ms: float, value: float, apart: float = 0.0, drop: float | None = None) -> Evaluation:
    plan = Plan((0,), (1,), (1,), (8,), (8,), f"the cut of {name}", 10, 8, 0, ms, mb, 0.0)
    lost = 100 * (0.9 - value) if drop is None else drop
    return Evaluation(name, plan, Path(name), mb, timing(ms), value, lost, lost - 1, lost + 1, apart, 1.0)


def test_times_on_a_quiet_and_on_a_busy_machine() -> None:
    quiet = timing()
    assert quiet.quiet
    assert quiet.ms == 4.0
    assert quiet.speedup == 3.0
    for busy in (timing(cpu_share=0.5), timing(spread=0.3), Timing.of(latency(), latency(12.0, cpu_share=0.5))):
        assert not busy.quiet
        assert busy.ms == busy.certain == pytest.approx(4.0)
    before: dict[str, Any] = {"least": 0.95 * 12.0, "typical": 12.0}
    later = Timing.of(latency(8.0, cpu_share=0.5), latency(24.0), **before)  # all takes twice as long now
    assert later.certain == pytest.approx(4.0)
    assert later.speedup == pytest.approx(3.0)
    unseen = Timing.of(latency(8.0), latency(24.0), **before)  # the same, by what shares caches with us
    assert not unseen.quiet
    assert unseen.certain == pytest.approx(4.0)
    little = Timing.of(latency(4.2), latency(12.6), **before)
    assert little.quiet
    assert little.certain == 4.2, "what is certified is what was measured"
    assert little.ms == pytest.approx(4.0), "plans are compared at one pace"


FOLDER_FILES = {"model.onnx": b"1" * 4000, "config.json": b"{}"}


def folder(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    for name, data in FOLDER_FILES.items():
        (path / name).write_bytes(data)
    return path


def content(**changed: Any) -> dict[str, Any]:
    hashes = {n: {"sha256": hashlib.sha256(d).hexdigest(), "bytes": len(d)} for n, d in FOLDER_FILES.items()}
    found = {
        "format": 1, "status": "certified", "why": [], "files": hashes, "deployed": ["model.onnx"], "size_mb": 0.004,
        "bounds": Bounds(max_mb=0.005, max_ms=5.0).as_json(), "runtime": "onnxruntime", "dataset_digest": "d",
        "latency": {"ms": 4.0, "batch": 1, "length": 8, "quiet": True}, "device": {"device": "a", "threads": "1"},
        "quality": {"metric": "accuracy", "value": 0.9, "low": 0.88, "high": 0.92},
    }  # fmt: skip
    return {**found, **changed}


def test_files_and_size(tmp_path: Path) -> None:
    where = folder(tmp_path / "model")
    assert check_files(where, content()).verdict == "holds"
    assert check_size(where, content()).verdict == "holds"
    tight = content(bounds=Bounds(max_mb=0.003).as_json())
    assert check_size(where, tight).why == "0.004 MB, bound: 0.003"
    (where / "config.json").write_bytes(b"{} ")
    assert check_files(where, content()).why == "config.json is not the certified file"
    (where / "model.onnx").unlink()
    assert check_files(where, content()).why == "model.onnx is missing"


def test_a_certificate_that_was_edited(tmp_path: Path) -> None:
    """Its own hashes cannot show that: the manifest of the folder does."""
    where = folder(tmp_path / "model")
    (where / certificate.CERTIFICATE).write_text(json.dumps(content()))
    (where / manifest.NAME).write_bytes(manifest.encode(manifest.build(where)))
    assert check_files(where, content()).verdict == "holds"
    (where / certificate.CERTIFICATE).write_text(json.dumps(content(status="fits")))
    found = check_files(where, content())
    assert (found.verdict, found.why) == ("fails", "certificate.json has changed since it was written")


@pytest.mark.parametrize(
    ("bound", "ours", "device", "verdict"),
    [
        (5.0, latency(4.9), "a", "holds"),
        (5.0, latency(5.1), "a", "fails"),
        (5.0, latency(4.9), "b", "holds"),
        (5.0, latency(4.0, cpu_share=0.3), "a", "open"),
        (None, latency(4.5), "a", "holds"),
        (None, latency(4.7), "a", "fails"),
        (None, latency(40), "b", "holds"),
    ],
)
def test_latency(bound: float | None, ours: Latency, device: str, verdict: str) -> None:
    found = content(bounds=Bounds(max_mb=1.0, max_ms=bound).as_json())
    assert check_latency(found, ours, {"device": device, "threads": "1"}).verdict == verdict


@pytest.mark.parametrize("bound", [4.5, None])
def test_a_latency_that_was_estimated_on_a_busy_machine_cannot_fail(bound: float | None) -> None:
    busy = {"ms": 4.0, "batch": 1, "length": 8, "quiet": False}
    found = content(latency=busy, bounds=Bounds(max_mb=1.0, max_ms=bound).as_json())
    here = {"device": "a", "threads": "1"}
    slow = check_latency(found, latency(4.7), here)
    assert slow.verdict == "open"
    assert slow.why.endswith("estimated on a busy machine; run `compress fit` again on an idle machine")
    assert "--kit" in check_latency({**found, "latency": {**busy, "kit": {"pace": None}}}, latency(4.7), here).why
    assert check_latency(found, latency(4.4), here).verdict == "holds"
    now = check_latency(found, latency(4.4, spread=0.3), here)
    assert (now.verdict, now.why.endswith("run `compress verify` again on an idle machine")) == ("open", True)


def test_quality() -> None:
    assert check_quality(content(), "d", 0.89).verdict == "holds"
    assert check_quality(content(), "d", 0.87).verdict == "fails"
    assert check_quality(content(), "d", 0.89).why == "accuracy 89.00 %, certified: 90.00 % [88.00, 92.00]"
    assert check_quality(content(), "d", float("nan")).why == "accuracy is undefined on these rows"
    other = check_quality(content(), "e", 0.89)
    assert other.verdict == "open"
    assert "different data" in other.why


def test_a_folder_without_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        certificate.read(tmp_path)
    assert error.value.line() == f"{tmp_path}: no certificate.json in this folder; compress fit writes one"
    (tmp_path / certificate.CERTIFICATE).write_text('{"format": 7}')
    with pytest.raises(UserError, match="not a valid certificate, or one of another version"):
        certificate.read(tmp_path)


def complete_content() -> dict[str, Any]:
    nothing = {"value": None, "low": None, "high": None}
    return content(
        latency={"ms": 4.0, "p50": 4.0, "p95": 4.1, "quiet": True, "repeats": 9, "batch": 1, "length": 8},
        quality={"metric": "accuracy", "value": 0.9, "low": 0.88, "high": 0.92, "labels": "given"}, rows=9, dataset="x",
        difference={**nothing, "p_value": None}, agreement_pct=nothing, speedup=None, versions={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("latency", None, "the key 'latency' is missing; fit the model again"),
        ("files", {"model.onnx": "abc"}, "files.model.onnx: not a mapping, found the text 'abc'; fit the model again"),
        ("files", {}, "`files` has no model.onnx, which is deployed; fit the model again"),
        ("size_mb", "small", "size_mb: Input should be a valid number"),
        (
            "latency",
            {**complete_content()["latency"], "length": None},
            "latency: expected `length`, or as many `tokens`",
        ),
    ],
)
def test_a_certificate_that_was_edited_names_its_wrong_key(
    key: str, value: object, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / certificate.CERTIFICATE
    found = complete_content()
    path.write_text(json.dumps(found))
    assert certificate.read(tmp_path) == found
    changed = {name: kept for name, kept in {**found, key: value}.items() if kept is not None or name == "speedup"}
    path.write_text(json.dumps(changed))
    with pytest.raises(UserError) as error:
        certificate.read(tmp_path)
    assert error.value.line().startswith(f"{path}: {complaint}")


def test_a_device_that_a_kit_described_is_known_again() -> None:
    device = {"device": "a", "device_kind": "cpu", "threads": "1", "cpu_flags": "avx2"}
    here = {**device, "isa": "AVX2", "torch": "2.0"}
    assert "on the certified device" in check_latency(content(device=device), latency(4.0), here).why
    other = {**here, "cpu_flags": "avx512f"}
    assert "on a different device" in check_latency(content(device=device), latency(4.0), other).why


# --- which one is left ------------------------------------------------------------------------------------------


def test_of_models_that_are_alike_in_quality_the_nearest_to_the_parent() -> None:
    rows = [judged("a", 9, 3, 0.902, 0.2), judged("b", 9, 3, 0.899, 0.1), judged("c", 9, 3, 0.88, 0.01)]
    assert best_of(rows).name == "b"


def test_the_one_that_is_left() -> None:
    rows = [judged("int8", 20, 6, 0.9), judged("a", 9, 3, 0.89), judged("b", 5, 4, 0.87)]
    assert choose_result(rows, Bounds(max_mb=10), best_of)[0].name == "a"
    assert choose_result(rows, Bounds(max_mb=25), best_of)[0].name == "int8"
    assert choose_result(rows, Bounds(max_drop=1.5), best_of)[0].name == "a"
    assert choose_result(rows, Bounds(max_drop=4, asked="smallest"), best_of)[0].name == "b"
    assert choose_result(rows, Bounds(max_drop=4, asked="fastest"), best_of)[0].name == "a"
    closest, met = choose_result(rows, Bounds(max_mb=4.5), best_of)
    assert (closest.name, met) == ("b", False)


def test_models_of_one_plan_take_the_same_time() -> None:
    """Which of them was timed on a slower moment says nothing: it is the trained one that is left."""
    plain = judged("plan", 9, 3.0, 0.86, 0.2)
    rows = [dataclasses.replace(plain, timing=timing(2.8, cpu_share=0.5))]
    for steps, ms, value, apart in ((500, 3.1, 0.87, 0.15), (1500, 2.9, 0.88, 0.1), (3500, 3.05, 0.885, 0.08)):
        healed = judged("healed", 9, 3.0, value, apart)
        rows.append(dataclasses.replace(healed, plan=plain.plan, timing=timing(ms), steps=steps))
    assert {j.timing.ms for j in share_timings(rows)} == {3.05}, "the middle one of the quiet ones"
    assert {j.timing.ms for j in share_timings(rows[:1])} == {timing(2.8, cpu_share=0.5).ms}
    left, met = choose_result(rows, Bounds(max_ms=2.85), best_of)
    assert (left.steps, met) == (3500, False), "not the untrained one, which a busy machine made the fastest"
    left, met = choose_result(rows, Bounds(max_ms=3.07), best_of)
    assert (left.steps, met) == (3500, True)
    other = judged("other", 9, 2.0, 0.80)
    assert choose_result([*rows, other], Bounds(max_ms=2.85), best_of)[0].name == "other"
    assert [j.steps for j in share_timings(rows)] == [0, 500, 1500, 3500]


def test_what_counts_is_measured_at_the_pace_of_the_machine_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of several measurements counts is said by the parent's times alone, and how many there were is told."""
    monkeypatch.setattr("compress.fit.make.evaluator.build_batch", lambda *_: torch.zeros(1))
    predictor: Any = SimpleNamespace(max_length=8, config=None)

    def timed(*pairs: tuple[float, float, float], attempts: int = 5, pace: float = certificate.PACE) -> Timing:
        rows = iter(pairs)
        evaluator = Evaluator.__new__(Evaluator)
        evaluator.serving, evaluator.parent_call = Serving("torch", 1, 8, "cpu"), []
        evaluator.least, evaluator.typical = 0.95 * 12, 12.0

        def timer(*_: Any, **__: Any) -> list[Latency]:
            parent, ours, cpu_share = next(rows)
            return [latency(parent), latency(ours, cpu_share=cpu_share)]

        evaluator.timer = timer
        return evaluator.measure_timing(predictor, 60, 10.0, attempts, pace)

    at_once = timed((12.1, 4.0, 1.0))
    assert (at_once.p50, at_once.attempts) == (4.0, 1)
    third = timed((12.6, 4.2, 1.0), (12.0, 3.0, 0.5), (12.2, 4.1, 1.0))
    assert (third.p50, third.quiet, third.attempts) == (4.1, True, 3)
    slow = timed((12.7, 3.0, 1.0), (12.5, 4.2, 1.0), (12.6, 3.9, 1.0), attempts=3)
    assert (slow.p50, slow.quiet, slow.attempts) == (4.2, True, 3), "not the one where ours was fastest"
    busy = timed((12.0, 3.0, 0.5), (12.0, 3.1, 0.5), attempts=2)
    assert (busy.p50, busy.quiet) == (3.1, False)
    for timing, told in ((at_once, False), (third, True), (busy, False)):
        shape = {"ms": timing.certain, "batch": 1, "length": 8}
        line = sentences(content(latency={**dataclasses.asdict(timing), **shape}, **told_beside()))[2]
        assert (f"chosen from {timing.attempts} measurements because the parent" in line) == told


def told_beside() -> dict[str, Any]:
    ends = {"value": None, "low": None, "high": None}
    return {"speedup": 3.0, "rows": 10, "dataset": "d/test", "difference": ends, "agreement_pct": ends}


def test_one_that_only_once_was_fast_enough_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was chosen is timed as the certificate will time it; the next best is left where it takes too long then."""
    rows = [judged("int8", 9, 2.84, 0.9), judged("a", 9, 2.7, 0.89), judged("slow", 9, 4.0, 0.9)]
    said: list[str] = []
    clock = SimpleNamespace(check=lambda: None)
    case: Any = SimpleNamespace(bounds=Bounds(max_ms=2.85), clock=clock, console=SimpleNamespace(note=said.append))
    unused: Any = SimpleNamespace(evaluator=None)
    times = {"int8": 2.9, "a": 2.7}
    monkeypatch.setattr(certificate, "latency", lambda _, folder, plan: timing(times[folder.name]))
    search: Any = SimpleNamespace(tried=rows)
    candidates = Candidates(case, unused, unused, search)
    left, met = candidates.best()
    assert (left.name, met) == ("a", True)
    assert said == ["int8 is too slow when timed again: 2.90 ms, bound 2.85"]
    times["a"] = 2.84  # too near to hold twice
    left, met = candidates.best()
    assert (left.name, met) == ("int8", True), "none holds: the best by what was judged"
    case.bounds = Bounds(max_mb=10)
    assert candidates.best()[0].name == "int8"
    case.bounds = Bounds(max_ms=1.0)
    assert candidates.best()[1] is False, "nothing was within: nothing is timed again"


def test_what_was_timed_on_a_busy_machine_is_timed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        dataclasses.replace(judged("busy", 9, 3.0, 0.86), timing=timing(2.8, cpu_share=0.5)),
        judged("a", 9, 3, 0.9),
    ]
    record = tmp_path / PLANS / rows[0].plan.key / RECORD
    record.parent.mkdir(parents=True)
    said: list[str] = []
    clock = SimpleNamespace(check=lambda: None, late=lambda last: False)
    case: Any = SimpleNamespace(bounds=Bounds(max_ms=2.85), clock=clock, console=SimpleNamespace(note=said.append))
    bench: Any = SimpleNamespace(evaluator=None)
    journal: Any = SimpleNamespace(path=tmp_path)
    monkeypatch.setattr(certificate, "latency", lambda _, folder, plan: timing(2.8, cpu_share=0.5))
    search: Any = SimpleNamespace(tried=list(rows))
    candidates = Candidates(case, bench, journal, search)
    assert not candidates.time_again(), "busy still"
    assert search.tried == rows
    monkeypatch.setattr(certificate, "latency", lambda _, folder, plan: timing(3.1))
    clock.late = lambda last: last >= certificate.SECONDS
    assert not candidates.time_again(), "no time is left"
    clock.late = lambda last: False
    assert candidates.time_again()
    assert [j.timing.ms for j in search.tried] == [3.1, 3.0]
    assert said == ["busy: timed again, 3.10 ms"]
    assert read_evaluation(record, Path("busy")).timing.ms == 3.1, "a fit that goes on knows it too"
    assert not candidates.time_again(), "nothing is left that was busy"
    case.bounds = Bounds(max_mb=12)
    search.tried = list(rows)
    assert not candidates.time_again(), "no bound hangs on it"


def test_what_is_near_the_bound_is_timed_as_the_certificate_will(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short timing came out at 2.82, the long one at 2.99: more plans are made before any is trained."""
    rows = [judged("int8", 20, 8.0, 0.9), judged("near", 9, 2.82, 0.87), judged("well within", 8, 2.0, 0.8)]
    for row in rows:
        (tmp_path / PLANS / row.plan.key).mkdir(parents=True)
    said: list[str] = []
    clock = SimpleNamespace(check=lambda: None, late=lambda last: False)
    case: Any = SimpleNamespace(bounds=Bounds(max_ms=2.83), clock=clock, console=SimpleNamespace(note=said.append))
    bench: Any = SimpleNamespace(evaluator=None)
    journal: Any = SimpleNamespace(path=tmp_path)
    monkeypatch.setattr(certificate, "latency", lambda _, folder, plan: timing(2.99))
    search: Any = SimpleNamespace(tried=list(rows))
    candidates = Candidates(case, bench, journal, search)
    assert candidates.time_again()
    assert [j.timing.ms for j in search.tried] == [8.0, 2.99, 2.0]
    assert said == ["near: timed again, 2.99 ms"]
    monkeypatch.setattr(certificate, "latency", lambda _, folder, plan: timing(2.83))
    search.tried = list(rows)
    assert not candidates.time_again(), "once is enough on a quiet machine"


def test_the_family_is_what_no_other_beats() -> None:
    sizes = {"int8": (20, 6, 0.9), "a": (9, 3, 0.89), "worse": (10, 4, 0.88), "b": (5, 4, 0.87)}
    rows = [judged(name, *row) for name, row in sizes.items()]
    assert [j.name for j in find_front(rows)] == ["int8", "worse", "a", "b"], "their intervals of a point overlap"
    noise = np.random.default_rng(0).normal(0, 0.01, 200)  # of the rows, the same for all
    paired = [
        dataclasses.replace(j, figures=ResampledMetric("accuracy", "validation", 100, j.value, j.value + noise, 7))
        for j in rows
    ]
    assert [j.name for j in find_front(paired)] == ["int8", "a", "b"]
    undefined = dataclasses.replace(rows[0], value=float("nan"))
    assert [j.name for j in find_front([undefined, paired[1]])] == ["a"]


def test_what_is_written_of_a_model_is_read_again(tmp_path: Path) -> None:
    figures = ResampledMetric("accuracy", "validation", 100, 0.9, np.array([0.875, np.nan]), 7)
    row = dataclasses.replace(judged("a", 9, 3, 0.9), folder=tmp_path / "model", figures=figures, steps=40)
    row.write(tmp_path / "judged.json")
    again = read_evaluation(tmp_path / "judged.json", tmp_path / "model")
    assert again == row
    assert again.figures is not None
    assert again.figures.text() == figures.text()
    assert "figures" not in row.as_json()
    (tmp_path / "judged.json").write_text('{"name": "a"}')
    with pytest.raises(UserError) as error:
        read_evaluation(tmp_path / "judged.json", tmp_path / "model")
    assert "not a valid evaluation file; remove it; the model will be evaluated again" in error.value.line()


def of_texts(**changed: Any) -> dict[str, Any]:
    texts = {"mean": 4.2, "p50": 3.5, "p95": 9.0, "tokenization": 0.25}
    shape = {"batch": 1, "data": "sst2/test", "digest": "d", "rows": 1821, "tokens": [4, 30], "sequences": [1, 2]}
    return {**vars(timing()), "texts": texts, "ms": 4.0, **shape, **changed}


def test_a_certificate_of_texts_says_whose_and_what_tokenization_took() -> None:
    found = content(format=2, latency=of_texts(), **told_beside(), device={"threads": "1"})
    assert certificate.sentences(found)[2] == (
        "latency 4.00 ms (mean; 0.25 of it tokenization; median 3.50, p95 9.00 over the texts, 50 rounds) for 1 x "
        "texts of sst2/test (11.3 tokens on average) in onnxruntime, 1 thread; 3.00x the speed of the float parent"
    )
    busy = content(format=2, latency=of_texts(quiet=False), **told_beside(), device={"threads": "1"})
    estimated = certificate.sentences(busy)[2]
    assert "(mean, estimated on a busy machine; " in estimated
    assert estimated.endswith("1 thread; about 3.0x the speed of the float parent, also estimated")


def test_a_timing_of_texts_is_read_again_and_logs_what_texts_took() -> None:
    texts = TextLatency(4.2, 3.5, 9.0, 0.25)
    one = dataclasses.replace(timing(), texts=texts)
    assert Timing.from_json(dataclasses.asdict(one)) == one
    assert one.speeds() == {
        "speed/latency_p50_ms": 3.5, "speed/latency_p95_ms": 9.0, "speed/latency_mean_ms": 4.2,
        "speed/tokenization_ms": 0.25,
    }  # fmt: skip
    old = {key: value for key, value in dataclasses.asdict(timing()).items() if key != "texts"}
    assert Timing.from_json(old) == timing(), "as version 0.1 wrote it"
    assert timing().speeds() == {"speed/latency_p50_ms": 4.0, "speed/latency_p95_ms": 4.8}


@pytest.mark.parametrize("texts", [None, TextLatency(4.2, 3.5, 9.0, 0.25)])
def test_what_was_estimated_on_a_busy_machine_is_not_logged(
    texts: TextLatency | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = dataclasses.replace(timing(cpu_share=0.5), texts=texts)
    row = dataclasses.replace(judged("a", 9, 3, 0.9), timing=busy)
    logged = report.figures("accuracy", row)
    assert not [name for name in logged if name.startswith("speed/") or name == "fit/speedup"]
    assert report.figures("accuracy", judged("a", 9, 3, 0.9))["fit/speedup"] == 4.0
    here = [SimpleNamespace(measurement=Measurement({"size/disk_mb": 9.0}, {"contaminated": "yes"}))] * 2
    monkeypatch.setattr(issue, "measure", lambda *_, **__: here)
    monkeypatch.setattr(issue, "settings_for", lambda *_: None)
    case: Any = MagicMock()
    assert issue._measured(case, "a", Path("a"), "torch", busy) == here


def test_texts_are_checked_without_their_data_by_tokens_of_their_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the certificate's tokenization the time is taken as it is; a fixed length is timed as before."""
    made: list[tuple[int, int]] = []
    said: list[str] = []
    console: Any = SimpleNamespace(note=said.append)
    predictor: Any = SimpleNamespace(config=None, device="cpu")

    def batch(_: Any, *shape: int) -> torch.Tensor:
        made.append(shape)  # type: ignore[arg-type]
        return torch.zeros(1)

    monkeypatch.setattr(verify, "build_fixed_batch", batch)
    timer = lambda calls, **_: [latency(float(len(calls[0])))]  # noqa: E731
    ours = verify._time(predictor, of_texts(), None, timer, console)
    assert made == [(1, 4), (2, 15)]
    assert ours.p50 == 1.0 + 0.25, "of two calls each takes half"
    assert "add --data with the certificate's data" in said[0]
    made.clear()
    assert verify._time(predictor, {"batch": 1, "length": 8}, None, timer, console).p50 == 1.0
    assert (made, len(said)) == ([(1, 8)], 1)


def test_texts_of_other_data_are_not_those_of_the_certificate() -> None:
    table: Any = SimpleNamespace(measured_fingerprint="other", splits={"test": None})
    assert verify._certified_texts(of_texts(), table, 16) is None
    table = SimpleNamespace(measured_fingerprint="d", splits={"validation": None})
    assert verify._certified_texts(of_texts(), table, 16) is None


def test_plans_are_timed_on_texts_beside_the_parent() -> None:
    """Both answer the same texts; figures are of one text on average."""
    evaluator = Evaluator.__new__(Evaluator)
    texts: Any = SimpleNamespace(tokens=np.array([4, 8]))
    evaluator.serving, evaluator.parent_call = Serving("torch", texts=texts), []
    evaluator.least = evaluator.typical = float("inf")
    parts = np.array([0.25, 1.0, 0.25, 3.0])

    def timer(calls: list[Any], **_: Any) -> list[Latency]:
        return [latency(12.0), dataclasses.replace(latency(4.0), parts=parts)]

    evaluator.timer = timer
    found = evaluator.beside_parent([], 5, 1.0)
    assert (found.p50, found.parent_p50, found.speedup) == (2.0, 6.0, 3.0)
    assert found.texts == TextLatency(2.25, 2.25, pytest.approx(3.15), 0.25)  # type: ignore[arg-type]


def test_what_is_told_of_a_certificate() -> None:
    found = content(
        size_mb=11.5, rows=1821, dataset="sst2/test", speedup=3.6, device={"threads": "1"},
        latency={**vars(timing()), "ms": 4.0, "batch": 1, "length": 128},
        difference={"value": -0.001, "low": -0.006, "high": 0.004, "p_value": 0.5},
        agreement_pct={"value": 98.0, "low": 97.0, "high": 99.0},
    )  # fmt: skip
    ranked = {"metric": "ndcg_at_10", "value": 0.22819, "low": 0.2, "high": 0.25}
    assert certificate.sentences({**found, "quality": ranked})[3] == (
        "nDCG@10 0.228 [0.200, 0.250] on 1,821 rows of sst2/test"
    )
    assert certificate.sentences(found) == [
        "certified: all bounds are met",
        "size 11.50 MB: model.onnx",
        "latency 4.00 ms (median; median 4.00, p95 4.80, 50 rounds) for 1 x 128 tokens in onnxruntime, 1 thread; "
        "3.60x the speed of the float parent",
        "accuracy 90.00 % [88.00, 92.00] on 1,821 rows of sst2/test",
        "against the parent -0.10 [-0.60, +0.40] points, exact sign test p = 0.5",
        "agreement with the parent: 98.00 [97.00, 99.00] %",
    ]


@pytest.mark.parametrize(
    ("shared", "status", "of_rows"), [(0, "certified", ""), (3, "certified", "3"), (500, "uncertified", "500")]
)
def test_a_certificate_says_how_many_test_rows_selected_plans(
    shared: int, status: str, of_rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate.modelfolder, "fingerprint", str)
    context = {"rows": "1000", "dataset": "x/test", "dataset_digest": "d"}
    values = {"quality/accuracy": 0.9, "quality/accuracy_low": 0.88, "quality/accuracy_high": 0.92}
    model: Any = SimpleNamespace(measurement=SimpleNamespace(values=values, context=context), metric="accuracy")
    where = folder(tmp_path / "model")
    found = certificate.issue(
        where, tmp_path / "parent", Bounds(max_mb=1.0), Serving("onnxruntime"), [model, model], timing(), labelled=True,
        deployed=[where / "model.onnx"], shared=shared,
    )  # fmt: skip
    assert (found["status"], found["shared_rows"]) == (status, shared)
    said = " ".join(certificate.sentences(found))
    told = f"{of_rows} of the 1,000 test rows are also validation rows, which were used to select plans"
    assert said.count("used to select plans") == (shared > 0)
    assert (told in said) == (shared > 0)
