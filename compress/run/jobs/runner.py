"""Hands a list of independent jobs to whoever makes them, and reads what they left.

Which failures end the rest: an error in the input, the environment or a folder would be the same for the other jobs, so
no more of them start, and those that run come to their end. What goes wrong in one run alone (its numbers, memory, a
bug) leaves the others alone. Either way `--resume` makes only what is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from compress.console import Console
from compress.contracts import RunOptions
from compress.cpus import read_cpus, share_cpus
from compress.errors import ExitCode, Stopped, UserError, format_count
from compress.run.folder import claim, make_base, note_new_run, read_record, resumable, resume_command
from compress.run.jobs.job import Job, JobSet, place_jobs
from compress.run.jobs.outcome import Outcome
from compress.run.jobs.processes import GPUS, Executor, LocalWorkers, ThisProcess, read_tail
from compress.run.jobs.work import AnyJob, Work, concerns_one
from compress.run.teachers import teacher_recipe
from compress.storage.signals import StopFlag

MOST_ASKED = 4
"""Jobs that are given to a cluster at once before it has said how many it makes."""
_SHOWN_LINES = 15
"""Of the log of a job that failed."""


def run_jobs(jobs: Sequence[Job], shared: JobSet, console: Console) -> list[Outcome]:
    """Make the runs of all jobs, but for those that are done, and return their outcomes in order.

    Raises UserError for a folder that cannot be used, before anything starts, and when a job failed; Stopped after a
    signal.
    """
    with StopFlag() as stop, resumable(shared.base):
        todo = _list_missing(jobs, shared)
        missing = {job.name for job in todo}
        for job in jobs:
            if job.name not in missing:
                console.note(f"{job.name}: already done")
        if todo:
            executor = choose_executor(shared.options, len(todo), console)
            if executor.elsewhere:
                _make_teachers(todo, shared, console)
            made = do_jobs(todo, executor, shared, console, stop)
            if made.failed and not stop.requested:
                raise join_errors(made.failed, len(todo), shared)
            if made.done < len(todo):
                raise Stopped(f"stopped by {stop.requested}")
        if 0 < len(todo) < len(jobs):
            _require_same_input(jobs)
        return [Outcome.load(job.folder) for job in jobs]


def begin_jobs(
    name: str, list_jobs: Callable[[Path], Sequence[Job]], options: RunOptions, verb: str | None,
    inputs: Mapping[str, Path], console: Console,
) -> tuple[Sequence[Job], JobSet]:  # fmt: skip
    """As `place_jobs`; the jobs are checked, and a new folder around theirs is made. Raises UserError."""
    note_new_run(options, console.note)
    while True:
        jobs, shared = place_jobs(name, list_jobs, options, verb, inputs)
        _check_jobs(jobs, shared)
        if make_base(shared.base, options):
            return jobs, shared


def _check_jobs(jobs: Sequence[Job], shared: JobSet) -> None:
    """Raise UserError for a folder that cannot be used, or wrong data, before anything is written.

    The data is that of the first run; a pool is left out, whose passages take long to choose.
    """
    require_cluster(shared.options)
    missing = _list_missing(jobs, shared)
    first = next((job for job in missing if job.recipe.data is None or job.recipe.data.pool is None), None)
    if first is not None:
        shared.make_run(first, Console(quiet=True)).sources.open()


def require_executor(options: RunOptions) -> None:
    """Raise UserError for a cluster whose library is not installed."""
    if options.on is not None:
        from compress.run.jobs.on_ray import import_ray

        import_ray(options.on)


def require_cluster(options: RunOptions) -> None:
    """Raise UserError where no cluster answers at the address of --on. One on this machine is started when it is
    needed."""
    require_executor(options)
    if options.on is not None:
        from compress.run.jobs.on_ray import RayCluster, starts_here

        if not starts_here(options.on):
            RayCluster.connect(options, None, 1).leave()


@contextmanager
def hold_cluster(options: RunOptions) -> Iterator[None]:
    """Inside, jobs that are made one after the other connect to the cluster of --on once."""
    if options.on is None:
        yield
        return
    from compress.run.jobs.on_ray import hold_connection

    with hold_connection():
        yield


def count_places(options: RunOptions) -> int:
    """Jobs that are done at once by the flags; on a cluster, of which nothing is asked yet, MOST_ASKED."""
    return _count_workers(options) or (MOST_ASKED if options.on is not None else 1)


def _count_workers(options: RunOptions) -> int | None:
    """As --workers has it; None where it is not given."""
    return read_cpus().usable if options.workers == "auto" else options.workers


def choose_executor(options: RunOptions, jobs: int, console: Console, *, timed: bool = True) -> Executor:
    """Who does so many jobs by the flags. timed: whether they measure latencies, which others then disturb. Raises
    UserError for what is not installed or cannot be reached."""
    asked = _count_workers(options)
    if options.on is not None:
        from compress.run.jobs.on_ray import RayCluster

        return RayCluster.connect(options, asked, jobs)
    workers, cpus = min(asked or 1, max(1, jobs)), read_cpus()
    if workers == 1:
        return ThisProcess()
    threads = options.threads if isinstance(options.threads, int) else share_cpus(workers, cpus)
    disturbed = "; latencies are measured while the other workers compute" if timed else ""
    console.note(f"{workers} workers, {format_count(threads, 'CPU thread')} each{disturbed}")
    if workers * threads > cpus.usable:
        console.note(
            f"{workers * threads} threads compete for {format_count(cpus.usable, 'CPU')}: fewer "
            "workers or --threads are usually faster"
        )
    return LocalWorkers(workers, threads, _list_gpus() if options.device == "cuda" else [])


def _list_gpus() -> list[str]:
    """The names by which processes are given one GPU each; none where there is one for all."""
    import os

    import torch

    named = [name.strip() for name in os.environ.get(GPUS, "").split(",") if name.strip()]
    found = named or [str(place) for place in range(torch.cuda.device_count())]
    return found if len(found) > 1 else []


def _list_missing(jobs: Sequence[Job], shared: JobSet) -> list[Job]:
    """The jobs that are not done. Raises UserError for a folder that another run has, or that may not be continued."""
    missing = []
    for job in jobs:
        if shared.resume and shared.is_done(job):
            continue
        claim(shared.request(job), shared.options_of(job))
        missing.append(job)
    return missing


def _make_teachers(jobs: Sequence[Job], shared: JobSet, console: Console) -> None:
    """Make the teachers that are recipes, once and here: several jobs at once would all begin to."""
    made = set()
    for job in jobs:
        recipes = [teacher_recipe(job.recipe, row) for row in job.recipe.taught_by]
        missing = {recipe.hash() for recipe in recipes if recipe is not None} - made
        if missing:
            made |= missing
            run = shared.make_run(job, console)
            run.sources.open()
            run.teachers()


def _require_same_input(jobs: Sequence[Job]) -> None:
    """Raise UserError where runs of the same data, corpus or teacher have read different ones: they changed between the
    first command and the one that resumed it, and the runs cannot be compared."""
    seen: dict[tuple[str, ...], tuple[str, str]] = {}
    for job in jobs:
        recipe, read = job.recipe, read_record(job.folder).get("read") or {}
        data, taught = repr(recipe.data), repr(recipe.taught_by)
        for name, key in (("data", data), ("corpus", repr(recipe.corpus)), ("teacher", taught + data)):
            if name not in read:
                continue
            first, digest = seen.setdefault((name, key), (job.name, read[name]))
            if digest != read[name]:
                raise UserError(
                    f"{first} and {job.name} read different {name}", where=str(job.folder.parent),
                    why=f"its {name} changed between the two commands",
                    do="use a new output folder", code=ExitCode.REFUSED,
                )  # fmt: skip


@dataclass
class Made:
    """What became of jobs. done: how many; fewer than all where some failed, or after a signal.  failed: name → why."""

    done: int = 0
    failed: dict[str, UserError] = field(default_factory=dict)


def do_jobs(jobs: Sequence[AnyJob], executor: Executor, shared: Work, console: Console, stop: StopFlag) -> Made:
    """Hand all jobs to an executor; what failed is shown. Raises the error of a job in this process that others would
    meet too."""
    todo, made = deque(jobs), Made()
    for ended in executor.run(todo, shared, console, stop):
        error, name = ended.error, ended.job.name
        if isinstance(error, Stopped):
            if stop.requested:
                continue
            error = UserError("a signal stopped it", code=ExitCode.STOPPED)
        if error is None:
            made.done += 1
            continue
        made.failed[name] = error
        if not concerns_one(error):
            if not executor.elsewhere:
                raise error
            todo.clear()
        if executor.elsewhere:
            _show_log(ended.job, error, console)
        else:
            console.warn(f"{name} failed: {error.line()}")
    return made


def _show_log(job: AnyJob, error: UserError, console: Console) -> None:
    """The last lines that a job printed, each with its name, and where the others are."""
    console.warn(f"{job.name} failed: {error.line()}; the end of {job.log}:")
    for line in read_tail(job.log, _SHOWN_LINES):
        console.note(f"{job.name} | {line}")


def join_errors(failed: Mapping[str, UserError], count: int, shared: Work) -> UserError:
    """One error for all jobs that failed: their own where it is the same for all of them."""
    first = next(iter(failed.values()))
    if len({error.line() for error in failed.values()}) == 1 and not concerns_one(first):
        return first
    names = ", ".join(failed)
    do = f"continue with: {resume_command(shared.base)}"
    what = f"{len(failed)} of {count} {shared.noun}s failed: {names}"
    return UserError(what, why=first.line(), do=do, code=first.code)
