"""What the loop computes: exact accumulation, skipped steps, the best weights, the log, and how it fails."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_toy import (
    Flag,
    Log,
    Source,
    Told,
    context,
    prints,
    run,
    split,
    toy_batch,
    toy_module,
    validate,
    weights_print,
)

from compress.contracts import Batch, TrainingPlan
from compress.encoder.config.encoder import EncoderConfig
from compress.errors import ExitCode, Stopped, UserError
from compress.storage import atomic, disk, faults
from compress.training import checkpoint, memory
from compress.training.loop import train
from compress.training.module import Term
from compress.training.optimizer import Optimizer


def refusal(call: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        call()
    return caught.value


# --- gradient accumulation --------------------------------------------------------------------------------------


class Pieces:
    """One batch a step, cut into micro-batches at the given rows; some rows have no label."""

    fingerprint = "pieces"

    def __init__(self, cuts: list[int]) -> None:
        self.cuts = cuts

    def steps(self, epoch: int) -> int:
        return 3

    def step(self, epoch: int, index: int) -> list[Batch]:
        batch = toy_batch(epoch * 3 + index, rows=9)
        assert batch.labels is not None
        batch.labels[[1, 4, 5]] = -100
        return split(batch, self.cuts)


@pytest.mark.parametrize("cuts", [[1], [4], [1, 2, 3, 4, 5, 6, 7, 8], [4, 6]])
def test_micro_batches_are_one_batch(cuts: list[int], tmp_path: Path) -> None:
    """[4, 6] makes a micro-batch whose rows have no label at all."""

    def weights(cuts: list[int], folder: Path) -> tuple[dict[str, torch.Tensor], Log]:
        module, log = toy_module(dropout=0).double(), Log()
        module._teacher = (lambda batch, needs: _double_teacher(batch, needs),)
        run(folder, module=module, source=Pieces(cuts), plan={"steps": 6, "log_every": 1}, log=log, validate=None)
        return dict(module.state_dict()), log

    (whole, log), (pieces, piece_log) = weights([], tmp_path / "whole"), weights(cuts, tmp_path / "pieces")
    for name, value in whole.items():
        if name != "student.seen":
            torch.testing.assert_close(pieces[name], value, rtol=1e-7, atol=1e-9)
    for (_, a), (_, b) in zip(log.lines, piece_log.lines, strict=True):
        for name in ("train/loss", "train/hard_labels", "train/soft_targets", "train/grad_norm"):
            assert b[name] == pytest.approx(a[name], rel=1e-7)


def _double_teacher(batch: Batch, needs: Any) -> Any:
    from training_toy import Student

    return Student(seed=9).double().eval()(batch, needs)


def test_a_batch_mean_would_not_have_been_exact(tmp_path: Path) -> None:
    """The control of the test above: means of means differ where micro-batches differ in size."""
    batches = Pieces([1]).step(0, 0)
    module = toy_module(dropout=0)
    counts = [module.counts(b)["hard_labels"] for b in batches]
    assert counts == [1, 5]


# --- bad numbers ------------------------------------------------------------------------------------------------


class Poisoned(nn.Module):
    """A toy whose loss, or gradient, is not finite at some steps."""

    def __init__(self, at: set[int], where: str = "loss") -> None:
        super().__init__()
        self.inner, self.at, self.where = toy_module(), at, where
        self.student = self.inner.student
        self.calls = 0

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return self.inner.counts(batch)

    def forward(self, batch: Batch) -> dict[str, Term]:
        step = self.calls // 2  # two micro-batches a step
        self.calls += 1
        terms = self.inner(batch)
        if step in self.at and self.calls % 2 == 0:
            name, term = next(iter(terms.items()))
            poison = math.nan if self.where == "loss" else _NanGradient.apply(torch.ones(()).requires_grad_())
            extra = (
                poison if self.where == "loss" else poison * 0 + _NanGradient.apply(self.student.head.bias).sum() * 0
            )
            terms[name] = Term(term.value + extra, term.weight, term.count)
        return terms


class _NanGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.full_like(grad, math.inf)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_bad_step_changes_nothing(where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[str, list[str]]] = []

    class Spy(Told):
        def update(self, done: int, **figures: Any) -> None:
            moments = torch.cat([v.flatten() for v in moments_of(module).values()])
            seen.append((weights_of(module), [str(moments.tolist())]))

    module = Poisoned({4, 7}, where)
    log = Log()
    result, _ = run(tmp_path, module=module, progress=Spy(), log=log, validate=None)
    assert seen[4] == seen[3]
    assert seen[5] != seen[4]
    assert seen[7] == seen[6]
    assert result.skipped_steps == 2
    assert all(torch.isfinite(p).all() for p in module.parameters())
    what = "loss is nan" if where == "loss" else "grad_norm is inf"
    assert f"step 5 skipped: {'hard_labels is nan, ' if where == 'loss' else ''}{what}; rows " in caplog.text
    assert log.lines[-1][1]["train/skipped_steps"] == 2
    assert math.isfinite(log.lines[2][1]["train/loss"])


def weights_of(module: nn.Module) -> str:
    return weights_print(nn.ParameterList(module.parameters()))


def moments_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Of the optimizer that was made last: the one of `module`."""
    return _optimizers[-1].state()


_optimizers: list[Optimizer] = []


@pytest.fixture(autouse=True)
def remember_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Optimizer.__init__

    def init(self: Optimizer, *args: Any) -> None:
        original(self, *args)
        _optimizers.append(self)

    monkeypatch.setattr(Optimizer, "__init__", init)


def test_too_many_bad_steps_in_a_row_stop_the_run(tmp_path: Path) -> None:
    module = Poisoned({7, 8, 9, 10, 11})
    error = refusal(lambda: run(tmp_path, module=module, validate=None, plan={"max_bad_steps": 2}))
    assert error.code == ExitCode.DATA
    rows = [int(row) for batch in Source().step(1, 4) for row in batch.row_ids]
    listed = ", ".join(map(str, rows))
    assert error.line() == (
        f"step 10: training produced non-finite values: hard_labels is nan, loss is nan, 3 such steps in a row; rows "
        f"{listed}; lower the learning rate or check these rows; "
        f"last good checkpoint: {tmp_path}/checkpoints/step-00000009"
    )
    saved = checkpoint.Checkpoints(tmp_path / "checkpoints", 2).newest()
    assert saved is not None
    assert all(torch.isfinite(t).all() for t in saved.tensors()["model"].values())


@pytest.mark.parametrize(
    ("steps", "why"), [(2, "the loss or gradient of all 2 steps was not finite"), (1, "in its only step")]
)
def test_a_run_without_a_good_step_fails(steps: int, why: str, tmp_path: Path) -> None:
    """Fewer steps than are forgiven in a row, and nothing was learned in any."""
    module = Poisoned(set(range(steps)))
    error = refusal(lambda: run(tmp_path, module=module, validate=None, plan={"steps": steps, "max_bad_steps": 9}))
    assert error.code == ExitCode.DATA
    assert error.line().startswith(f"step {steps}: training produced non-finite values: {why}; lower the learning rate")
    assert checkpoint.Checkpoints(tmp_path / "checkpoints", 2).newest() is None


def test_good_steps_between_bad_ones_forgive(tmp_path: Path) -> None:
    result, _ = run(tmp_path, module=Poisoned({2, 4, 6, 8}), validate=None, plan={"max_bad_steps": 1})
    assert result.skipped_steps == 4


def test_no_patience_stops_at_the_first(tmp_path: Path) -> None:
    error = refusal(lambda: run(tmp_path, module=Poisoned({0}), validate=None, plan={"max_bad_steps": 0}))
    assert error.where == "step 1"
    assert "last good checkpoint: none yet" in error.line()


def test_a_step_without_any_label_moves_on(tmp_path: Path) -> None:
    class Unlabelled(Source):
        def step(self, epoch: int, index: int) -> list[Batch]:
            batches = super().step(epoch, index)
            for batch in batches if (epoch, index) == (0, 2) else []:
                assert batch.labels is not None
                batch.labels[:] = -100
            return batches

    module = toy_module()
    module.objectives.pop("soft_targets")
    result, _ = run(tmp_path, module=module, source=Unlabelled(), validate=None)
    assert (result.steps, result.skipped_steps) == (12, 0)


# --- validation and the best weights ----------------------------------------------------------------------------


def test_the_best_weights_win(tmp_path: Path) -> None:
    at_four: dict[str, str] = {}

    def spying(module: Any) -> dict[str, float]:
        if module.student.seen == 16:
            at_four["weights"] = weights_print(module)
        return validate(module)

    said: list[str] = []
    result, module = run(tmp_path, validate=spying, say=said.append)
    assert result.best_step == 4
    assert said == ["validation early did not rise after step 4: the result has the weights of that step"]
    assert {"step": 4, **result.best} == result.history[1]
    assert result.best["early"] == 0
    assert weights_print(module) == at_four["weights"]
    assert not module.training
    assert [row["step"] for row in result.history] == [2, 4, 6, 8, 10, 12]


def test_weights_that_no_step_improved_are_said_to_be_those_before_training(tmp_path: Path) -> None:
    """A student that is its start bit for bit would pass for a trained one."""
    said: list[str] = []
    start = {"validate_start": True}
    worse = iter(range(100, 0, -1))
    how: dict[str, Any] = {"select": ("x", "max"), "plan": start, "say": said.append}
    result, _ = run(tmp_path / "a", validate=lambda module: {"x": float(next(worse))}, **how)
    assert result.best_step == 0
    assert [line for line in said if "before training" in line] == [
        "validation never improved: the result has the weights from before training"
    ]
    said.clear()
    better = iter(range(100))
    result, _ = run(tmp_path / "b", validate=lambda module: {"x": float(next(better))}, **how)
    assert result.best_step == 12
    assert not any("before training" in line for line in said)


def test_the_last_weights_stay_when_asked(tmp_path: Path) -> None:
    result, module = run(tmp_path, plan={"keep_best": False})
    assert result.best_step is None
    assert module.student.seen == 48
    assert set(result.last) == {"loss", "early"}


def test_validation_is_at_epoch_ends_unless_told_otherwise(tmp_path: Path) -> None:
    result, _ = run(tmp_path, plan={"validate_every": None})
    assert [row["step"] for row in result.history] == [5, 10, 12]


def test_many_short_epochs_are_not_all_validated(tmp_path: Path) -> None:
    result, _ = run(tmp_path, plan={"validate_every": None, "steps": 220})
    assert [row["step"] for row in result.history] == [*range(15, 220, 15), 220]


def test_validating_more_often_does_not_change_the_training(tmp_path: Path) -> None:
    prints_ = []
    for every in (1, 5):
        _, module = run(tmp_path / str(every), plan={"validate_every": every, "keep_best": False})
        prints_.append(weights_print(module))
    assert prints_[0] == prints_[1]


def test_smaller_can_be_better(tmp_path: Path) -> None:
    result, _ = run(tmp_path, select=("early", "min"))
    assert result.best_step == 12


NAN = math.nan
LOSSES: dict[str, tuple[list[float], int]] = {
    "falls": ([6, 5, 4, 3, 2, 1], 12),
    "rises": ([1, 2, 3, 4, 5, 6], 2),
    "equal": ([1] * 6, 12),
    "between": ([3, 2, 1, 1, 2, 3], 8),
    "is not finite": ([NAN, NAN, 2, NAN, 3, NAN], 6),
}


@pytest.mark.parametrize(("losses", "step"), LOSSES.values(), ids=LOSSES)
def test_of_equal_scores_the_lower_loss_wins_and_of_equal_losses_the_later(
    losses: list[float], step: int, tmp_path: Path
) -> None:
    """Of a tagger whose F1 stays 0 at first, the earliest weights won."""
    figures = iter(losses)
    validate = lambda module: {"x": 0.0, "loss": next(figures)}  # noqa: E731
    result, _ = run(tmp_path, validate=validate, select=("x", "max"), watched={"loss": "min"})
    assert result.best_step == step


def test_of_equal_scores_without_a_loss_the_later_wins(tmp_path: Path) -> None:
    result, _ = run(tmp_path, validate=lambda module: {"x": 0.0}, select=("x", "max"), watched={"loss": "min"})
    assert result.best_step == 12


def test_a_lower_loss_does_not_outweigh_a_score(tmp_path: Path) -> None:
    scores, losses = iter([0, 1, 0, 1, 0, 0]), iter([6, 5, 4, 6, 2, 1])
    validate = lambda module: {"x": next(scores), "loss": next(losses)}  # noqa: E731
    result, _ = run(tmp_path, validate=validate, select=("x", "max"), watched={"loss": "min"})
    assert result.best_step == 4


def test_a_metric_that_is_not_finite_never_wins(tmp_path: Path) -> None:
    figures = iter([math.nan, math.inf, 0.5, -math.inf, 0.25, math.nan])
    log = Log()
    result, _ = run(tmp_path, validate=lambda module: {"x": next(figures)}, select=("x", "max"), log=log)
    assert (result.best_step, result.best) == (6, {"x": 0.5})
    assert [values for _, values in log.lines if "val/x" in values] == [{"val/x": 0.5}, {"val/x": 0.25}]
    again, _ = run(tmp_path, select=("x", "max"), resume=True)
    assert math.isnan(again.history[0]["x"])
    assert again.history[1]["x"] == math.inf


def test_selecting_by_an_unknown_metric_is_refused(tmp_path: Path) -> None:
    error = refusal(lambda: run(tmp_path, select=("f1", "max")))
    assert error.line() == "unknown metric 'f1' to select by: validation reports early, loss"


# --- log and progress -------------------------------------------------------------------------------------------


def test_what_is_logged(tmp_path: Path) -> None:
    log, told = Log(), Told()
    run(tmp_path, log=log, progress=told, plan={"log_every": 5})
    lines = {step: values for step, values in log.lines if "train/loss" in values}
    assert list(lines) == [5, 10, 12]
    assert set(lines[5]) == {
        "train/loss",
        "train/grad_norm",
        "train/hard_labels",
        "train/soft_targets",
        "train/learning_rate",
        "train/tokens_per_second",
    }
    line = lines[5]
    assert line["train/loss"] == pytest.approx(0.5 * line["train/hard_labels"] + line["train/soft_targets"])
    assert [done for done, _ in told.updates] == [*range(1, 13), 12]
    assert {"loss", "tokens/s"} <= set(told.updates[0][1])


def test_a_run_resumed_at_its_last_step_tells_no_loss_that_it_does_not_know(tmp_path: Path) -> None:
    run(tmp_path)
    told = Told()
    run(tmp_path, progress=told, resume=True)
    ((done, figures),) = told.updates
    assert done == 12
    assert "loss" not in figures


# --- checkpoints on the disk ------------------------------------------------------------------------------------


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_what_stays_on_the_disk(tmp_path: Path) -> None:
    run(tmp_path)
    assert names(tmp_path) == ["best-00000004", "step-00000009", "step-00000012"]
    newest = tmp_path / "checkpoints" / "step-00000012"
    files = {"manifest.json", "model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json"}
    assert {path.name for path in newest.iterdir()} == files
    for path in (tmp_path / "checkpoints").iterdir():
        assert atomic.verify_folder(path) == []


def test_bests_do_not_pile_up_between_checkpoints(tmp_path: Path) -> None:
    class Count(Told):
        most = 0

        def update(self, done: int, **figures: Any) -> None:
            self.most = max(self.most, sum(name.startswith("best") for name in names(tmp_path)))

    told = Count()
    rising = iter(range(100))
    plan = {"validate_every": 1, "checkpoint_every": 100}
    run(tmp_path, plan=plan, progress=told, validate=lambda m: {"x": next(rising)}, select=("x", "max"))
    assert told.most == 1


def test_what_others_put_there_stays(tmp_path: Path) -> None:
    precious = tmp_path / "checkpoints" / "step-00000001"
    precious.mkdir(parents=True)
    (precious / "notes.txt").write_text("mine")
    (tmp_path / "checkpoints" / "stepmother").mkdir()
    flag = Flag("SIGTERM")
    error = refusal(lambda: run(tmp_path, stop=flag))
    assert error.code == ExitCode.REFUSED
    (precious / "notes.txt").rename(tmp_path / "notes.txt")
    assert (tmp_path / "checkpoints" / "stepmother").is_dir()


def test_discard_removes_what_is_ours(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "checkpoints" / "stepmother").mkdir()
    checkpoint.Checkpoints(tmp_path / "checkpoints", 2).discard()
    assert names(tmp_path) == ["stepmother"]


@pytest.mark.parametrize("kind", ["enospc", "eio"])
def test_a_disk_that_fails_once_is_tried_again(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "whole")
    with faults.arm_fault("checkpoint.after_files", kind, nth=2):
        _, module = run(tmp_path / "broken")
    assert prints(tmp_path / "broken", module) == prints(tmp_path / "whole", module)
    assert "checkpoint at step 6 failed, trying again later" in caplog.text
    assert ("the disk is full" if kind == "enospc" else "the disk failed (EIO)") in caplog.text
    assert names(tmp_path / "broken") == ["best-00000004", "step-00000009", "step-00000012"]


def test_a_best_that_could_not_be_written_still_wins(tmp_path: Path) -> None:
    _, module = run(tmp_path / "whole")
    with faults.arm_fault("file.after_chunk", "enospc", nth=_chunks_before_second_best(tmp_path / "counted")):
        result, same = run(tmp_path / "broken")
    assert result.best_step == 4
    assert weights_print(same) == weights_print(module)
    assert prints(tmp_path / "broken", same) == prints(tmp_path / "whole", module)


def _chunks_before_second_best(folder: Path) -> int:
    with faults.record_points() as hits:
        run(folder)
    second = [i for i, (name, _) in enumerate(hits) if name == "checkpoint.after_best"][1]
    return max(nth for name, nth in hits[:second] if name == "file.after_chunk")


def test_a_disk_that_stays_full_ends_the_run_with_the_old_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = atomic.write_safetensors

    def full(path: Path, tensors: Any, metadata: Any = None) -> None:
        if len(names(tmp_path)) > 2:
            raise disk.explain(OSError(errno.ENOSPC, "x"), path) from OSError(errno.ENOSPC, "x")
        original(path, tensors, metadata)

    monkeypatch.setattr(atomic, "write_safetensors", full)
    error = refusal(lambda: run(tmp_path, plan={"checkpoint_every": 2, "keep_best": False}))
    assert error.code == ExitCode.RESOURCES
    assert "the disk is full" in error.line()
    assert "3 checkpoints in a row failed" in error.line()
    assert error.line().endswith("then use --resume")
    assert all(not atomic.verify_folder(tmp_path / "checkpoints" / name) for name in names(tmp_path))


def test_stopping_on_a_full_disk_says_where_it_will_continue(tmp_path: Path) -> None:
    flag = Flag()
    source = Source(hooks={4: lambda: setattr(flag, "requested", "SIGTERM")})
    with faults.arm_fault("checkpoint.after_files", "enospc", nth=2), pytest.raises(Stopped) as caught:
        run(tmp_path, stop=flag, source=source)
    assert str(caught.value) == (
        "stopped by SIGTERM after step 5 of 12; the state could not be saved, training will continue from step-00000003"
    )


def test_a_disk_without_room_is_refused_before_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda path: 5000)
    error = refusal(lambda: run(tmp_path, source=Source(hooks={0: lambda: pytest.fail("a step was made")})))
    assert error.code == ExitCode.RESOURCES
    assert "the disk is full" in error.line()
    assert "kB needed, " in error.line()


def test_a_vanished_folder_does_not_come_back_as_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "run"
    source = Source(hooks={4: lambda: folder.rename(tmp_path / "gone") and None})
    error = refusal(lambda: run(folder, source=source, plan={"checkpoint_every": 1, "keep_best": False}))
    assert error.code == ExitCode.RESOURCES
    assert not folder.exists()
    assert "the folder to write to no longer exists" in caplog.text


# --- memory, precision, length ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
        ),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
)
def test_out_of_memory_is_one_line(failure: BaseException, tmp_path: Path) -> None:
    class Greedy(Poisoned):
        def forward(self, batch: Batch) -> dict[str, Term]:
            raise failure

    error = refusal(lambda: run(tmp_path, module=Greedy(set()), validate=None))
    largest = max(Source().step(0, 0), key=lambda batch: batch.tokens)
    assert error.code == ExitCode.RESOURCES
    assert error.line().startswith(
        f"this machine ran out of memory in a micro-batch: {largest.rows} rows, {largest.tokens} tokens, "
        f"longest {largest.max_length}, peak "
    )
    assert error.do == "set a smaller training.max_tokens, a shorter maximum length, or precision bf16"


GIB = 2**30


@pytest.mark.parametrize(
    ("peak", "requested", "base", "free", "fits"),
    [
        (70, 20, 10, 8, 5888),  # 68 of the 80 GiB that were needed, 85 % of it, a multiple of 64
        (70, 20, 10, 40, 6912),  # enough is free, but in pieces
        (12, 400, 10, 0, 34),
        (10, 5, 10, 0, None),  # the weights alone fill it
    ],
)
def test_the_budget_that_fits_is_estimated(peak: int, requested: int, base: int, free: int, fits: int | None) -> None:
    found = memory.estimate_budget(8192, peak * GIB, requested * GIB, base * GIB, free * GIB)
    assert found == fits


def test_bytes_that_were_requested_are_read() -> None:
    said = "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.10 GiB of which ..."
    assert memory.parse_requested_bytes(said) == 3 * 2**29
    assert memory.parse_requested_bytes("CUDA out of memory. Tried to allocate 512 bytes.") == 512
    assert memory.parse_requested_bytes("CUDA error: out of memory") is None


@pytest.mark.parametrize(("free", "tokens"), [(40 * GIB, 65_536), (GIB, 12_483), (0, 512)])
def test_the_tokens_of_a_pass_follow_free_memory(free: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """BERT-base: 4 bytes of 6 x 768 and 2 x 3072 numbers a token, in half of what is free."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 * GIB))
    shape = EncoderConfig.uniform(vocabulary=100, hidden=768, layers=2, heads=12, feed_forward=3072, max_positions=512)
    assert memory.choose_token_budget(shape, "cuda", 4096) == tokens
    assert memory.choose_token_budget(shape, "cpu", 4096) == 4096


def test_a_gpu_without_memory_reports_the_budget_and_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, reply in {"max_memory_allocated": 70, "memory_allocated": 10}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, reply=reply: reply * GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * GIB, 80 * GIB))
    batch = toy_batch(0, rows=400)
    padded = dataclasses.replace(toy_batch(0, rows=500), unpadded=batch)  # people set rows and tokens without padding
    with (
        pytest.raises(UserError, match="GPU ran out of memory in a micro-batch: 400 rows, ") as caught,
        memory.report_out_of_memory([padded], torch.device("cuda"), "step-0000006"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    assert caught.value.code == ExitCode.RESOURCES
    fits = memory.estimate_budget(batch.tokens, 70 * GIB, 20 * GIB, 10 * GIB, 8 * GIB)
    assert f"; step-0000006 is kept; use --set stages.*.training.max_tokens={fits}, " in caught.value.line()
    assert caught.value.line().endswith("; of these, --resume accepts only --precision bf16")


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="page faults are counted by Linux")
def test_pages_are_kept_for_the_next_step() -> None:
    """In a process of its own: what the allocator is told, it is told for good."""
    program = """
import resource, sys, torch
from compress.training import memory
if sys.argv[1] == "keep":
    memory.keep_pages()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    torch.ones(10_000_000)
found = []
for _ in range(8):
    before = faults()
    torch.ones(10_000_000)
    found.append(faults() - before)
print(min(found))  # the system may take pages back between two rounds
"""

    def page_faults(how: str) -> int:
        root = str(Path(memory.__file__).parents[2])
        command = [sys.executable, "-c", program, how]
        return int(subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout)

    returned = page_faults("as it is")
    if os.confstr("CS_GNU_LIBC_VERSION") is None or returned < 1_000:
        pytest.skip("this allocator keeps its pages anyway")
    assert page_faults("keep") < returned / 4


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from Linux")
def test_pages_between_what_stays_are_returned() -> None:
    """In a process of its own: large arrays that are freed leave holes beside small ones that stay."""
    program = """
import mmap
from compress.training import memory
from evaluation.cost.memory import return_pages
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * mmap.PAGESIZE
memory.keep_pages()
before, kept, freed = resident(), [], []
for _ in range(50):
    freed.append(bytearray(b"x" * 2_000_000))
    kept.append(bytearray(b"x" * 2_000))
freed.clear()
held = resident()
return_pages()
print(held - before, resident() - before)
"""
    root = str(Path(memory.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=root)
    held, left = map(int, done.stdout.split())
    if os.confstr("CS_GNU_LIBC_VERSION") is None or held < 50_000_000:
        pytest.skip("this allocator returns its pages anyway")
    assert left < held / 4


def test_other_runtime_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shape"), memory.report_out_of_memory([toy_batch(0)], torch.device("cpu")):
        raise RuntimeError("shape mismatch")


def test_bf16_trains_in_bf16_with_fp32_weights(tmp_path: Path) -> None:
    seen: list[torch.dtype] = []
    module = toy_module()
    module.student.head.register_forward_hook(lambda m, args, out: seen.append(out.dtype))
    result, _ = run(tmp_path, module=module, precision="bf16", validate=None)
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    assert math.isfinite(result.steps)


def test_epochs_and_their_parts_make_steps(tmp_path: Path) -> None:
    for epochs, steps in ((1, 5), (2.4, 12), (0.1, 1)):
        result, _ = run(tmp_path / str(epochs), plan={"steps": None, "epochs": epochs})
        assert result.steps == steps


def test_data_without_a_step_are_refused(tmp_path: Path) -> None:
    error = refusal(lambda: run(tmp_path, source=Source(per_epoch=0)))
    assert error.code == ExitCode.DATA
    assert "the training data is too small for one step" in error.line()


def test_nothing_to_train_is_refused(tmp_path: Path) -> None:
    module = toy_module().requires_grad_(False)
    error = refusal(lambda: train(module, Source(), TrainingPlan(steps=3), context(tmp_path)))
    assert error.line() == "nothing to train: every weight is frozen"


def test_cuda_graphs_on_a_cpu_change_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    _, module = run(tmp_path / "graphs", plan={"cuda_graphs": True}, select=None, say=said.append)
    _, same = run(tmp_path / "plain", select=None)
    assert weights_print(module) == weights_print(same)
    assert said == ["training.cuda_graphs has no effect: there are no CUDA graphs on a CPU"]
