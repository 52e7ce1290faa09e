"""A run that was stopped or killed anywhere and resumed equals one that was not, bit for bit."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from example_counts import thorough_but
from training_toy import (
    PLAN,
    Flag,
    Log,
    Server,
    Source,
    prints,
    run,
    sha,
    toy_module,
    validate,
    weights_print,
    without_weights,
)

from compress.errors import ExitCode, Stopped, UserError
from compress.storage import faults
from compress.training import rng
from compress.training.optimizer import Optimizer
from compress.training.state import TrainState


def stopping_at(step: int, flag: Flag) -> Source:
    return Source(hooks={step: lambda: setattr(flag, "requested", "SIGTERM")})


def stopped_run(folder: Path, step: int) -> None:
    """Train until the stop flag is raised during step number `step`, counted from 0."""
    flag = Flag()
    with pytest.raises(Stopped, match=f"stopped by SIGTERM after step {step + 1} of 12; the state is saved"):
        run(folder, stop=flag, source=stopping_at(step, flag))


@pytest.mark.parametrize("cut", thorough_but([0, 4, 8, 11], range(12)))
def test_every_cut_ends_with_the_same_bits(cut: int, tmp_path: Path, whole: dict[str, str]) -> None:
    stopped_run(tmp_path, cut)
    result, module = run(tmp_path, resume=True)
    assert prints(tmp_path, module) == whole
    assert result.steps == 12
    assert result.notes == []


def test_a_stop_before_the_first_step_is_a_cut_like_any_other(tmp_path: Path, whole: dict[str, str]) -> None:
    with pytest.raises(Stopped, match="after step 0 of 12"):
        run(tmp_path, stop=Flag("SIGINT"))
    _, module = run(tmp_path, resume=True)
    assert prints(tmp_path, module) == whole


def test_many_stops_in_one_run(tmp_path: Path, whole: dict[str, str]) -> None:
    for cut in (1, 2, 6, 10):
        flag = Flag()
        with pytest.raises(Stopped):
            run(tmp_path, stop=flag, source=stopping_at(cut, flag), resume=True)
    _, module = run(tmp_path, resume=True)
    assert prints(tmp_path, module) == whole


def halves(tmp_path: Path) -> tuple[dict[Any, dict[str, float]], dict[Any, dict[str, float]]]:
    """The log of an undisturbed run, and of one that was stopped in the middle of a line of the log."""

    def lines(*logs: Log) -> dict[Any, dict[str, float]]:
        merged: dict[Any, dict[str, float]] = {}
        for log in logs:
            for step, values in log.lines:
                merged.setdefault(step, {}).update(values)
        for values in merged.values():
            for name in ("train/tokens_per_second", "train/joules_per_1000_rows", "energy/training_joules"):
                values.pop(name, None)
        return merged

    undisturbed, first, second, flag, plan = Log(), Log(), Log(), Flag(), {"log_every": 4}
    run(tmp_path / "a", log=undisturbed, plan=plan)
    with pytest.raises(Stopped):
        run(tmp_path / "b", log=first, stop=flag, source=stopping_at(5, flag), plan=plan)
    run(tmp_path / "b", log=second, resume=True, plan=plan)
    return lines(undisturbed), lines(first, second)


def test_the_log_of_both_halves_is_the_log_of_the_whole(tmp_path: Path) -> None:
    whole, both = halves(tmp_path)
    assert both == whole


def test_forgetting_half_a_line_of_the_log_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forgetting("window")(None, monkeypatch)
    whole, both = halves(tmp_path)
    assert both != whole


def test_resuming_a_finished_run_only_tells_its_result_again(tmp_path: Path, whole: dict[str, str]) -> None:
    first, module = run(tmp_path)
    again, same = run(tmp_path, resume=True)
    assert weights_print(same) == weights_print(module)
    assert (again.best_step, again.best, again.history) == (first.best_step, first.best, first.history)
    assert prints(tmp_path, same) == whole


@pytest.mark.parametrize("cut", [4, 8])
def test_equal_scores_are_decided_after_a_resume_as_without_one(cut: int, tmp_path: Path) -> None:
    losses = {2: 5.0, 4: 2.0, 6: 3.0, 8: 2.0, 10: 2.5, 12: 4.0}

    def tied(module: Any) -> dict[str, float]:
        return {"f1": 0.0, "loss": losses[int(module.student.seen) // 4]}

    how: dict[str, Any] = {"validate": tied, "select": ("f1", "max"), "watched": {"loss": "min"}}
    result, module = run(tmp_path / "whole", **how)
    assert result.best_step == 8
    flag = Flag()
    with pytest.raises(Stopped):
        run(tmp_path / "cut", stop=flag, source=stopping_at(cut, flag), **how)
    again, same = run(tmp_path / "cut", resume=True, **how)
    assert again.best_step == 8
    assert prints(tmp_path / "cut", same) == prints(tmp_path / "whole", module)


def test_a_validation_that_stops_is_repeated_on_resume(tmp_path: Path, whole: dict[str, str]) -> None:
    flag = Flag()

    def interrupted(module: Any) -> dict[str, float]:
        torch.rand(17)
        if module.student.seen < 12:
            return validate(module)
        flag.requested = "SIGHUP"
        raise Stopped("asked to")

    with pytest.raises(Stopped, match="stopped by SIGHUP during validation after step 4"):
        run(tmp_path, validate=interrupted, stop=flag)
    _, module = run(tmp_path, resume=True)
    assert prints(tmp_path, module) == whole


# --- negative controls: each part of the state, left out, must show ---------------------------------------------


def forget_moments(state: TrainState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Optimizer, "load", lambda self, tensors: None)


def forget_randomness(state: TrainState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng, "restore", lambda tensors, device: None)


def forgetting(*names: str) -> Callable[[Any, pytest.MonkeyPatch], None]:
    def forget(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        original = TrainState.restore

        def partial(self: TrainState, tensors: Any, counters: Any) -> None:
            fresh = {name: getattr(self, name) for name in names}
            original(self, tensors, counters)
            for name, value in fresh.items():
                setattr(self, name, value)

        monkeypatch.setattr(TrainState, "restore", partial)

    return forget


@pytest.mark.thorough
@pytest.mark.parametrize(
    "forget",
    [
        pytest.param(forget_moments, id="optimizer"),
        pytest.param(forget_randomness, id="rng"),
        pytest.param(forgetting("epoch", "index"), id="position"),
        pytest.param(forgetting("step"), id="schedule"),
        pytest.param(forgetting("best"), id="best"),
        pytest.param(forgetting("history"), id="history"),
        pytest.param(forgetting("tokens"), id="tokens"),
    ],
)
def test_forgetting_any_part_of_the_state_shows(
    forget: Any, tmp_path: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_run(tmp_path, 6)  # in the middle of an epoch, of a log window, and behind the best validation
    forget(None, monkeypatch)
    _, module = run(tmp_path, resume=True)
    assert prints(tmp_path, module) != whole


def test_a_wrong_seed_of_the_same_length_shows(tmp_path: Path, whole: dict[str, str]) -> None:
    _, module = run(tmp_path, seed=1)
    assert prints(tmp_path, module) != whole


# --- kills ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_killed_at_random_steps(server: Server, tmp_path: Path, whole: dict[str, str]) -> None:
    random_ = random.Random(5)
    for trial in range(4):
        folder = tmp_path / str(trial)
        for kill in sorted(random_.sample(range(12), 2)):
            code, said = server.ask(folder=str(folder), resume=True, kill_at=kill)
            assert code == -9, said
        code, said = server.ask(folder=str(folder), resume=True)
        assert code == 0, said
        assert prints(folder) == without_weights(whole)


def test_sigterm_saves_and_resumes(server: Server, tmp_path: Path, whole: dict[str, str]) -> None:
    for trial, step in enumerate((0, 4, 7, 11)):
        folder = tmp_path / str(trial)
        code, said = server.ask(folder=str(folder), signal_at=step)
        assert code == ExitCode.STOPPED, said
        assert f"stopped by SIGTERM after step {step + 1} of 12; the state is saved" in said
        assert server.ask(folder=str(folder), resume=True)[0] == 0
        assert prints(folder) == without_weights(whole)


def passed_points(folder: Path) -> list[tuple[str, int]]:
    """Every fault point that an undisturbed run passes, in order."""
    with faults.record_points() as hits:
        run(folder)
    return list(hits)


@pytest.mark.thorough
def test_killed_at_every_point_of_the_checkpoint_writer(server: Server, tmp_path: Path, whole: dict[str, str]) -> None:
    hits = passed_points(tmp_path / "recorded")
    names = {name for name, _ in hits}
    assert set(faults.points("checkpoint.")) <= names
    for number, (name, nth) in enumerate(chosen(hits)):
        folder = tmp_path / str(number)
        code, said = server.ask(folder=str(folder), fault=f"{name}:{nth}:kill")
        assert code == -9, f"{name}:{nth} did not kill: {said}"
        code, said = server.ask(folder=str(folder), resume=True)
        assert code == 0, f"after {name}:{nth}: {said}"
        assert prints(folder) == without_weights(whole), f"after {name}:{nth}"


def chosen(hits: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Of each point a late hit, when older checkpoints are there to lose; of the checkpoint's own also the first."""
    by_name: dict[str, list[int]] = {}
    for name, nth in hits:
        by_name.setdefault(name, []).append(nth)
    late = {name: counts[len(counts) * 3 // 4] for name, counts in by_name.items()}
    first = {(name, 1) for name in by_name if name.startswith("checkpoint.")}
    return sorted(first | late.items())


# --- damage -----------------------------------------------------------------------------------------------------


def newest(folder: Path, back: int = 1) -> Path:
    return sorted((folder / "checkpoints").glob("step-*"))[-back]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 16
    path.write_bytes(bytes(data))


FILES = ("model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json", "manifest.json")
DAMAGES = list(itertools.product(FILES, ("flip", "truncate", "remove")))
TRIED = [("optimizer.safetensors", "flip"), ("state.json", "truncate"), ("manifest.json", "remove")]


@pytest.mark.parametrize(("name", "damage"), thorough_but(TRIED, DAMAGES))
def test_a_damaged_newest_checkpoint_is_passed_over(
    name: str, damage: str, tmp_path: Path, whole: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    stopped_run(tmp_path, 7)
    path = newest(tmp_path) / name
    if damage == "flip":
        flip(path, 1234)
    elif damage == "truncate":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        path.unlink()
    _, module = run(tmp_path, resume=True)
    assert prints(tmp_path, module) == whole
    assert "checkpoint step-00000008 is damaged (" in caplog.text
    assert "continuing from step-00000006" in caplog.text


def test_damaged_best_weights_spoil_the_checkpoints_that_name_them(tmp_path: Path) -> None:
    stopped_run(tmp_path, 7)
    best = json.loads((newest(tmp_path) / "state.json").read_text())["state"]["best"]["folder"]
    flip(tmp_path / "checkpoints" / best / "model.safetensors", 300)
    with pytest.raises(UserError, match=f"{best}: model.safetensors: content changed") as caught:
        run(tmp_path, resume=True)
    assert caught.value.code == ExitCode.DATA


def test_without_a_valid_checkpoint_nothing_starts(tmp_path: Path) -> None:
    stopped_run(tmp_path, 7)
    for path in (tmp_path / "checkpoints").glob("step-*"):
        flip(path / "model.safetensors", 99)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(UserError) as caught:
        run(tmp_path, resume=True)
    assert caught.value.code == ExitCode.DATA
    line = caught.value.line()
    assert "no valid checkpoint is left: step-00000008: model.safetensors: content changed" in line
    assert "step-00000006: model.safetensors: content changed" in line
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


# --- what a checkpoint belongs to -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 4}, "seed 0 → 4"),
        ({"plan": {"learning_rate": 0.5}}, "training.learning_rate 0.02 → 0.5"),
        ({"plan": {"steps": 20}}, "training.steps 12 → 20, total steps 12 → 20"),
        ({"source": Source(fingerprint="other")}, "data toy → other"),
        ({"identity": {"recipe": "toy", "tokenizer": "abc"}}, "tokenizer (none) → abc"),
        ({"identity": {"recipe": "f" * 64}}, "recipe toy → ffffffffffffffff…"),
    ],
)
def test_another_run_is_refused_with_a_diff(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    stopped_run(tmp_path, 4)
    with pytest.raises(UserError) as caught:
        run(tmp_path, resume=True, **change)
    assert caught.value.code == ExitCode.REFUSED
    assert "cannot resume: the saved run has different settings" in caught.value.line()
    assert said in caught.value.line()


def test_how_often_one_saves_and_logs_may_change(tmp_path: Path) -> None:
    stopped_run(tmp_path, 4)
    plan = {"checkpoint_every": 5, "log_every": 3, "keep_checkpoints": 4}
    result, _ = run(tmp_path, resume=True, plan=plan)
    assert result.steps == PLAN["steps"]


def test_another_environment_is_allowed_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stopped_run(tmp_path, 4)
    log = Log()
    result, _ = run(tmp_path, resume=True, environment={"threads": "64"}, log=log)
    assert result.notes == ["not bit-exact: threads 1 → 64"]
    assert log.tagged == {"compress.resumed": "not bit-exact: threads 1 → 64"}
    assert caplog.text.count("not bit-exact: threads 1 → 64") == 1


def test_checkpoints_of_an_earlier_run_are_not_overwritten(tmp_path: Path) -> None:
    stopped_run(tmp_path, 4)
    with pytest.raises(
        UserError, match="the folder contains checkpoints of an earlier run; continue it with --resume"
    ) as caught:
        run(tmp_path)
    assert caught.value.code == ExitCode.REFUSED


def test_resuming_where_nothing_was_saved_starts_and_says_so(
    tmp_path: Path, whole: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    _, module = run(tmp_path, resume=True)
    assert prints(tmp_path, module) == whole
    assert "no checkpoint was written yet, starting from step 0" in caplog.text


def test_a_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    stopped_run(tmp_path, 4)
    module = toy_module()
    module.student.extra = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(UserError, match=r"weights do not match this model: 'student\.extra' is missing on one side"):
        run(tmp_path, resume=True, module=module)


def test_prints_are_of_the_files(tmp_path: Path) -> None:
    _, module = run(tmp_path)
    found = prints(tmp_path, module)
    assert set(found) == {
        "step/model.safetensors",
        "step/optimizer.safetensors",
        "step/rng.safetensors",
        "best/model.safetensors",
        "counters",
        "weights",
    }
    assert found["step/model.safetensors"] == sha((newest(tmp_path) / "model.safetensors").read_bytes())
