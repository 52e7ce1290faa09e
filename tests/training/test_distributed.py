"""Two processes learn what one learns from the same steps, stop together, fail together, and go on where they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from example_counts import thorough_but
from ranks_toy import BATCH, ROWS, Server

from compress.errors import ExitCode, UserError
from compress.training import distributed
from compress.training.gradients import GradientSum
from compress.training.ranks import Ranks, ranks


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def weights(folder: Path, rank: int = 0) -> np.ndarray:
    return np.load(folder / f"weights-{rank}.npy")


def report(folder: Path, rank: int = 0) -> dict[str, Any]:
    return json.loads((folder / f"report-{rank}.json").read_text())


@pytest.mark.parametrize("world", thorough_but([2], [2, 3]))
def test_several_processes_learn_what_one_learns(world: int, server: Server, tmp_path: Path) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    last = {"keep_best": False, "validate_start": True}  # the best weights are put back in the first process alone
    assert server.ask(one, 1, plan=last) == ([0], "")
    assert server.ask(many, world, plan=last) == ([0] * world, "")
    alone = report(one)["read"]
    assert any(len(rows) < world for rows in alone), "a step that leaves a process without rows"
    parts = [report(many, rank)["read"] for rank in range(world)]
    for number, rows in enumerate(alone):
        shared = [row for part in parts for row in part[number]]
        assert sorted(shared) == sorted(rows), "each row once, none left out"
    for rank in range(world):
        np.testing.assert_allclose(weights(many, rank), weights(one), rtol=2e-4, atol=2e-6)
        np.testing.assert_array_equal(weights(many, rank), weights(many), "bit for bit the same in all")
    ours, theirs = report(one)["log"], report(many)["log"]
    assert [step for step, _ in ours] == [step for step, _ in theirs]
    (first, start), (others_first, shared) = ours[0], theirs[0]
    assert first == others_first == 0
    assert {"val/accuracy", "val/loss"} <= start.keys()
    assert shared == start, "of the same weights, the figures of shared batches are those of one process"
    validated = [report(many, rank)["validated"] for rank in range(world)]
    assert min(validated) > 0
    assert sum(validated) == report(one)["validated"]
    for (_, a), (_, b) in zip(ours, theirs):
        for name in ("train/loss", "train/hard_labels", "train/cosine_hidden", "train/grad_norm", "val/early"):
            assert (name in a) == (name in b)
            assert a.get(name, 0.0) == pytest.approx(b.get(name, 0.0), rel=1e-4, abs=1e-6)
    assert report(many, 1)["log"] != [], "the toy's log hears every process; the pipeline gives the others none"


def test_dropout_differs_by_process_and_a_run_can_be_repeated(server: Server, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert server.ask(tmp_path / name, 2, dropout=0.3) == ([0, 0], "")
    np.testing.assert_array_equal(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert server.ask(tmp_path / "one", 1, dropout=0.3) == ([0], "")
    assert not np.allclose(weights(tmp_path / "a"), weights(tmp_path / "one"), atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("at_rank", [0, 1])
def test_a_signal_to_one_stops_all_at_the_same_step_and_the_run_goes_on(
    at_rank: int, server: Server, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert server.ask(whole, 2, dropout=0.3) == ([0, 0], "")
    codes, said = server.ask(cut, 2, dropout=0.3, happens="SIGTERM", at_rank=at_rank, at_step=4)
    assert codes == [75, 75]
    assert "after step 5 of 12; the state is saved" in said
    (newest,) = (cut / "checkpoints").glob("step-00000005")
    assert json.loads((newest / "state.json").read_text())["environment"]["processes"] == "2"
    assert server.ask(cut, 2, dropout=0.3, resume=True) == ([0, 0], "")
    for rank in (0, 1):
        np.testing.assert_array_equal(weights(cut, rank), weights(whole, rank))
        assert report(cut, rank)["read"] == report(whole, rank)["read"][5:]


def test_a_run_goes_on_with_another_number_of_processes_and_says_so(server: Server, tmp_path: Path) -> None:
    assert server.ask(tmp_path / "one", 1) == ([0], "")
    codes, _ = server.ask(tmp_path / "cut", 2, happens="SIGTERM", at_rank=0, at_step=4)
    assert codes == [75, 75]
    codes, said = server.ask(tmp_path / "cut", 1, resume=True)
    assert (codes, "not bit-exact: processes 2 → (none)" in said) == ([0], True)
    np.testing.assert_allclose(weights(tmp_path / "cut"), weights(tmp_path / "one"), rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("at_rank", [0, 1])
def test_an_error_in_one_ends_all_and_is_told_once(at_rank: int, server: Server, tmp_path: Path) -> None:
    codes, said = server.ask(tmp_path / "x", 2, happens="error", at_rank=at_rank, at_step=4)
    assert codes == [5, 5]
    told = [line for line in said.splitlines() if "(tells)" in line]
    assert told == [f"{at_rank}: UserError: here: the disk is gone (tells)"]


@pytest.mark.parametrize("at_rank", [0, 1])
def test_an_error_while_the_others_gradients_travel_ends_all(at_rank: int, server: Server, tmp_path: Path) -> None:
    codes, said = server.ask(tmp_path / "x", 2, happens="error", at_rank=at_rank, at_step=5, in_forward=True)
    assert codes == [5, 5]
    told = [line for line in said.splitlines() if "(tells)" in line]
    assert told == [f"{at_rank}: UserError: here: the disk is gone (tells)"]


@pytest.mark.parametrize("at_rank", [0, 1])
def test_an_error_in_a_shared_validation_ends_all(at_rank: int, server: Server, tmp_path: Path) -> None:
    codes, said = server.ask(tmp_path / "x", 2, happens="error", at_rank=at_rank, at_step=3, in_validation=True)
    assert codes == [5, 5]
    told = [line for line in said.splitlines() if "(tells)" in line]
    assert told == [f"{at_rank}: UserError: here: the disk is gone (tells)"]


def test_numbers_that_go_bad_are_told_once(server: Server, tmp_path: Path) -> None:
    plan = {"learning_rate": 0.9, "clip_norm": None, "eps": 1e-30, "weight_decay": 1e30, "max_bad_steps": 0}
    codes, said = server.ask(tmp_path / "x", 2, plan=plan)
    assert codes == [4, 4], said
    assert [line[:2] for line in said.splitlines() if "(tells)" in line] == ["0:"]


@pytest.mark.thorough
@pytest.mark.parametrize("at_rank", [0, 1])
def test_a_process_that_is_killed_ends_the_others(at_rank: int, server: Server, tmp_path: Path) -> None:
    codes, said = server.ask(tmp_path / "x", 2, happens="SIGKILL", at_rank=at_rank, at_step=4)
    assert codes[at_rank] == -9
    assert codes[1 - at_rank] == 75
    assert "another process of this run died; the last checkpoint is kept" in said
    assert server.ask(tmp_path / "x", 2, resume=True) == ([0, 0], "")
    assert server.ask(tmp_path / "whole", 2) == ([0, 0], "")
    np.testing.assert_array_equal(weights(tmp_path / "x"), weights(tmp_path / "whole"))


def test_other_data_on_another_machine_is_refused(server: Server, tmp_path: Path) -> None:
    codes, said = server.ask(tmp_path / "x", 2, other_data=1)
    assert codes == [2, 2]
    assert "data of process 1 differs from the first process: other and" in said
    assert not list((tmp_path / "x" / "checkpoints").glob("step-*"))


def test_fewer_rows_a_step_than_processes_are_refused(server: Server, tmp_path: Path) -> None:
    codes, said = server.ask(tmp_path / "x", BATCH + 1)
    assert codes == [2] * (BATCH + 1)
    assert f"training.batch_rows: {BATCH} rows per step cannot be divided among {BATCH + 1} processes" in said
    assert ROWS > BATCH + 1


def test_only_torchrun_makes_a_process_one_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert ranks() == Ranks()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert ranks() == Ranks(1, 4, 1, 2)
    assert " ".join(ranks().launcher) == (
        "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:PORT --nproc-per-node 2 -m compress"
    )
    assert Ranks(1, 2, 1, 2).launcher == ["torchrun", "--nproc-per-node", "2", "-m", "compress"]
    assert Ranks().launcher == ["compress"]


def test_gpus_wait_for_minutes_and_hosts_for_as_long_as_one_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU learns of no death: its group waits for the rest of a step only."""
    made: list[Any] = []
    sent: list[tuple[str, Any]] = []

    def all_reduce(tensor: torch.Tensor, group: Any = None, async_op: bool = False) -> Any:
        sent.append((tensor.device.type, group))
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr(distributed.dist, "init_process_group", lambda kind, timeout: made.append((kind, timeout)))
    monkeypatch.setattr(
        distributed.dist, "new_group", lambda backend, timeout: made.append((backend, timeout)) or "gpus"
    )
    monkeypatch.setattr(distributed.dist, "all_reduce", all_reduce)
    monkeypatch.setattr(distributed, "ranks", lambda: Ranks(0, 2, 0, 2))
    monkeypatch.setattr(distributed.Team, "dismiss", lambda self, code: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    with distributed.join_launched_team("cuda") as team:
        assert team is not None
        team._room = 1
        team._sum = GradientSum([torch.nn.Parameter(torch.ones(3, device="meta"))], team._begin_to_add)
        team.add({"loss": torch.ones((), device="meta")}, ["loss"])
    assert made == [("gloo", distributed.PATIENCE), ("nccl", distributed.DEVICE_PATIENCE)]
    assert distributed.DEVICE_PATIENCE < distributed.PATIENCE
    assert sent == [("meta", "gpus"), ("cpu", None), ("meta", "gpus")]


def test_gpus_of_two_models_do_not_train_together(monkeypatch: pytest.MonkeyPatch) -> None:
    team = distributed.Team(Ranks(1, 2, 1, 2))
    monkeypatch.setattr(team, "_exchange", lambda *_: None)
    monkeypatch.setattr(team, "_told", lambda values: values | {"gpu": "A100"})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    parts = SimpleNamespace(parameters={})
    state: Any = SimpleNamespace(device=torch.device("cuda"), counters=dict, optimizer=parts)
    with pytest.raises(
        UserError, match=r"the GPU of process 1 is not of the same model .*: H100 and A100; choose"
    ) as caught:
        team.align(state, list, {})
    assert caught.value.code == ExitCode.ENVIRONMENT
