"""Toy trainings in several processes: a server that forks them, each with the environment that torchrun gives."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from child_server import ChildServer, keep_what_is_imported
from torchrun_places import places
from training_toy import Flag, Log, context

from compress.contracts import Batch, BatchSource, TrainingPlan
from compress.data.batches.examples import Examples
from compress.data.batches.task_batches import TaskBatches
from compress.data.tables.table import Rows
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.errors import Stopped, UserError
from compress.objectives import cosine_hidden, hard_labels, soft_targets
from compress.stages.shared import validation
from compress.training import gradients
from compress.training.distributed import PeerError, code_of, join_launched_team
from compress.training.loop import train
from compress.training.module import StageModule

gradients.BUCKET = 1024  # bytes: several of them
ROWS, BATCH = 21, 5  # the last step of an epoch has one row: with two processes, one of them has none
PLAN = {
    "steps": 12, "batch_rows": BATCH, "max_tokens": 24, "learning_rate": 1e-2, "eps": 1e-3, "warmup": 0.0,
    "checkpoint_every": 3, "validate_every": 4, "log_every": 1, "precision": "fp32",
}  # fmt: skip


def examples() -> Examples:
    """Rows of 3 to 14 tokens; every third row has no label."""
    random = np.random.default_rng(5)
    lengths = random.integers(3, 15, ROWS)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    ids = random.integers(5, 40, int(offsets[-1])).astype(np.int32)
    labels = np.where(np.arange(ROWS) % 3 == 2, -100, ids[offsets[:-1]] % 3).astype(np.int64)
    nothing = np.zeros(len(ids), dtype=bool)
    return Examples(ids, offsets, nothing.astype(np.uint8), nothing, labels, np.arange(ROWS), 0, "toy")


def model(layers: int, seed: int, dropout: float) -> Model:
    config = EncoderConfig.uniform(
        vocabulary=40, layers=layers, heads=2, hidden=16, feed_forward=32, dropout=dropout, attention_dropout=dropout
    )
    return Model(config, {"task": HeadConfig(kind="classification", labels=3, dropout=dropout)}).initialize(seed)


def stage(dropout: float = 0.0) -> StageModule:
    """Losses that count rows with a label, rows, and tokens."""
    objectives = {
        "hard_labels": (1.0, hard_labels.Objective()),
        "soft_targets": (2.0, soft_targets.Objective(on="task")),
        "cosine_hidden": (1.0, cosine_hidden.Objective()),
    }
    return StageModule(model(1, 1, dropout), objectives, prepare(model(2, 2, 0.0), "fp32"))


@dataclass
class Watched:
    """The source, and what of it was read. hooks: step → what happens before it is given."""

    source: TaskBatches
    hooks: dict[int, Any] = field(default_factory=dict)
    read: list[list[int]] = field(default_factory=list)
    part: Watched | None = None

    def __post_init__(self) -> None:
        self.fingerprint = self.source.fingerprint

    def steps(self, epoch: int) -> int:
        return self.source.steps(epoch)

    def step(self, epoch: int, index: int) -> Sequence[Batch]:
        number = epoch * self.source.steps(epoch) + index
        if number in self.hooks:
            self.hooks[number]()
        batches = self.source.step(epoch, index)
        self.read.append([int(row) for batch in batches for row in batch.row_ids])
        return batches

    def shard(self, rank: int, world: int) -> BatchSource:
        self.part = Watched(self.source.shard(rank, world), self.hooks)
        self.part.fingerprint = self.fingerprint
        return self.part


def make_validation(happens: Callable[[], None]) -> Callable[[torch.nn.Module], dict[str, float]]:
    """A figure of the weights, and those of the rows, in eight batches that processes share. happens: meanwhile."""
    validation.VALIDATION_TOKENS = 24
    held_out = replace(examples(), labels=examples().labels.clip(0))
    data: Any = SimpleNamespace(validation=held_out, held_out=Rows({}, held_out.labels, held_out.numbers))
    table: Any = SimpleNamespace(task="classification", settings={}, label_names=["a", "b", "c"])
    score_rows = validation.task_validation(data, table, cast(Any, SimpleNamespace(precision="fp32", device="cpu")))

    def validate(module: torch.nn.Module) -> dict[str, float]:
        early = {"early": -float(sum(p.detach().double().abs().sum() for p in module.parameters()))}
        happens()
        return {**early, **score_rows(module)}

    return validate


# --- one process ------------------------------------------------------------------------------------------------


def child(command: dict[str, Any]) -> int:
    """Train; leaves weights, rows and log of this process in the folder."""
    rank, folder, flag, hooks = int(os.environ.get("RANK", 0)), Path(command["folder"]), Flag(), {}
    if command.get("at_rank") == rank:
        signal.signal(signal.SIGTERM, lambda *_: setattr(flag, "requested", "SIGTERM"))
        hooks[command["at_step"]] = lambda: happen(command["happens"])
    late = hooks if command.get("in_forward") else {}
    amid = hooks if command.get("in_validation") else {}
    source = Watched(TaskBatches(examples(), BATCH, PLAN["max_tokens"], 3), {} if late or amid else hooks)
    validate = make_validation(lambda: run_hook(amid, len((source.part or source).read) - 1))
    if command.get("other_data") == rank:
        source.fingerprint = "other"
    plan = TrainingPlan(**{**PLAN, **command.get("plan", {})})
    team = None
    try:
        with join_launched_team("cpu") as team:
            module, log = stage(command.get("dropout", 0.0)), Log()
            validated: list[int] = []
            module.student.register_forward_pre_hook(
                lambda student, given: None if student.training else validated.append(given[0].rows)
            )
            module.register_forward_pre_hook(lambda *_: run_hook(late, len((source.part or source).read) - 1))
            told = context(
                folder, log=log, team=team, stop=flag, validate=validate, resume=command.get("resume", False), seed=3
            )
            try:
                train(module, source, plan, told)
            finally:
                if team is not None and not team.place.leads and not team.lost:
                    team.receive_order()  # the order to end
            state = module.student.state_dict()
            weights = np.concatenate([t.double().numpy().ravel() for t in state.values()])
            np.save(folder / f"weights-{rank}.npy", weights)
            report = {"read": (source.part or source).read, "log": log.lines, "validated": sum(validated)}
            (folder / f"report-{rank}.json").write_text(json.dumps(report))
    except (UserError, Stopped, PeerError) as error:
        tells = team is None or team.tells
        print(f"{rank}: {type(error).__name__}: {error}{' (tells)' if tells else ''}", file=sys.stderr, flush=True)
        return code_of(error)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


def run_hook(hooks: dict[int, Any], step: int) -> None:
    if step in hooks:
        hooks[step]()


def happen(what: str) -> None:
    if what == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
    if what == "error":
        raise UserError("the disk is gone", where="here", code=5)  # pyright: ignore[reportArgumentType]


# --- the server -------------------------------------------------------------------------------------------------


class Server(ChildServer):
    """Runs `child` in as many processes as asked for."""

    def __init__(self) -> None:
        super().__init__(__file__, OMP_NUM_THREADS="1")

    def ask(self, folder: Path, world: int, **command: Any) -> tuple[list[int], str]:
        """(exit code of each process, or minus the signal; what all said)."""
        folder.mkdir(exist_ok=True)
        answer = self.answer({"folder": str(folder), "world": world, **command})
        return answer["codes"], answer["said"]


def serve() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        child({"folder": folder, "plan": {"steps": 1}})  # what torch imports at its first step, the children find
    keep_what_is_imported()
    for line in sys.stdin:
        command = json.loads(line)
        said = Path(command["folder"]) / "said.txt"
        children = []
        for place in places(command["world"]):
            number = os.fork()
            if number == 0:
                os.environ.update(place)
                os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
                os._exit(child(command))
            children.append(number)
        codes = [os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in children]
        text = said.read_text() if said.exists() else ""
        said.unlink(missing_ok=True)
        print(json.dumps({"codes": codes, "said": text}), flush=True)


if __name__ == "__main__":
    serve()
