"""A toy task, toy recipes, and a process that runs the real command in forked children."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import itertools
import json
import os
import pkgutil
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from child_server import ChildServer, keep_what_is_imported
from haste import (
    check_files_in_onnxruntime_alone,
    do_not_wait_for_quiet,
    is_sent_to_store,
    never_wait_for_the_disk,
    remember_newest_schema,
    send_to_store,
    take_the_machine_for_quiet,
    time_few_calls,
)
from small_sets import shrink

from compress.garbage import collect_seldom

ROOT = Path(__file__).parents[2]

STORED_PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("tags", "value"),
)
"""Columns of the store that hold absolute paths."""


def copy_folder(source: Path, target: Path) -> None:
    """A copy of a working folder. Its store's paths lead into the copy: else the files of every test's runs would be
    written into the folder that the next test copies."""
    shutil.copytree(source, target)
    with sqlite3.connect(target / "mlruns/mlflow.db") as database:
        for table, column in STORED_PLACES:
            database.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (f"{source}/", f"{target}/"))
    database.close()


# --- data -------------------------------------------------------------------------------------------------------

GOOD, BAD = ("good", "lovely", "great", "fine"), ("bad", "awful", "poor", "dull")
THINGS = ("film", "screen", "plot", "actor", "book", "meal", "hotel", "song")
SPEAKERS = ("she", "he", "anna", "the guide", "my brother", "nobody else")
SHORT_LENGTH = {"LEAST": 4, "LEAST_OF_LARGE": 8, "MOST": 12, "MOST_OF_LARGE": 20}
"""Limits of `training.length`: recipes that leave the length open would train for hundreds of steps on a toy."""
SPLITS = {"train": 64, "validation": 16, "test": 32, "unlabelled": 24}


def opinions() -> dict[str, list[dict[str, str]]]:
    """Rows of each split; no text stands twice."""
    made = []
    for number, (thing, speaker, word, negated) in enumerate(
        itertools.product(THINGS, SPEAKERS, GOOD + BAD, (False, True))
    ):
        text = f"{speaker} said the {thing} was {'not ' if negated else ''}{word}"
        made.append(
            (number * 7919 % 1009, {"text": text, "label": "positive" if (word in GOOD) != negated else "negative"})
        )
    rows = iter([row for _, row in sorted(made, key=lambda pair: pair[0])])
    splits = {split: list(itertools.islice(rows, count)) for split, count in SPLITS.items()}
    splits["unlabelled"] = [{"text": row["text"]} for row in splits["unlabelled"]]
    return splits


def list_words() -> list[str]:
    """The words of all texts."""
    return sorted({word for rows in opinions().values() for row in rows for word in row["text"].split()})


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_data(folder: Path) -> Path:
    """`folder` with a jsonl file per split."""
    for split, rows in opinions().items():
        write_rows(folder / f"{split}.jsonl", rows)
    return folder


def write_pairs(folder: Path) -> Path:
    """Pairs of texts: do both say the same."""
    for split, rows in opinions().items():
        if split != "unlabelled":
            pairs = [
                {"first": a["text"], "second": b["text"], "label": "same" if a["label"] == b["label"] else "other"}
                for a, b in itertools.pairwise(rows)
            ]
            write_rows(folder / f"{split}.jsonl", pairs)
    return folder


def write_corpus(path: Path) -> Path:
    """Documents of four sentences, parted by blank lines."""
    texts = [row["text"] for rows in opinions().values() for row in rows]
    documents = ["\n".join(f"{text} ." for text in texts[i : i + 4]) for i in range(0, len(texts), 2)]
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


# --- recipes ----------------------------------------------------------------------------------------------------

QUICK = """
evaluation:
  bootstrap: 100
  latency: {length: 16, warmup: 0, repeats: 5, seconds: 1}
  throughput_rows: 16
"""

TASK = f"""
extends: distilbert-task
description: the task step on a toy
data: {{max_length: 24}}
{QUICK}
stages:
  - kind: distill
    level: task_specific
    student: {{layers: [0, 2]}}
    objectives:
      - {{kind: soft_targets, on: task, temperature: 2.0}}
      - {{kind: hard_labels, weight: 0.5}}
    training: {{steps: 6, batch_rows: 8, learning_rate: 1e-3, checkpoint_every: 2, validate_every: 3, log_every: 1}}
    control: false
"""

DATA = ("--data", "data", "--corpus", "corpus.txt")
SMOKE = ("distill", "--recipe", "smoke", "--data", "data", "--set", "corpus.source=corpus.txt")

# In the folder of the fixture `made`:
TEACHER = "runs/teacher/model"
PRETRAINED = "runs/teacher/stages/1-pretrain/model"
DISTILL = ("distill", "--recipe", "./task.yaml", "--teacher", TEACHER, "--data", "data")

# --- running ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Done:
    """What a command left: exit code (minus the signal that ended it), stdout, stderr. others: codes of other ranks."""

    code: int
    out: str
    err: str
    others: tuple[int, ...] = ()

    @property
    def line(self) -> str:
        """The last line on stderr: the error, if there was one."""
        return self.err.strip().splitlines()[-1] if self.err.strip() else ""


Cli = Callable[..., Done]
"""A command in the process of the test."""


@dataclass(frozen=True)
class River:
    """A whole recipe, run: teacher, corpus, task and control; then the same once more, for machines."""

    folder: Path
    first: Done
    second: Done


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Server(ChildServer):
    """Runs the command in forked children of one process in which everything heavy is imported already.

    A child is told to end itself at a moment of its own: real time is no measure on a busy machine.
    """

    def __init__(self) -> None:
        super().__init__(__file__)

    def run(
        self,
        folder: Path,
        *args: str | Path,
        fault: str = "",
        signal_at: tuple[int, str] | None = None,
        second: str = "",
        world: int = 1,
        rank: int = 0,
        sends: bool | None = None,
        **environment: str,
    ) -> Done:
        """`compress ARGS` in `folder`. fault: as COMPRESS_FAULT.  signal_at: (training step, signal's name).
        second: a signal that is sent once it ends the process at once.

        world: processes, as torchrun would start them; rank: which of them fault and signal are for. What all say comes
        together.

        sends: what it tracks goes to the store; None: where the test is marked so.  environment: further variables.
        """
        asked = {"folder": str(folder), "args": list(map(str, args)), "fault": fault, "signal_at": signal_at}
        asked["environment"] = environment
        asked |= {"second": second, "world": world, "rank": rank}
        asked["sends"] = is_sent_to_store() if sends is None else sends
        codes = self.answer(asked)
        said = [(folder / name).read_text(encoding="utf-8") for name in (".out", ".err")]
        return Done(codes[0], *said, others=tuple(codes[1:]))


def _serve() -> None:
    collect_seldom()
    _warm_up()
    keep_what_is_imported()
    with never_wait_for_the_disk():
        _answer()


def _answer() -> None:
    from torchrun_places import places

    for line in sys.stdin:
        asked = json.loads(line)
        for name in (".out", ".err"):
            Path(asked["folder"], name).unlink(missing_ok=True)
        children = []
        for rank, place in enumerate(places(asked["world"])):
            children.append(os.fork())
            if children[-1] == 0:
                os.environ.update(place)
                os._exit(_child(asked, disturbed=rank == asked["rank"]))
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


def _warm_up() -> None:
    """Import whatever a command may import, and what torch and sqlalchemy import when first used.

    A child then begins where a command that was run before would. No thread may come of it: a child has none of them.
    """
    import torch

    import compress
    import evaluation
    from compress.run.run import _packages
    from compress.tracking import Store
    from compress.tracking.store import import_mlflow, silence
    from compress.training import length

    patch = pytest.MonkeyPatch()
    take_the_machine_for_quiet(patch)
    time_few_calls(patch)
    shrink(patch)
    do_not_wait_for_quiet(patch)
    check_files_in_onnxruntime_alone(patch)
    for name, steps in SHORT_LENGTH.items():
        setattr(length, name, steps)
    torch.set_num_threads(1)
    import_mlflow()
    silence()
    remember_newest_schema()
    _packages()
    if importlib.util.find_spec("sklearn") is not None:  # of the baselines
        import sklearn.feature_extraction.text
        import sklearn.linear_model  # noqa: F401
    for package in (compress, evaluation):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(("__main__", "_triton")):  # kernels, which no CPU imports
                importlib.import_module(module.name)
    with tempfile.TemporaryDirectory() as folder:
        Store(f"sqlite:///{folder}/mlflow.db").client().search_experiments()
    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = torch.optim.AdamW([weight], fused=True)
    weight.sum().backward()
    optimizer.step()
    assert threading.active_count() == 1


def _child(asked: dict[str, Any], disturbed: bool) -> int:
    from compress.cli.main import main

    os.chdir(asked["folder"])
    os.environ.update(asked["environment"])
    send_to_store(asked["sends"])
    for descriptor, name in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.stdin.close()
    if asked["fault"] and disturbed:
        os.environ["COMPRESS_FAULT"] = asked["fault"]
    if asked["signal_at"] and disturbed:
        _signal_at(*asked["signal_at"])
    if asked["second"] and disturbed:
        threading.Thread(target=_signal_again, args=(asked["second"], bool(asked["fault"])), daemon=True).start()
    sys.argv = ["compress", *asked["args"]]
    try:
        code = main(asked["args"])
    except SystemExit as leaving:  # a process that follows the first one
        code = int(leaving.code or 0)
    sys.stdout.flush()
    return code


def _signal_at(step: int, name: str) -> None:
    """Send this process the signal when it begins its training step number `step`, counted over all stages."""
    from compress.training.loop import _Run

    steps, begin = itertools.count(1), _Run._step

    def counted(self: _Run) -> None:
        if next(steps) == step:
            os.kill(os.getpid(), signal.Signals[name])
        begin(self)

    _Run._step = counted  # pyright: ignore[reportAttributeAccessIssue]


def _signal_again(name: str, at_fault: bool) -> None:
    """Send this process the signal when it has had one, and the next ends it. at_fault: and it says that it is at the
    fault point, which a busy machine reaches late."""
    from compress.storage import signals

    while signals._watcher is None or not signals._watcher.armed.is_set():
        time.sleep(0.01)
    while at_fault and "fault: " not in Path(".err").read_text(encoding="utf-8"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.Signals[name])


if __name__ == "__main__":
    _serve()
