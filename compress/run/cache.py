"""The stage cache: results of earlier runs with the same input and settings, found and verified by content.

The index lies in the user's cache folder, a small file for each key, and names folders of runs; models are never copied
there. What is found becomes the new run's own under a second name, which takes no room.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import compress
import evaluation
from compress.contracts import StageSpec
from compress.contracts.traits import TOKENIZER
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.resolve import resolve as resolve_model
from compress.modelfolder.sentence_files import identity
from compress.run.results import STEPS
from compress.stages.shared.corpora import words_read
from compress.stages.shared.stage import StageContext
from compress.storage import atomic, safe
from compress.storage.cache import cache_folder
from evaluation.cost.device import describe

MADE = "made.json"
"""In a stage's work folder: of what, and as what, its model was made."""

PLACES = 8
"""Of one key that are remembered."""


@dataclass(frozen=True)
class CachedStage:
    """A stage of an earlier run. model: what it made.  work: its work folder."""

    model: Path
    work: Path

    @property
    def run(self) -> Path:
        """The folder of the run, as a person reads it."""
        path = self.work.parent.parent
        return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


@functools.cache
def code() -> str:
    """sha256 of this program's sources: another version may make another model."""
    digest = hashlib.sha256(compress.__version__.encode())
    for package in (compress, evaluation):
        root = Path(str(package.__file__)).parent
        for file in sorted(root.rglob("*.py")):
            digest.update(f"{root.name}/{file.relative_to(root).as_posix()}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def mark(folder: Path) -> str:
    """What a stage's folder is: a model's identity, which measuring it does not change; of a tokenizer all files."""
    if modelfolder.is_model_folder(folder):
        return identity(folder)
    files = atomic.read_manifest(folder)
    return hashlib.sha256("".join(f"{name} {files[name].sha256}\n" for name in sorted(files)).encode()).hexdigest()


def key(spec: StageSpec, index: int, context: StageContext) -> str:
    """sha256 of all that decides what a stage makes: what it reads, its part of the recipe, the seed, this program."""
    recipe, needs = context.recipe, spec.needs()
    parts: dict[str, Any] = {
        "code": [
            *(code(), torch.__version__, context.device, context.precision),
            *(["deterministic"] if torch.are_deterministic_algorithms_enabled() else []),
        ],
        "seed": context.seed,
        "stage": spec.model_dump(mode="json"),
        "model": None if context.model is None else mark(context.model),
        TOKENIZER: None if context.tokenizer is None else mark(context.tokenizer),
        "words": sorted(words_read(recipe, [index]).values()),
        "checkpoints": [mark(resolve_model(name)) for name in spec.checkpoints()],
    }
    if "teacher" in needs and (context.model is None or spec.reads_teacher):
        taught = (context.teacher, context.general_teacher)
        parts["teachers"] = [None if folder is None else mark(folder) for folder in taught]
        parts["ensemble"] = None if context.ensemble is None else context.ensemble.fingerprint
    for block, opened in (("data", context.table), ("corpus", context.corpus)):
        said = getattr(recipe, block)
        if block in needs and said is not None:
            parts[block] = [
                said.model_dump(mode="json", exclude={"source", "unlabelled", "pool"}),
                opened().fingerprint,
            ]
    if spec.timed:
        parts["latency"] = recipe.evaluation.latency.dump_for_hash()
        if spec.depends_on_machine():
            parts["machine"] = describe(context.device)
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def find(key: str, say: Callable[[str], None]) -> CachedStage | None:
    """The stage with this key, whole and as it was made; None where there is none. say: prints those that were
    changed since."""
    for place in _places(key):
        found = CachedStage(Path(place["model"]), Path(place["work"]))
        if not found.model.is_dir() or not (found.work / STEPS).is_file():
            continue
        reason = describe_change(found.model, place["mark"])
        if reason is None:
            return found
        say(f"{found.model} is not used: {reason}")
    return None


def describe_change(model: Path, marked: str) -> str | None:
    """How a stage's folder differs from what was made; None where it does not."""
    reasons = atomic.verify_folder(model)
    if reasons:
        return f"it was changed after it was written ({reasons[0]})"
    return None if mark(model) == marked else "it contains a different model"


def keep(key: str, model: Path, work: Path, say: Callable[[str], None]) -> None:
    """Remember a stage that was made. A cache that cannot be written is only reported."""
    row = {"model": str(model.absolute()), "work": str(work.absolute()), "mark": mark(model)}
    others = [place for place in _places(key) if place["model"] != row["model"] and Path(place["model"]).is_dir()]
    try:
        atomic.write_json(_file(key), {"version": 1, "places": [*others[1 - PLACES :], row]})
    except UserError as error:
        say(f"later runs cannot reuse this stage: {error.line()}")


def take(found: CachedStage, target: Path, work: Path) -> None:
    """Make a stage of an earlier run this run's own: its model, and what it wrote beside it."""
    for file in sorted(found.work.iterdir()):
        if file.is_file() and file.suffix in (".json", ".svg") and not file.name.startswith(".") and file.name != MADE:
            atomic.write_bytes(work / file.name, file.read_bytes())
    modelfolder.duplicate(found.model, target)


def _file(key: str) -> Path:
    return cache_folder() / "stages" / f"{key[:40]}.json"


def _places(key: str) -> list[Mapping[str, str]]:
    try:
        said = safe.read_json(_file(key)) if _file(key).is_file() else {}
        rows = said.get("places", [])
        names = ("model", "work", "mark")
        return [row for row in rows if all(isinstance(row.get(name), str) for name in names)]
    except (UserError, AttributeError, TypeError):  # of another version, or not ours: as if it were not there
        return []
