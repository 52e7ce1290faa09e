"""A worker process trains what the first one announces, tells the first error, and leaves with its exit code."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from compress.contracts import RunOptions
from compress.errors import ExitCode, Stopped, UserError
from compress.run import workers
from compress.training.distributed import PeerError


class Team:
    """Announces these orders, one after the other."""

    def __init__(self, *orders: Mapping[str, Any] | Exception, tells: bool = True) -> None:
        self.orders, self.tells, self.lost = list(orders), tells, False
        self.place = SimpleNamespace(rank=2)
        self.ended: list[str] = []
        self.reported: list[BaseException] = []

    def receive_order(self) -> Mapping[str, Any]:
        order = self.orders.pop(0)
        if isinstance(order, Exception):
            raise order
        return order

    def linger(self) -> None:
        self.ended.append("linger")

    def leave(self) -> None:
        self.ended.append("leave")

    def report(self, error: BaseException) -> None:
        self.reported.append(error)


def code(team: Team, monkeypatch: pytest.MonkeyPatch, *errors: Exception | None) -> int:
    """Exit code of a worker whose trainings end like this."""
    left: Sequence[Exception | None] = list(errors)

    def train(*_: Any) -> None:
        error = left.pop(0)  # type: ignore[attr-defined]
        if error is not None:
            raise error

    monkeypatch.setattr(workers, "_train", train)
    monkeypatch.setattr(workers.os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as left_with:
        workers.follow(team, RunOptions())  # type: ignore[arg-type]
    assert isinstance(left_with.value.code, int)
    return left_with.value.code


def test_it_trains_until_the_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team({"recipe": 1}, {"recipe": 2}, {"end": 0})
    assert code(team, monkeypatch, None, None) == 0
    assert team.ended == ["leave"]


def test_the_first_error_is_told_once_and_the_code_is_the_first_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for tells, said in ((True, "error: process 2: x.csv: too few rows\n"), (False, "")):
        team = Team({"recipe": 1}, {"end": int(ExitCode.DATA)}, tells=tells)
        assert code(team, monkeypatch, UserError("too few rows", where="x.csv")) == ExitCode.DATA
        assert capsys.readouterr().err == said
        assert team.ended == ["linger"], "the first process prints its own error before others are missed"


@pytest.mark.parametrize("error", [Stopped("SIGTERM"), PeerError(ExitCode.DATA)])
def test_what_others_tell_is_not_told_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code(Team({"recipe": 1}, {"end": 75}), monkeypatch, error) == 75
    assert capsys.readouterr().err == ""


def test_a_bug_is_raised_when_the_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(workers, "_train", broken)
    team: Any = Team({"recipe": 1}, {"end": int(ExitCode.BUG)})
    with pytest.raises(KeyError, match="a bug"):
        workers.follow(team, RunOptions())
    team = Team({"recipe": 1})
    team.lost = True
    with pytest.raises(KeyError, match="a bug"):
        workers.follow(team, RunOptions())


def test_a_worker_that_lost_the_others_or_was_stopped_can_be_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team({"recipe": 1})
    team.lost = True
    assert code(team, monkeypatch, PeerError(ExitCode.DATA)) == ExitCode.STOPPED
    assert code(Team(Stopped("SIGTERM")), monkeypatch) == ExitCode.STOPPED


def test_an_error_before_training_is_reported_to_the_others() -> None:
    team: Any = Team()
    stop: Any = None
    with pytest.raises(UserError):
        workers._train(team, {"recipe": {"name": "x", "stages": []}}, RunOptions(), stop)
    assert [type(error) for error in team.reported] == [UserError]
