"""Shards, handed to an executor until all of them are there."""

from __future__ import annotations

from collections.abc import Sequence

from compress.console import Console
from compress.contracts import RunOptions, StageSpec
from compress.errors import format_count
from compress.run.announced import announce_stage
from compress.run.folder import FAILURE
from compress.run.jobs.runner import choose_executor, do_jobs, hold_cluster, join_errors
from compress.run.jobs.stage_work import StageWork
from compress.run.jobs.work import ShardWork, WorkerJob, concerns_one
from compress.stages.shared.stage import SharedParts, StageContext
from compress.storage import claims
from compress.storage.disk import remove_file
from compress.storage.signals import StopFlag

WORKERS = "workers"


def make_shards(work: ShardWork, console: Console, stop: StopFlag) -> None:
    """Make all shards that are missing.

    A worker that is killed leaves its shard to others, which are started as long as any of them makes progress. Raises
    UserError for an error that all of them would meet, and where none gets on; Stopped after a signal.
    """
    with hold_cluster(work.options):
        _make_shards(work, console, stop)
    claims.remove(work.base)


def _make_shards(work: ShardWork, console: Console, stop: StopFlag) -> None:
    missing, handed = work.list_missing(), False
    while missing:
        claims.clear(work.base)
        executor = choose_executor(work.options, len(missing), console, timed=False)
        if executor.elsewhere and not handed:
            handed = True
            work.hand_over()
        jobs = _list_workers(work, min(executor.places, len(missing)), len(missing))
        made = do_jobs(jobs, executor, work, console, stop)
        stop.check()
        before, missing = missing, work.list_missing()
        errors = sorted(made.failed.values(), key=concerns_one)
        if errors and (not executor.elsewhere or not concerns_one(errors[0])):
            raise errors[0]
        if errors and len(missing) == len(before):
            raise join_errors(made.failed, len(jobs), work)
        if missing:
            console.note(f"{format_count(len(missing), 'shard')} left over: starting other workers")


def _list_workers(work: ShardWork, workers: int, missing: int) -> Sequence[WorkerJob]:
    """So many workers, without the errors of earlier ones."""
    title = work.describe(missing)
    jobs = [WorkerJob(f"worker-{n}", title, work.base / WORKERS / f"worker-{n}") for n in range(1, workers + 1)]
    for job in jobs:
        remove_file(job.folder / FAILURE)
    return jobs


def share_parts(
    options: RunOptions, console: Console, stop: StopFlag, spec: StageSpec, context: StageContext, parts: SharedParts
) -> None:
    """Have all parts made that are missing, by the workers that the flags name. Raises as `make_shards`."""
    announced = announce_stage(context.recipe, spec, context)
    folders = (context.model, context.teacher, context.general_teacher)
    members = () if context.ensemble is None else context.ensemble.members
    read = sorted({str(path) for path in (*folders, *(m.folder for m in members)) if path is not None})
    work = StageWork(context.folder, options, announced, parts, tuple(read))
    try:
        make_shards(work, console, stop)
    finally:
        work.clean()
