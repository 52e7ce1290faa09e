"""A target file: written by a kit that has neither torch nor mlflow, checked key by key, and planned for."""

from __future__ import annotations

import copy
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kits import run_kit

from compress.cpus import Cpus
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.modules.model import Model
from compress.errors import ExitCode, UserError
from compress.fit.certificate import document as certificate
from compress.fit.certificate.checks import check_kit_latency
from compress.fit.certificate.elsewhere import complete, compute_whole, read_measurement
from compress.fit.cost.assembly import add_blocks
from compress.fit.cost.block_table import describe_shape
from compress.fit.cost.blocks import Blocks
from compress.fit.cost.samples import Sample, choose_samples, repeat_weights
from compress.fit.cost.serving import FLOAT, Serving
from compress.fit.make.evaluator import Prediction, Timing
from compress.fit.plan.planner import Layer, Options, Planner, Problem
from compress.fit.target import kit_program, target_costs
from compress.fit.target.kit import build_kit, default_lengths
from compress.fit.target.kit_program import Way, choose_lengths, main, parse_lengths, time_model
from compress.fit.target.target_file import Target, read_target
from evaluation.cost.latency import Latency

CONFIG = EncoderConfig(vocabulary=50, hidden=32, layers=(LayerShape(2, 16, 24),) * 2, max_positions=20)
HEADS = {"task": HeadConfig("classification", labels=3)}
SERVING = Serving("onnxruntime", length=16)
LADDER = choose_samples(CONFIG, HEADS, SERVING)


def take(sample: Sample, head: float, neuron: float) -> float:
    """Milliseconds of a model in 8 bits whose heads and neurons take so much."""
    slower = 1.0 if sample.bits == 8 else 2.0
    return 0.5 + slower * sum(0.1 + head * heads + neuron * neurons for heads, neurons in sample.shapes)


def content(head: float = 0.1, neuron: float = 0.01) -> dict[str, Any]:
    """Of a target file, where a head and a neuron of a layer take so many milliseconds."""
    timed = {
        "ms": [take(one, head, neuron) for one in LADDER.samples], "whole": 2.0, "narrow": 1.0, "static": 1.5,
        "busy": False,
    }  # fmt: skip
    return {
        "format": 1, "compress": "0.1.0", "shape": json.loads(json.dumps(describe_shape(CONFIG, HEADS))), "batch": 1,
        "rows_mb": {f"{one.word}/{one.rank}": 1e-4 for one in LADDER.tables},
        "device": {"device": "A CPU", "device_kind": "cpu", "threads": "1", "cpu_flags": "avx2", "limits": ""},
        "samples": [{**vars(one), "mb": 0.01 * one.depth} for one in LADDER.samples],
        "runtimes": {"onnxruntime": {"version": "1", "lengths": {"8": timed, "16": copy.deepcopy(timed)}}},
    }  # fmt: skip


def written(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(json.dumps(values))
    return path


def test_what_was_measured_is_the_table_that_plans_are_made_with(tmp_path: Path) -> None:
    target = read_target(written(tmp_path / "pi.json", content(0.1, 0.01)))
    target.require_shape(CONFIG, HEADS)
    assert target.name == "pi.json (A CPU, 1 thread)"
    blocks = target.blocks(SERVING, CONFIG, HEADS, 16)
    for shapes in ([(2, 24), (2, 24)], [(1, 24), (2, 5)], [(2, 24)]):
        expected = take(Sample(len(shapes), 2, 24, 8, 8), 0, 0) + sum(0.1 * h + 0.01 * n for h, n in shapes)
        assert add_blocks(blocks, shapes, 8) == pytest.approx(expected, rel=0.02), shapes
    assert add_blocks(blocks, [(2, 24)] * 2, FLOAT) > add_blocks(blocks, [(2, 24)] * 2, 8)
    assert blocks.checks == pytest.approx((1.0,) * 5, rel=0.05)


def set_at(values: Any, path: str, value: Any) -> None:
    *parents, key = path.split(".")
    for one in parents:
        values = values[int(one) if isinstance(values, list) else one]
    if value is None:
        del values[key]
    else:
        values[key] = value


LENGTH = "runtimes.onnxruntime.lengths.16"


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("format", 2, "format is 2, this version reads 1; measure it again: compress profile MODEL --output FILE"),
        ("format", None, "it has no key 'format': no kit wrote this file; measure it again"),
        ("compress", "9.0", "compress is '9.0', this version is 0.1.0; measure it again"),
        ("devise", {}, "unknown key 'devise'; did you mean 'device'?"),
        (f"{LENGTH}.hole", 2.0, f"unknown key '{LENGTH}.hole'; did you mean 'whole'?"),
        ("device.threads", None, "the key 'device.threads' is missing; measure it again"),
        (f"{LENGTH}.whole", -1.0, f"{LENGTH}.whole: Input should be greater than 0, found -1.0"),
        (f"{LENGTH}.ms", [1.0], f"{LENGTH}.ms: 1 numbers for {len(LADDER.samples)} samples"),
        ("runtimes.onnx", {}, "unknown key 'runtimes.onnx'; known: onnxruntime, openvino"),
        ("shape.encoder.hidden", 768, "shape.encoder.hidden is 768, the model's is 32; measure a target for this"),
        ("shape.encoder.layers.1.heads", 9, "shape.encoder.layers.1.heads is 9, the model's is 2; measure a target"),
        ("shape.encoder.layers", [], "shape.encoder.layers is a list of 0, the model's is a list of 2; measure a"),
        ("limits", "", "unknown key 'limits'; known: batch, compress, device, format, rows_mb, runtimes, samples"),
        ("samples.0.neurons", 7, "samples are not those that this version times"),
        ("rows_mb.8/0", None, "rows_mb are not those that this version times"),
    ],
)
def test_a_wrong_key_is_named(path: str, value: Any, complaint: str, tmp_path: Path) -> None:
    values = content()
    set_at(values, path, value)
    file = written(tmp_path / "target.json", values)
    with pytest.raises(UserError) as error:
        read_target(file).require_shape(CONFIG, HEADS)
    assert error.value.line().startswith(f"{file}: {complaint}")
    assert error.value.code == ExitCode.INPUT


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"format": 1, "sha256": "a", "shapes": [], "latency": {}}, "a kit's measurement of a fitted model (compress"),
        ({"format": 2, "status": "certified", "bounds": {}, "quality": {}}, "a certificate"),
        ({"folder": "x", "certificate": {}, "plans": []}, "the output of compress fit --json"),
        ({"model_type": "bert"}, "the configuration of a model"),
    ],
)
def test_another_file_of_ours_is_named(values: dict[str, Any], found: str, tmp_path: Path) -> None:
    file = written(tmp_path / "measured.json", values)
    with pytest.raises(UserError) as error:
        read_target(file)
    assert error.value.line().startswith(f"{file}: this is {found}")
    assert error.value.line().endswith(
        ", not a target that compress profile measured; make one: compress profile MODEL --output FILE"
    )
    with pytest.raises(UserError, match="this is a target that compress profile measured, not a kit's measurement"):
        read_measurement(written(file, content()), {})


def test_what_is_no_number_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "target.json"
    file.write_text(json.dumps(content()).replace('"whole": 2.0', '"whole": NaN', 1))
    with pytest.raises(UserError, match="NaN"):
        read_target(file)


def test_a_plan_for_a_target_saves_what_is_dear_there(tmp_path: Path) -> None:
    """Heads and neurons lose alike; one target computes heads slowly, the other neurons."""
    kept = {}
    for name, costs in (("heads", (0.4, 0.001)), ("neurons", (0.01, 0.08))):
        target = read_target(written(tmp_path / f"{name}.json", content(*costs)))
        blocks = target.blocks(SERVING, CONFIG, HEADS, 16)
        kept[name] = choose(blocks)
    assert kept["heads"][0] < kept["neurons"][0], "fewer heads where heads are dear"
    assert kept["heads"][1] > kept["neurons"][1]


def choose(blocks: Blocks) -> tuple[int, int]:
    """Heads and neurons that the planner leaves of two layers in three quarters of their time."""
    counts = np.array([1, 2]), np.array([1, 8, 16, 24])
    layers = []
    for cost in (blocks.layer, blocks.last):
        attention, inner = cost.attention[8].at(counts[0]), cost.feed_forward[8].at(counts[1])
        layers.append(Layer(Options(*attention, 1.0 - counts[0] / 2), Options(*inner, 1.0 - counts[1] / 24)))
    nothing = Options(*(np.zeros(1) for _ in range(3)))
    problem = Problem(layers, nothing, blocks.ms, 0.0)
    budget = 0.75 * (add_blocks(blocks, [(2, 24)] * 2, 8) - blocks.ms) + blocks.ms
    best = Planner(problem, budget).best(1)[0]
    picks = [pick for pick in best.layers if isinstance(pick, tuple)]
    return sum(int(counts[0][pick[0]]) for pick in picks), sum(int(counts[1][pick[1]]) for pick in picks)


# --- what is said of a predicted latency -------------------------------------------------------------------------


def test_a_predicted_time_is_no_measured_one() -> None:
    about = Prediction("pi.json (A CPU, 1 thread)", {"threads": "1"}, 1.1, 0.2)
    timing = Timing.predict(4.0, 12.0, about)
    assert (timing.ms, timing.certain, timing.speedup, timing.quiet) == (4.0, 4.0, 3.0, True)
    assert timing.speeds() == {}, "a speed is logged only where it was measured"
    assert timing.remark == " (predicted)"
    assert Timing.from_json(json.loads(json.dumps(certificate.asdict(timing)))) == timing


def certified(ms: float, bound: float | None, target: str, whole: float | None = None) -> dict[str, Any]:
    """Of a fit for a target: all else holds."""
    about = {"target": target, "device": {}, "margin": 1.1, "tokenization": 0.5}
    if whole is not None:  # on average over the two calls, of one sequence and of two
        about["whole"] = {"8": whole / 1.5, "32": whole / 1.5}
    shape = {"batch": 1, "data": "x/test", "digest": "0" * 8, "rows": 9, "tokens": [12, 40], "sequences": [1, 2]}
    return {
        "format": 2, "status": "predicted", "why": [certificate.NOT_MEASURED.format(target)],
        "bounds": {"max_mb": None, "max_ms": bound, "max_drop": None, "objective": "quality"}, "size_mb": 1.0,
        "files": {"model.onnx": {"sha256": "a" * 64}}, "deployed": ["model.onnx"], "runtime": "onnxruntime",
        "device": {"device": "A CPU", "threads": "1"}, "versions": {}, "rows": 9, "dataset": "x/test",
        "latency": {**certificate.asdict(Timing.predict(ms, 9.0, Prediction(**about))), "ms": ms, **shape},
        "speedup": 3.0, "quality": {"metric": "accuracy", "value": 0.9, "low": None, "high": None},
        "difference": {"value": None, "low": None, "high": None, "p_value": None}, "agreement_pct": {"value": None},
    }  # fmt: skip


def measured(**changed: Any) -> dict[str, Any]:
    """What a kit of that model wrote."""
    latency = {
        "p50": 3.0, "p95": 3.3, "minimum": 2.9, "repeats": 60, "cpu_share": 1.0, "spread": 0.02, "quiet": True,
        "attempts": 1,
    }  # fmt: skip
    found = {
        "format": 1, "sha256": "a" * 64, "runtime": "onnxruntime", "version": "1.23", "shapes": [[1, 12], [2, 20]],
        "device": content()["device"], "latency": {**latency, **changed.pop("latency", {})},
    }  # fmt: skip
    return {**found, **changed}


@pytest.mark.parametrize(
    ("bound", "latency", "status", "verdict"),
    [
        (4.0, {}, "certified", "holds"),
        (None, {}, "certified", "holds"),
        (3.4, {}, "infeasible", "fails"),  # with the 0.5 ms of tokenization
        (4.0, {"quiet": False}, "uncertified", "open"),
    ],
)
def test_a_measurement_there_completes_a_certificate(
    bound: float | None, latency: dict[str, Any], status: str, verdict: str, tmp_path: Path
) -> None:
    before = certified(3.2, bound, "pi.json (A CPU, 1 thread)")
    assert "predicted for pi.json (A CPU, 1 thread), not yet measured there" in certificate.sentences(before)[1 + 1]
    file = written(tmp_path / "measured.json", measured(latency=latency))
    after = complete(before, read_measurement(file, before))
    assert (after["status"], after["latency"]["ms"]) == (status, 3.5)
    statement = check_kit_latency(after)
    assert statement.verdict == verdict
    assert statement.why.startswith("3.50 ms on A CPU, 1 thread, predicted: 3.20 (+9.4 %)")
    line = certificate.sentences(after)[2]
    assert "0.50 of it tokenization, measured where the model was fitted" in line
    assert "speed of the float parent" not in line, "it was not measured there"
    assert not any("not yet measured" in one for one in after["why"])
    again = complete(after, read_measurement(file, after))
    assert again["latency"]["ms"] == 3.5, "a later measurement takes the place of the first"
    assert check_kit_latency(again).why == statement.why


@pytest.mark.parametrize(
    ("bound", "whole", "ms", "status", "said"),
    [
        (3.6, 10.2, 3.5, "certified", "2 % slower"),
        (3.6, 9.5, 3.5, "certified", "5 % faster"),
        (3.4, 10.2, 3.5, "infeasible", "2 % slower"),
        (3.4, 12.0, 3.0, "uncertified", "20 % slower"),
        (2.9, 12.0, 3.0, "infeasible", "20 % slower"),
    ],
)
def test_a_machine_that_was_slower_than_its_target_decides_nothing(
    bound: float, whole: float, ms: float, status: str, said: str, tmp_path: Path
) -> None:
    """The model that the target was measured with is timed beside, and took 10 ms there."""
    before = certified(3.2, bound, "pi.json", whole=10.0)
    file = written(tmp_path / "measured.json", measured(latency={"whole": whole}))
    after = complete(before, read_measurement(file, before))
    assert (after["status"], after["latency"]["ms"]) == (status, ms)
    assert f"the machine was {said} than when the target was measured" in check_kit_latency(after).why
    assert (certificate.SLOW in after["why"]) == (status == "uncertified")
    steady = written(tmp_path / "again.json", measured(latency={"whole": 10.0}))
    again = complete(after, read_measurement(steady, after))
    assert (again["status"], again["latency"]["ms"]) == ("infeasible" if bound < 3.5 else "certified", 3.5)
    assert certificate.SLOW not in again["why"]


def test_an_estimate_on_a_slow_machine_certifies_nothing(tmp_path: Path) -> None:
    before = certified(3.2, 3.4, "pi.json", whole=10.0)
    for whole, status in ((10.2, "infeasible"), (12.0, "uncertified")):
        file = written(tmp_path / f"{status}.json", measured(latency={"whole": whole}))
        before = complete(before, read_measurement(file, before))
        assert before["status"] == status
    line = certificate.sentences(before)[2]
    assert "estimated for the speed that the machine had when the target was measured" in line


def test_what_the_target_took_for_the_lengths_of_the_model() -> None:
    latency = certified(3.2, None, "pi.json", whole=10.0)["latency"]
    latency["predicted"]["whole"] = {"8": 2.0, "16": 4.0, "32": 8.0}
    assert compute_whole(latency) == (3.0 + 2 * 5.0) / 2, "12 tokens, and two sequences of 20"
    fixed = {**{key: latency[key] for key in ("predicted",)}, "batch": 4, "length": 16}
    assert compute_whole(fixed) == 4.0


def test_a_kit_times_the_model_again_while_the_machine_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: Iterator[tuple[float, ...]] = iter(())

    def time(rows: Sequence[Sequence[Any]], **_: Any) -> list[Latency]:
        assert [len(row) for row in rows] == [1, 1]
        ours, whole, *share = next(rounds)
        return [Latency(ms, ms, ms, ms, 60, *(share or [1.0]), 0.01) for ms in (ours, whole)]

    monkeypatch.setattr(kit_program, "measure_interleaved", time)
    monkeypatch.setattr(kit_program, "open_file", lambda content, way: lambda feed: content)
    kit = {"file": "model.onnx", "sha256": "", "shapes": [[1, 12]], "vocabulary": 9, "whole": {"file": "w"}}
    found = {}
    for most in (11.0, 12.1):
        rounds = iter([(3.0, 13.0), (2.8, 12.0), (2.9, 12.5)])
        about = {**kit, "whole": {"file": "w", "most_ms": most}}
        found[most] = time_model(about, lambda name: name.encode(), Way("onnxruntime", 1), lambda _: None)["latency"]
    assert [(one["attempts"], one["p50"], one["whole"]) for one in found.values()] == [(3, 2.8, 12.0), (2, 2.8, 12.0)]
    rounds = iter([(2.7, 10.0, 0.5), (2.9, 10.2)])
    about = {**kit, "whole": {"file": "w", "most_ms": 11.0}}
    steady = time_model(about, lambda name: name.encode(), Way("onnxruntime", 1), lambda _: None)["latency"]
    assert (steady["p50"], steady["quiet"]) == (2.9, True), "a measurement that was not disturbed counts"


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"sha256": "b" * 64}, f"sha256 is not that of the certificate: {'b' * 40}, not {'a' * 40}"),
        ({"runtime": "openvino"}, "runtime is not that of the certificate: openvino, not onnxruntime"),
        ({"shapes": [[1, 12]]}, "shapes is not that of the certificate: [(1, 12)], not [(1, 12), (2, 20)]"),
        ({"format": 0}, "format is 0, this version reads 1"),
        ({"latencies": {}}, "unknown key 'latencies'; did you mean 'latency'?"),
        ({"latency": {"repeat": 1}}, "unknown key 'latency.repeat'; did you mean 'repeats'?"),
    ],
)
def test_a_measurement_of_something_else_is_refused(changed: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    file = written(tmp_path / "measured.json", measured(**changed))
    with pytest.raises(UserError) as error:
        read_measurement(file, certified(3.2, None, "pi.json"))
    assert error.value.line().startswith(f"{file}: {complaint}")


# --- lengths -----------------------------------------------------------------------------------------------------


def test_lengths() -> None:
    assert parse_lengths("32, 8,8") == [8, 32]
    for text in ("", "8,", "0,8", "a"):
        with pytest.raises(ValueError):
            parse_lengths(text)
    kit = {"lengths": [8, 16], "positions": 20}
    assert choose_lengths(None, kit) == [8, 16]
    assert choose_lengths([20], kit) == [20]
    with pytest.raises(UserError, match=r"--lengths 21: the model has 20 positions; give at most 20"):
        choose_lengths([21], kit)
    assert default_lengths(CONFIG) == [8, 16, 20]


# --- the kit -----------------------------------------------------------------------------------------------------


SMALL = EncoderConfig(vocabulary=50, hidden=8, layers=(LayerShape(1, 8, 2),) * 2, max_positions=20)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("kit") / "kit.pyz"
    loaded: Any = SimpleNamespace(config=SMALL, heads=HEADS)
    path.write_bytes(build_kit(loaded, [8]))
    return path


def test_a_kit_needs_numpy_and_a_runtime_alone(kit: Path) -> None:
    done = run_kit(kit, "--threads", "1", "--lengths", "4", "--runtime", "onnxruntime", "--output", "here.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "wrote here.json\n"
    assert "onnxruntime, 1 thread: timing" in done.stderr
    target: Target = read_target(kit.with_name("here.json"))
    target.require_shape(SMALL, HEADS)
    assert list(target.content.runtimes["onnxruntime"].lengths) == [4]
    assert target.content.device.threads == "1"
    assert target.content.runtimes["onnxruntime"].lengths[4].static is not None
    assert target.blocks(SERVING, SMALL, HEADS, 4).ms >= 0
    assert sorted(path.name for path in kit.parent.iterdir()) == ["here.json", "kit.pyz"], "nothing half-written"


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--lengths", "8,x"], 2, "--lengths 8,x: not a list of lengths; give numbers of tokens, such as 8,16,32"),
        (["--lengths", "64"], 2, "--lengths 64: the model has 20 positions; give at most 20"),
        (["--threads", "0"], 2, "--threads 0: give a number above 0"),
        (["--threads", "3"], 2, "--threads 3: this process may use 2 CPUs; give at most 2"),
        (["--output", "kit.pyz"], 3, "kit.pyz: exists already; name another file"),
        (["--output", "no/target.json"], 2, "no: no such folder; make it, or name another"),
    ],
)
def test_what_a_kit_is_asked_in_error(
    args: list[str], code: int, message: str, kit: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(kit.parent)
    monkeypatch.setattr(kit_program, "read_cpus", lambda: Cpus(8, 2, None))
    assert main(kit, args) == code
    assert capsys.readouterr() == ("", f"{message}\n")
    assert not kit.with_name("target.json").exists()


@pytest.mark.parametrize("part", [b"kit.json", b"compress/fit/target/kit_program.py"])
def test_a_kit_with_changed_bytes_says_so(part: bytes, kit: Path, tmp_path: Path) -> None:
    damaged = bytearray(kit.read_bytes())
    start = damaged.index(part) + len(part) + 40
    damaged[start : start + 8] = bytes(8)
    (tmp_path / "copy.pyz").write_bytes(damaged)
    done = run_kit(tmp_path / "copy.pyz")
    assert (done.returncode, done.stderr) == (1, "copy.pyz: the file is damaged; copy it here again\n")


def test_a_kit_finds_a_folder_that_it_cannot_write_to_before_it_measures(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(kit_program, "time_blocks", lambda *_: pytest.fail("measured first"))
    monkeypatch.setattr(Path, "write_text", fail_with(errno.EROFS))
    assert main(kit, ["--threads", "1", "--output", str(tmp_path / "t.json")]) == 5
    assert "t.json: the file system is read-only; write somewhere else" in capsys.readouterr().err


def test_a_kit_leaves_nothing_on_a_full_disk(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def measure(*_: object) -> dict[str, Any]:
        monkeypatch.setattr(os, "replace", fail_with(errno.ENOSPC))
        return {}

    monkeypatch.setattr(kit_program, "time_blocks", measure)
    assert main(kit, ["--threads", "1", "--output", str(tmp_path / "t.json")]) == 5
    assert "t.json: the disk is full" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def fail_with(number: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_kit_says_that_numpy_is_missing(kit: Path) -> None:
    program = "import runpy, sys; sys.modules['numpy'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program, str(kit)], capture_output=True, text=True, cwd=kit.parent)
    assert (done.returncode, done.stderr) == (1, "numpy is required: pip install numpy\n")


def test_a_runtime_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kit_program.util, "find_spec", lambda name: None)
    for asked, name in ((None, "onnxruntime"), ("openvino", "openvino")):
        with pytest.raises(UserError, match=f"--runtime: {name} is not installed; pip install {name}") as error:
            kit_program.find_runtimes(asked)
        assert error.value.code == ExitCode.ENVIRONMENT
    values = content()
    values["runtimes"]["openvino"] = values["runtimes"].pop("onnxruntime")
    target = read_target(written(tmp_path / "target.json", values))
    monkeypatch.setattr(target_costs, "versions", lambda: {"openvino": None, "onnxruntime": "1"})
    console: Any = SimpleNamespace(note=lambda _: None)
    with pytest.raises(UserError, match="openvino is not installed"):
        target_costs.choose_runtimes(target, None, console)
    with pytest.raises(UserError, match=r"target\.json: runtimes has no 'onnxruntime'"):
        target_costs.choose_runtimes(target, "onnxruntime", console)


def test_the_weights_of_a_kit_take_little_space() -> None:
    model = repeat_weights(Model(CONFIG, HEADS).initialize(0))
    numbers = model.encoder.layers[0].feed_forward  # pyright: ignore[reportAttributeAccessIssue]
    weight = next(p for p in numbers.parameters() if p.dim() > 1).detach().flatten()
    assert len(weight) <= 1024 or bool((weight[1024:] == weight[: len(weight) - 1024]).all())
    assert float(weight.std()) > 0
