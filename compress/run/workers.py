"""The worker processes (non-zero ranks) of a run under torchrun: they prepare and train what the first one announces.

They read the same files (stages that the first process has finished are found in its folder), write no files and print
nothing, except for the error of the one that fails first.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from compress.console import Console
from compress.contracts import RunOptions
from compress.errors import ExitCode, Stopped, UserError
from compress.run.announced import prepare_announced
from compress.run.train import build_training_context, build_training_identity, train_prepared
from compress.storage.signals import StopFlag
from compress.training.context import NullLog
from compress.training.distributed import PeerError, Team


def follow(team: Team, options: RunOptions) -> NoReturn:
    """Train whatever the first process announces, until the run is over; exits with its exit code.

    Raises SystemExit, or what went wrong here where that is a bug.
    """
    logging.getLogger("compress").addHandler(logging.NullHandler())
    unexpected: BaseException | None = None
    with StopFlag() as stop:
        while True:
            try:
                order = team.receive_order()
            except Stopped:
                raise SystemExit(ExitCode.STOPPED) from None
            if "end" in order:
                break
            try:
                _train(team, order, options, stop)
            except (Stopped, PeerError):
                pass
            except UserError as error:
                if team.tells:
                    print(f"error: process {team.place.rank}: {error.line()}", file=sys.stderr, flush=True)
            except Exception as error:
                unexpected = error
            if team.lost:
                raise unexpected or SystemExit(ExitCode.STOPPED)
        if order["end"]:
            team.linger()
        else:
            team.leave()
            if unexpected is None:
                _end_at_once()
    raise unexpected or SystemExit(order["end"])


def _end_at_once() -> NoReturn:
    """End the process, which holds nothing that others need, without the end of the interpreter: threads of libraries
    that are still there then abort it now and then ("terminate called without an active exception"), and torchrun
    takes that for a failed run."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(ExitCode.OK)


def _train(team: Team, order: Mapping[str, Any], options: RunOptions, stop: StopFlag) -> None:
    try:
        console = Console(quiet=True, json=True)
        stage = prepare_announced(order, options.chain, console)
        prepared, context = stage.prepared, stage.context
        with console.progress("", None) as progress:
            told = build_training_context(
                prepared,
                context,
                log=NullLog(),
                progress=progress,
                stop=stop,
                identity=build_training_identity(stage.spec, context, prepared),
                team=team,
            )
    except BaseException as error:
        team.report(error)
        raise
    train_prepared(prepared, told)
