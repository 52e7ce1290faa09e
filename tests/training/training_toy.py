"""A training run small enough to repeat hundreds of times, and a server that runs it in processes it can kill.

The server is started once (`python training_toy.py`), imports torch, and forks a child for each line of JSON on its
standard input; a child that is killed takes nothing with it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from child_server import ChildServer, keep_what_is_imported
from torch import Tensor, nn

from compress.contracts import Batch, EncoderOutput, Needs, TrainingPlan
from compress.errors import Stopped, UserError
from compress.objectives import hard_labels, soft_targets
from compress.training import keeper
from compress.training.context import TrainingContext, TrainResult
from compress.training.loop import train
from compress.training.module import StageModule

VOCABULARY, WIDTH, CLASSES = 40, 8, 3
PLAN: dict[str, Any] = {
    "steps": 12,
    "batch_rows": 4,
    "learning_rate": 0.02,
    "checkpoint_every": 3,
    "validate_every": 2,
    "log_every": 2,
}


class Student(nn.Module):
    """Mean of embeddings, dropout, linear. Has what can go wrong: a tied tensor, a buffer, dropout, a bias."""

    def __init__(self, seed: int = 1, dropout: float = 0.3) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.table = nn.Embedding(VOCABULARY, WIDTH)
            self.dense = nn.Linear(WIDTH, WIDTH)
            self.head = nn.Linear(WIDTH, CLASSES)
        self.again = self.dense
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, batch: Batch, needs: Needs = Needs()) -> EncoderOutput:  # noqa: B008
        x = self.table(batch.input_ids)
        x = self.again(torch.tanh(self.dense(self.dropout(x))))
        if self.training:
            self.seen += batch.rows
        lengths = batch.cu_seqlens.diff()
        rows = torch.repeat_interleave(torch.arange(batch.rows), lengths)
        pooled = torch.zeros(batch.rows, WIDTH, dtype=x.dtype).index_add(0, rows, x) / lengths[:, None]
        return EncoderOutput(last_hidden=x, logits=self.head(pooled))


def toy_batch(seed: int, rows: int = 4, dtype: torch.dtype = torch.int64) -> Batch:
    """Rows of 1 to 6 random pieces; the label depends on them."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 7, (rows,), generator=random)
    ids = torch.randint(0, VOCABULARY, (int(lengths.sum()),), generator=random)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    firsts = ids[ends[:-1]]
    return Batch(
        input_ids=ids,
        segment_ids=torch.zeros_like(ids),
        position_ids=torch.cat([torch.arange(int(n)) for n in lengths]),
        cu_seqlens=ends,
        max_length=int(lengths.max()),
        row_ids=torch.randint(0, 1000, (rows,), generator=random),
        labels=(firsts % CLASSES).to(dtype),
    )


def split(batch: Batch, cuts: Sequence[int]) -> list[Batch]:
    """The batch as micro-batches that end before the rows in `cuts`."""
    edges = [0, *cuts, batch.rows]
    pieces = []
    for first, last in itertools.pairwise(edges):
        start, end = int(batch.cu_seqlens[first]), int(batch.cu_seqlens[last])
        lengths = batch.cu_seqlens.diff()[first:last]
        labels = batch.labels
        assert labels is not None
        pieces.append(
            Batch(
                input_ids=batch.input_ids[start:end],
                segment_ids=batch.segment_ids[start:end],
                position_ids=batch.position_ids[start:end],
                cu_seqlens=batch.cu_seqlens[first : last + 1] - start,
                max_length=int(lengths.max()),
                row_ids=batch.row_ids[first:last],
                labels=labels[first:last],
            )
        )
    return pieces


@dataclass
class Source:
    """Five steps an epoch, two micro-batches each."""

    seed: int = 0
    fingerprint: str = "toy"
    per_epoch: int = 5
    poison: Mapping[int, int] = field(default_factory=dict)
    hooks: Mapping[int, Callable[[], None]] = field(default_factory=dict)

    def steps(self, epoch: int) -> int:
        return self.per_epoch

    def step(self, epoch: int, index: int) -> list[Batch]:
        number = epoch * self.per_epoch + index
        if number in self.hooks:
            self.hooks[number]()
        return split(toy_batch(self.seed * 1_000_003 + number), [1])


def toy_teacher(batch: Batch, needs: Needs) -> EncoderOutput:
    return Student(seed=9).eval()(batch, needs)


def toy_module(dropout: float = 0.3) -> StageModule:
    objectives = {"hard_labels": (0.5, hard_labels.Objective()), "soft_targets": (1.0, soft_targets.Objective())}
    return StageModule(Student(dropout=dropout), objectives, toy_teacher)


@dataclass
class Log:
    """Remembers what it is told."""

    lines: list[tuple[int | None, dict[str, float]]] = field(default_factory=list)
    tagged: dict[str, str] = field(default_factory=dict)

    def params(self, values: Mapping[str, Any]) -> None: ...

    def tags(self, values: Mapping[str, str]) -> None:
        self.tagged.update(values)

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        self.lines.append((step, dict(values)))

    def artifact(self, path: Path, folder: str = "") -> None: ...

    def note(self, markdown: str) -> None: ...


@dataclass
class Told:
    updates: list[tuple[int, dict[str, float | str]]] = field(default_factory=list)

    def update(self, done: int, **figures: float | str) -> None:
        self.updates.append((done, figures))


@dataclass
class Flag:
    requested: str | None = None


def validate(module: nn.Module) -> dict[str, float]:
    """Figures of which `early` is best after step 4. It draws random numbers on purpose: training must not feel it."""
    torch.rand(3)
    batch = toy_batch(77, rows=16)
    assert not module.training
    output = module.student(batch)
    loss = nn.functional.cross_entropy(output.logits, batch.labels)
    return {"loss": float(loss), "early": -abs(float(module.student.seen) - 16)}


def context(folder: Path, **changes: Any) -> TrainingContext:
    values: dict[str, Any] = {
        "folder": folder,
        "log": Log(),
        "progress": Told(),
        "stop": Flag(),
        "validate": validate,
        "select": ("early", "max"),
        "precision": "fp32",
        "identity": {"recipe": "toy"},
    }
    return TrainingContext(**{**values, **changes})


def run(folder: Path, *, plan: Mapping[str, Any] | None = None, source: Source | None = None, **changes: Any) -> Any:
    """Train; returns (result, module)."""
    module = changes.pop("module", None) or toy_module()
    spec = TrainingPlan(**{**PLAN, **(plan or {})})
    result: TrainResult = train(module, source or Source(), spec, context(folder, **changes))
    return result, module


def prints(folder: Path, module: nn.Module | None = None) -> dict[str, str]:
    """What must be equal: the bytes of the newest checkpoint and of its best weights, the counters, the end weights."""
    newest = max((folder / "checkpoints").glob("step-*"), key=lambda path: path.name)
    record = json.loads((newest / "state.json").read_text())
    state = record["state"]
    best = state["best"] and folder / "checkpoints" / state["best"]["folder"]
    files = [*sorted(newest.glob("*.safetensors")), *(sorted(best.glob("*.safetensors")) if best else [])]
    found = {f"{path.parent.name[:4]}/{path.name}": sha(path.read_bytes()) for path in files}
    if best:
        state["best"].pop("folder")
    for counts in (state, state["window"]):
        counts.pop("seconds")
        counts.pop("joules")
    found["counters"] = json.dumps(state, sort_keys=True)
    if module is not None:
        found["weights"] = weights_print(module)
    return found


def without_weights(found: dict[str, str]) -> dict[str, str]:
    """Of `prints`, what a process that ended leaves."""
    return {name: value for name, value in found.items() if name != "weights"}


def weights_print(module: nn.Module) -> str:
    return sha(b"".join(bytes_of(tensor) for tensor in module.state_dict().values()))


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- processes that can be killed -------------------------------------------------------------------------------


class Server(ChildServer):
    """Runs toy trainings in forked children of a fresh process."""

    def __init__(self) -> None:
        super().__init__(__file__)

    def ask(self, **command: Any) -> tuple[int, str]:
        """(exit code, or minus the signal; what it said). Keys: folder, resume, fault, kill_at, signal_at,
        background."""
        answer = self.answer(command)
        return answer["code"], answer["said"]


def _serve() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder))  # whatever torch imports at its first step, the children find imported
    keep_what_is_imported()
    for line in sys.stdin:
        command = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.dup2(writer, 2)
            os._exit(_child(command))
        os.close(writer)
        with os.fdopen(reader) as said:
            text = said.read()
        print(json.dumps({"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "said": text}), flush=True)


def _child(command: dict[str, Any]) -> int:
    if command.get("fault"):
        os.environ["COMPRESS_FAULT"] = command["fault"]
    flag, hooks = Flag(), {}
    if command.get("background"):
        keeper.writes_in_background = lambda device: True
    if "kill_at" in command:
        hooks[command["kill_at"]] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    if "signal_at" in command:
        signal.signal(signal.SIGTERM, lambda *_: setattr(flag, "requested", "SIGTERM"))
        hooks[command["signal_at"]] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    try:
        source = replace(Source(), hooks=hooks)
        run(Path(command["folder"]), resume=command.get("resume", False), stop=flag, source=source)
    except Stopped as stopped:
        print(stopped, file=sys.stderr, flush=True)
        return 75
    except UserError as error:
        print(error.line(), file=sys.stderr, flush=True)
        return int(error.code)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


if __name__ == "__main__":
    _serve()
