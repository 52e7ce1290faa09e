"""Jobs as tasks of a Ray cluster: one that runs, or one of this machine alone that is started for them.

A task starts the same worker process as `--workers` does, on whichever machine Ray gives it to; all write into one
shared folder, where this process reads their logs and outcomes. A task whose machine is lost is tried again on another,
where a run goes on from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import RunOptions
from compress.cpus import read_cpus
from compress.errors import ExitCode, Stopped, UserError, format_count
from compress.run.jobs.child import explain_end, interrupt, start
from compress.run.jobs.job import write_failure
from compress.run.jobs.memory import KillWatch, estimate_bytes
from compress.run.jobs.nodes import check_nodes, check_store
from compress.run.jobs.processes import Ended, close, describe, last_line
from compress.run.jobs.shipping import Sent, open_sent, send
from compress.run.jobs.work import AnyJob, Work
from compress.storage import lock
from compress.storage.signals import StopFlag
from compress.tracking import resolve_store
from compress.tracking.names import hide_address, redact, redact_address

ADDRESS = "RAY_ADDRESS"
VARIABLES = ("COMPRESS_", "HF_", "MLFLOW_")
"""Begin the names of the variables of this process that runs elsewhere get too."""
RETRIES = 3
"""How often a task is started again whose machine was lost."""
STALE_SECONDS = 180.0
"""How long a task waits for a run folder whose holder may be lost: longer than a heartbeat counts (`storage.lock`)."""
_POLL_SECONDS = 0.2
_LOCAL_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""By this variable Ray decides whether its ports listen on all addresses; 0: on loopback alone, as on a Mac."""


@dataclass
class RayCluster:
    """Tasks of a cluster that this process is connected to. threads: CPUs of each task.  most: tasks at once; None: as
    many as fit.  fitting: tasks of so many CPUs at once.  local: whether it is this machine alone.  leaves: whether the
    connection ends with the jobs."""

    ray: Any
    threads: int
    most: int | None
    fitting: int
    local: bool
    leaves: bool
    elsewhere = True

    @classmethod
    def connect(cls, options: RunOptions, most: int | None, jobs: int) -> RayCluster:
        """The cluster that `--on` names. Raises UserError without Ray, or where nothing answers."""
        assert options.on is not None
        ray, address = import_ray(options.on), options.on
        hide_address(address)
        local = starts_here(address)
        how: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if local:
            how |= {"address": "local", "num_cpus": read_cpus().usable, "include_dashboard": False}
        else:
            how["address"] = os.environ[ADDRESS] if address == "ray" else address
        leaves = not ray.is_initialized()
        try:
            if leaves:
                with warnings.catch_warnings(action="ignore"):  # the error says the same
                    ray.init(**how)
        except (ConnectionError, RuntimeError, TimeoutError, OSError, ValueError) as error:
            shown = redact_address(os.environ.get(ADDRESS, "") if address == "ray" else address) or "ray"
            raise UserError(
                "no Ray cluster answers", where=f"--on {shown}", why=redact(str(error).splitlines()[0])[:200],
                do="start one with `ray start --head`, or use --on ray without RAY_ADDRESS, or --workers N; for a "
                "cluster with a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN",
                code=ExitCode.ENVIRONMENT,
            ) from None  # fmt: skip
        nodes = [node for node in ray.nodes() if node["Alive"]]
        cpus = [int(node["Resources"].get("CPU", 0)) for node in nodes]
        threads = options.threads if isinstance(options.threads, int) else share_cluster(cpus, min(most or jobs, jobs))
        gpus = [int(node["Resources"].get("GPU", 0)) for node in nodes]
        for name, needed, there in (("CPUs", threads, cpus), ("GPUs", _count_gpus(options), gpus)):
            if needed > max(there, default=0):
                raise UserError(
                    f"no node of the cluster has {needed} {name}", where="--on", why=f"most: {max(there, default=0)}",
                    do="use fewer --threads" if name == "CPUs" else "use --device cpu", code=ExitCode.ENVIRONMENT,
                )  # fmt: skip
        return cls(ray, threads, most, sum(there // threads for there in cpus), local, leaves)

    @property
    def places(self) -> int:
        """As many tasks as the cluster has CPUs for."""
        return min(self.fitting, self.most or self.fitting)

    def run(self, todo: deque[AnyJob], shared: Work, console: Console, stop: StopFlag) -> Iterator[Ended]:
        nodes = [node for node in self.ray.nodes() if node["Alive"]]
        sent: list[Sent] = []
        try:
            if not self.local:
                if shared.tracked:
                    check_store(shared.options, nodes)
                written, read = shared.list_written(), shared.list_paths(todo)
                missing = check_nodes(self.ray, nodes, shared.base, written, read)
                sent = send(self.ray, missing, console)
            count, cpus = format_count(len(nodes), "node"), format_count(self.threads, "CPU")
            console.note(f"Ray: {count}, {cpus} for each {shared.noun}")
            yield from self._run(todo, shared, sent, console, stop)
        finally:
            self.leave()

    def leave(self) -> None:
        """End the connection, where this command began it; inside `hold_connection`, at its end."""
        if _held:
            _held[-1].append(self)
        elif self.leaves:
            self.ray.shutdown()

    def _run(
        self, todo: deque[AnyJob], shared: Work, sent: Sequence[Sent], console: Console, stop: StopFlag
    ) -> Iterator[Ended]:
        task = self.ray.remote(max_retries=RETRIES, num_cpus=self.threads, num_gpus=_count_gpus(shared.options))(
            run_task
        )
        memory = [int(node["Resources"].get("memory", 0)) for node in self.ray.nodes() if node["Alive"]]
        running: dict[Any, AnyJob] = {}
        asked = False
        with console.board(f"{shared.noun}s", len(todo)) as board:
            while (todo and not stop.requested) or running:
                while todo and (self.most is None or len(running) < self.most) and not stop.requested:
                    job = todo.popleft()
                    asked_bytes = choose_bytes(shared, job, memory)
                    running[task.options(memory=asked_bytes).remote(self._pack(job, shared, sent))] = job
                    board.begin(job.name)
                if stop.requested and not asked:
                    asked = True
                    for one in running:
                        self.ray.cancel(one, force=False)
                ready, _ = self.ray.wait(list(running), num_returns=1, timeout=_POLL_SECONDS) if running else ((), ())
                for one in ready:
                    job = running.pop(one)
                    error = self._explain(one, job, shared, asked)
                    board.end(job.name, describe(error))
                    yield Ended(job, error)
                for job in running.values():
                    board.say(job.name, last_line(job.log))
                board.draw()

    def _pack(self, job: AnyJob, shared: Work, sent: Sequence[Sent]) -> dict[str, Any]:
        packed = shared.pack(job)
        if shared.tracked:
            packed["options"]["tracking_uri"] = resolve_store(shared.options.tracking_uri).uri
        own = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
        return {
            "packed": packed, "folder": str(Path.cwd()), "log": str(job.log), "threads": self.threads, "environ": own,
            "sent": [*sent],
        }  # fmt: skip

    def _explain(self, one: Any, job: AnyJob, shared: Work, asked: bool) -> UserError | Stopped | None:
        try:
            code, by_kernel = self.ray.get(one)
        except self.ray.exceptions.TaskCancelledError:
            return Stopped("stopped by a signal")
        except self.ray.exceptions.RayError as error:
            if asked:
                return Stopped("stopped by a signal")
            why = redact(str(error).splitlines()[0])[:200]
            memory = type(error).__name__ == "OutOfMemoryError"
            what = "killed by Ray, which ran out of memory" if memory else "its task failed on the cluster"
            do = (
                "use fewer --workers, or more --threads for each run, so that fewer share a machine" if memory else None
            )
            return UserError(what, why=why, do=do, code=ExitCode.RESOURCES)
        return explain_end(code, job.folder, job.log, shared.less_memory, by_kernel=by_kernel)


_held: list[list[RayCluster]] = []
"""The clusters that were left inside `hold_connection`; empty outside of it."""


@contextlib.contextmanager
def hold_connection() -> Iterator[None]:
    """Inside, this command connects to its cluster once, at its first jobs, whatever else it does between them."""
    if _held:
        yield
        return
    clusters: list[RayCluster] = []
    _held.append(clusters)
    try:
        yield
    finally:
        _held.pop()
        for cluster in clusters:
            cluster.leave()


def starts_here(address: str) -> bool:
    """Whether --on means a cluster that this command starts on this machine."""
    return address == "ray" and not os.environ.get(ADDRESS)


def import_ray(address: str) -> Any:
    """Ray, without its usage statistics, and if it is started here on loopback alone. Raises UserError without it, or
    without what the address of another machine (ray://) needs."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not os.environ.get(ADDRESS):
        os.environ.setdefault(_LOCAL_ONLY, "0")
    needed = {"ray": "Ray"} | ({"grpc": "Ray's client (grpcio)"} if address.startswith("ray://") else {})
    missing = next((title for name, title in needed.items() if util.find_spec(name) is None), None)
    if missing is not None:
        raise UserError(
            f"{missing} is not installed", where="--on", do="pip install 'compress-bert[ray]', or use --workers N",
            code=ExitCode.ENVIRONMENT,
        )  # fmt: skip
    import ray  # pyright: ignore[reportMissingImports]

    return ray


def share_cluster(cpus: Sequence[int], runs: int) -> int:
    """CPUs of each of so many runs: the most with which all run at once, 1 where not even that is enough.

    cpus: of each machine; a run does not span two.
    """
    for threads in range(max(cpus, default=1), 1, -1):
        if sum(there // threads for there in cpus) >= runs:
            return threads
    return 1


def choose_bytes(shared: Work, job: AnyJob, nodes: Sequence[int]) -> int | None:
    """Memory that a task asks for, at most that of the largest node, so that it can start; None where no node has any.
    Ray does not enforce it: fewer tasks share a machine. nodes: bytes of each."""
    most = max(nodes, default=0)
    return min(estimate_bytes(shared.list_paths([job]), shared.copies), most) or None


def _count_gpus(options: RunOptions) -> int:
    return 1 if options.device == "cuda" else 0


# --- on a worker --------------------------------------------------------------------------------------------------


def run_task(given: Mapping[str, Any]) -> tuple[int, bool]:
    """Do a packed job in a process of its own; returns its exit code, and whether this machine's kernel killed a
    process for memory meanwhile. A cancelled task stops it as Ctrl-C does."""
    os.chdir(given["folder"])
    packed, log = dict(given["packed"]), Path(given["log"])
    folder = Path(packed["job"]["folder"])
    wait_for_folder(folder)
    if packed["kind"] == "run":  # a task that is tried again finds the run that it began
        packed["shared"] = {**packed["shared"], "resume": True}
    try:
        packed["copies"] = open_sent(given["sent"])
    except UserError as error:
        write_failure(folder, error)
        return error.code, False
    kernel = KillWatch()
    process = start(packed, log, threads=given["threads"], environ=given["environ"])
    try:
        while process.poll() is None:
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        interrupt(process)
    except BaseException:
        interrupt(process, signal.SIGTERM)
        raise
    close(process)
    return int(process.returncode), kernel.has_killed()


def wait_for_folder(folder: Path) -> None:
    """Wait until a run that was lost with its machine no longer counts as alive."""
    end = time.monotonic() + STALE_SECONDS
    while lock.status(folder).state == "running" and time.monotonic() < end:
        time.sleep(1.0)
