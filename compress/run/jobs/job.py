"""One run as a job: everything that a process needs to make it, here or elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from compress.console import Console
from compress.contracts import ChainOptions, RunOptions
from compress.errors import ExitCode, UserError
from compress.recipe import Recipe, load_recipe
from compress.run.folder import (
    FAILURE,
    JOB_LOG,
    RECORD,
    Found,
    Request,
    choose_base,
    is_finished,
    is_unbegun,
    read_record,
    resumable,
)
from compress.run.jobs.outcome import OUTCOME, write_outcome
from compress.run.run import Run
from compress.run.selection import Selection
from compress.storage import atomic, safe
from compress.tracking import Parent

_OPTIONS = ("device", "precision", "runtime", "onnx", "threads", "tracking_uri", "experiment", "debug")
"""Of `RunOptions`, what a run elsewhere needs beside its recipe and folder."""
SUMMARY = "summary"
"""The folder of the tracked run above those of several runs, beside theirs."""


@dataclass(frozen=True)
class Job:
    """A run of a recipe in a folder of its own. name: unique among the jobs of a command; it names the job in messages.
    title: the line that says that it starts.  tags, params: of its tracked run.  draws: as of `write_outcome`."""

    name: str
    recipe: Recipe
    folder: Path
    title: str
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    draws: bool = False

    @property
    def log(self) -> Path:
        """What it prints, where another process runs it."""
        return self.folder / JOB_LOG


@dataclass(frozen=True)
class JobSet:
    """What all jobs of a command share. base: the folder around theirs, which the command that resumes names.
    options: those of the command; `output` and `overrides` are not used.  resume: whether runs that exist are
    continued.  parent: the tracked run above theirs.  measures: as of `Run`."""

    base: Path
    options: RunOptions
    verb: str | None
    inputs: Mapping[str, Path]
    parent: Parent | None
    resume: bool
    measures: bool = True
    noun: ClassVar[str] = "run"
    tracked: ClassVar[bool] = True
    copies: ClassVar[int] = 5
    """The teacher, and a student as large: weights, gradients and two states of the optimizer."""
    less_memory: ClassVar[str] = (
        "use fewer --workers, or less memory for each, e.g. --set stages.*.training.max_tokens=2048"
    )

    def below(self, parent: Parent) -> JobSet:
        """The same with a tracked run above theirs."""
        return dataclasses.replace(self, parent=parent)

    def options_of(self, job: Job) -> RunOptions:
        """The options of one job's run."""
        resume = self.resume and job.folder.exists()
        return dataclasses.replace(self.options, output=job.folder, resume=resume, push=None)

    def request(self, job: Job) -> Request:
        """What its folder is claimed for."""
        begin = Selection.of(job.recipe, self.verb, self.options.chain).begin
        return Request(job.recipe, self.verb, self.inputs, begin)

    def is_done(self, job: Job) -> bool:
        """Whether an equal run came to its end in the job's folder, and left an outcome."""
        return is_finished(job.folder) and (job.folder / OUTCOME).is_file() and self.is_begun(job)

    def is_begun(self, job: Job) -> bool:
        """Whether an equal run began in the job's folder."""
        if not (job.folder / RECORD).is_file():
            return False
        return read_record(job.folder).get("request_sha256") == self.request(job).digest()

    def make_run(self, job: Job, console: Console) -> Run:
        """Its run, not started. Its tracked run has the name of the folder around all jobs before the job's."""
        return Run(
            job.recipe, self.options_of(job), console, self.verb, self.inputs, parent=self.parent, tags=job.tags,
            name=f"{self.base.name}/{job.name}", params=job.params, measures=self.measures,
        )  # fmt: skip

    def run(self, job: Job, console: Console) -> None:
        """Make the run in this process and write its outcome. Raises what a run raises."""
        with resumable(self.base):  # all jobs, not this job's folder
            report = self.make_run(job, console).go()
        assert report is not None
        write_outcome(report, draws=job.draws)

    def pack(self, job: Job) -> dict[str, Any]:
        """As `pack`."""
        return pack(job, self)

    def list_paths(self, jobs: Iterable[Job]) -> list[str]:
        """The local files and folders that the runs read, as far as their recipes and flags name them."""
        named = {str(path) for path in self.inputs.values() if path.exists()}
        return sorted(named.union(*(list_recipe_paths(job.recipe) for job in jobs)))

    def list_written(self) -> list[str]:
        """As of `Work`: none."""
        return []


def place_jobs(
    name: str, list_jobs: Callable[[Path], Sequence[Job]], options: RunOptions, verb: str | None,
    inputs: Mapping[str, Path],
) -> tuple[Sequence[Job], JobSet]:  # fmt: skip
    """The jobs in their folders, and what they share. list_jobs: those below a folder, which `choose_base` chooses."""

    def share(base: Path) -> JobSet:
        return JobSet(base, options, verb, inputs, None, options.resume)

    def look(base: Path) -> Found:
        jobs, shared = list_jobs(base), share(base)
        if any(map(shared.is_begun, jobs)):
            return Found.FINISHED if all(map(shared.is_done, jobs)) else Found.UNFINISHED
        ours = any((job.folder / RECORD).is_file() for job in jobs)
        return Found.NONE_YET if ours or _is_unbegun(base, jobs) else Found.FOREIGN

    base = choose_base(name, options, look)
    return list_jobs(base), share(base)


def _is_unbegun(base: Path, jobs: Sequence[Job]) -> bool:
    """Whether nothing lies there but what several runs leave that ended before the first had written its record."""
    folders = {job.folder for job in jobs}
    return all(p.name == SUMMARY or (p in folders and p.is_dir() and is_unbegun(p)) for p in base.iterdir())


def list_recipe_paths(recipe: Recipe) -> list[str]:
    """The local files and folders that a recipe names."""
    data, corpus = recipe.data, recipe.corpus
    named = {str(name) for name in (recipe.model, *(row.model for row in recipe.taught_by)) if name}
    named.update(*(stage.checkpoints() for stage in recipe.stages))
    masks = (getattr(stage, "masking", None) for stage in recipe.stages)
    named.update(mask.word_list for mask in masks if mask is not None and mask.word_list)
    named |= {corpus.source} if corpus is not None else set()
    named |= {name for name in (data.source, data.unlabelled, data.pool) if name} if data is not None else set()
    return sorted(name for name in named if Path(name).exists())


# --- to another process ---------------------------------------------------------------------------------------------


def pack(job: Job, shared: JobSet) -> dict[str, Any]:
    """A job as plain data. It may hold the password of an address: it is handed over, never written to a file."""
    options = {name: getattr(shared.options, name) for name in _OPTIONS}
    chain = shared.options.chain
    return {
        "kind": "run",
        "job": {
            **{name: getattr(job, name) for name in ("name", "title", "draws")},
            "recipe": job.recipe.model_dump(mode="json"), "folder": str(job.folder), "tags": dict(job.tags),
            "params": {path: str(value) for path, value in job.params.items()},
        },
        "options": options | {"chain": None if chain is None else dataclasses.asdict(chain)},
        "shared": {
            "base": str(shared.base), "verb": shared.verb, "resume": shared.resume, "measures": shared.measures,
        },
        "inputs": {name: str(path) for name, path in shared.inputs.items()},
        "parent": None if shared.parent is None else dataclasses.asdict(shared.parent),
        "argv": sys.argv,
    }  # fmt: skip


def unpack(packed: Mapping[str, Any]) -> tuple[Job, JobSet]:
    """What `pack` packed, but for `argv`."""
    said, options, parent = dict(packed["job"]), dict(packed["options"]), packed["parent"]
    job = Job(**said | {"recipe": load_recipe(said["recipe"]), "folder": Path(said["folder"])})
    chain = options.pop("chain")
    made = RunOptions(**options, chain=None if chain is None else ChainOptions(**chain))
    shared = dict(packed["shared"])
    inputs = {name: Path(path) for name, path in packed["inputs"].items()}
    above = None if parent is None else Parent(**parent)
    base, verb, resume, measures = (shared[name] for name in ("base", "verb", "resume", "measures"))
    return job, JobSet(Path(base), made, verb, inputs, above, resume, measures)


# --- failures ---------------------------------------------------------------------------------------------------


def write_failure(folder: Path, error: UserError) -> None:
    """Leave the error of a job in its folder, for the process that waits for it; on a full disk nothing is left."""
    content = {"what": error.what, "where": error.where, "why": error.why, "do": error.do, "code": int(error.code)}
    with contextlib.suppress(UserError, OSError):
        atomic.write_json(folder / FAILURE, content)


def read_failure(folder: Path) -> UserError | None:
    """The error that a job left; None where it left none."""
    try:
        said = safe.read_json(folder / FAILURE, 1 << 16)
        texts = {name: said[name] for name in ("where", "why", "do")}
        return UserError(said["what"], **texts, code=ExitCode(said["code"]))
    except (UserError, KeyError, TypeError, ValueError):
        return None
