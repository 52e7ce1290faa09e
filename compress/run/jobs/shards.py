"""Shards of rows, handed to an executor until all of them are there."""

from __future__ import annotations

from collections.abc import Sequence

from compress.console import Console
from compress.data.tables.table import format_count
from compress.errors import Stopped
from compress.predict.rows.plan import Shard
from compress.predict.rows.shards import SHARDS, ShardFolder
from compress.run.folder import FAILURE
from compress.run.jobs.row_work import RowJob, RowWork
from compress.run.jobs.runner import choose_executor, do_jobs, join_errors
from compress.run.jobs.work import concerns_one
from compress.storage import atomic, claims
from compress.storage.disk import remove_file
from compress.storage.signals import StopFlag
from compress.storage.trees import remove_tree

WORKERS = "workers"


def answer_shards(work: RowWork, console: Console, stop: StopFlag) -> None:
    """Make all shards of a plan that are missing or damaged.

    A worker that is killed leaves its shard to others, which are started as long as any of them makes progress. Raises
    UserError for an error that all of them would meet, and where none gets on; Stopped after a signal.
    """
    missing = _remove_damaged(work, console)
    while missing:
        claims.clear(work.base)
        executor = choose_executor(work.options, len(missing), console, timed=False)
        jobs = _list_workers(work, min(executor.places, len(missing)), len(missing))
        made = do_jobs(jobs, executor, work, console, stop)
        if stop.requested:
            raise Stopped(f"stopped by {stop.requested}")
        before, missing = missing, work.list_missing()
        errors = sorted(made.failed.values(), key=concerns_one)
        if errors and (not executor.elsewhere or not concerns_one(errors[0])):
            raise errors[0]
        if errors and len(missing) == len(before):
            raise join_errors(made.failed, len(jobs), work)
        if missing:
            console.note(f"{format_count(len(missing), 'shard')} left over: starting other workers")


def _remove_damaged(work: RowWork, console: Console) -> list[Shard]:
    """Shards to make. Those whose files are not what their records say are removed."""
    missing = []
    atomic.make_folder(work.base / SHARDS)
    atomic.clean(work.base / SHARDS)
    with console.slow_progress("check the shards", len(work.plan.shards), "shards") as progress:
        for number, shard in enumerate(work.plan.shards, 1):
            folder = ShardFolder.of(work.base, shard)
            faults = folder.list_faults()
            if faults and folder.path.exists():
                console.warn(f"shard {shard.name} is made again: {faults[0]}")
                remove_tree(folder.path, work.base)
            if faults:
                missing.append(shard)
            progress.update(number)
    return missing


def _list_workers(work: RowWork, workers: int, missing: int) -> Sequence[RowJob]:
    """So many workers, without the errors of earlier ones."""
    title = f"answering {missing} of {len(work.plan.shards)} shards"
    jobs = [RowJob(f"worker-{n}", title, work.base / WORKERS / f"worker-{n}") for n in range(1, workers + 1)]
    for job in jobs:
        remove_file(job.folder / FAILURE)
    return jobs
