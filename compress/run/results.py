"""The results of a run: what its stages have made so far, its report, and where stages keep their files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from compress.contracts import StageResult, StageSpec
from compress.contracts.traits import TOKENIZER
from compress.measure.measured_model import MeasuredModel
from compress.modelfolder.resolve import resolve as resolve_model
from compress.modelfolder.resolve import tokenizer_folder
from compress.recipe import Recipe
from compress.run.gain import Gain
from compress.stages.shared.stage import FINDINGS
from compress.storage import atomic, safe
from compress.training.checkpoint import Checkpoints

STEPS = "steps.json"
TRAINED_ROWS = "rows/"
LEARNING_RATE = "learning_rate"
"""In STEPS: the rate of a stage whose recipe names none."""


@dataclass(frozen=True)
class ChainState:
    """What the stages so far have made. before: what the last stage started from.  last: what the last stage left.

    figures: stage → what its best validation gave, and what was measured at its end.  folders: place of a stage → the
    model that it made.  reused: stage → the folder of the earlier run that it was taken from.  resumed: stages that
    this run had made before it went on.
    """

    model: Path | None = None
    tokenizer: Path | None = None
    before: Path | None = None
    last: StageResult | None = None
    figures: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    folders: Mapping[int, Path] = dataclasses.field(default_factory=dict)
    reused: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    resumed: tuple[str, ...] = ()

    def add_stage(self, index: int, name: str, spec: StageSpec, result: StageResult) -> ChainState:
        told = {**self.figures, name: result.best} if result.best else self.figures
        reused = self.reused if result.source is None else {**self.reused, name: result.source}
        resumed = (*self.resumed, name) if result.resumed and result.source is None else self.resumed
        made = dataclasses.replace(self, figures=told, reused=reused, resumed=resumed)
        if spec.makes == TOKENIZER:
            return dataclasses.replace(made, tokenizer=result.folder)
        folders = {**self.folders, index: result.folder}
        return dataclasses.replace(made, before=self.model, model=result.folder, last=result, folders=folders)


@dataclass(frozen=True)
class RunReport:
    """What a run leaves: its folder, the final model's folder, and what was measured."""

    folder: Path
    model: Path
    measured: Sequence[MeasuredModel] = ()
    lines: Sequence[str] = ()
    stages: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    findings: Sequence[Mapping[str, Any]] = ()
    waterfall: Sequence[Mapping[str, Any]] = ()
    reused: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    reference: Literal["teacher", "parent"] = "teacher"
    gain: Gain | None = None

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints. stages: the figures that each gave while and after training.  findings: diagnosis.
        waterfall, reused: of a chain.  reference: what the model is called that the others are compared with."""
        chain = {"waterfall": list(self.waterfall)} if self.waterfall else {}
        chain |= {"reused": {name: str(path) for name, path in self.reused.items()}} if self.reused else {}
        return {
            "folder": str(self.folder),
            "model": str(self.model),
            "models": [m.as_json() for m in self.measured],
            "reference": self.reference,
            "stages": {name: dict(figures) for name, figures in self.stages.items()},
            "findings": list(self.findings),
            "notes": list(self.lines),
            **chain,
        }


def input_folder(name: str, path: Path) -> Path:
    """The folder that a flag means."""
    return tokenizer_folder(path) if name == TOKENIZER else resolve_model(str(path))


def work_folder(run: Path, index: int, name: str) -> Path:
    """Where a stage of the run in `run` keeps its checkpoints and, unless it is the last, its model."""
    return run / "stages" / f"{index}-{name}"


def discard_checkpoints(folder: Path) -> None:
    """Remove those of a stage whose model is written: they are many times its size."""
    Checkpoints(folder / "checkpoints", keep=1).discard()
    atomic.clean(folder / "checkpoints")


def read_findings(folder: Path) -> list[dict[str, Any]]:
    """What the diagnosis of the stage in `folder` found, a row each."""
    if not (folder / FINDINGS).is_file():
        return []
    table = safe.read_json(folder / FINDINGS, 1 << 20)
    return [{"stage": folder.name, **dict(zip(table["columns"], row, strict=True))} for row in table["data"]]


def with_chosen_values(recipe: Recipe, run: Path) -> Recipe:
    """The recipe with the learning rates that its stages have trained with, where it names none itself."""
    stages = list(recipe.stages)
    for index, stage in enumerate(stages):
        file = work_folder(run, index, stage.kind) / STEPS
        if not stage.trains() or stage.training.learning_rate is not None or not file.is_file():
            continue
        rate = safe.read_json(file, 1 << 16).get(LEARNING_RATE)
        plan = stage.training.model_copy(update={} if rate is None else {"learning_rate": float(rate)})
        stages[index] = stage.model_copy(update={"training": plan})
    return recipe.model_copy(update={"stages": tuple(stages)})


def read_trained_rows(folder: Path) -> dict[str, float]:
    """How many rows the stage that works in `folder` trained on, as figures of its model; empty where it did not
    count them."""
    if not (folder / STEPS).is_file():
        return {}
    rows = safe.read_json(folder / STEPS, 1 << 16).get("rows", {})
    return {f"{TRAINED_ROWS}{name}": float(count) for name, count in rows.items()}


def read_done(folder: Path, target: Path) -> StageResult:
    """Of a stage that was done before, in no seconds."""
    told = safe.read_json(folder / STEPS, 1 << 16)
    return StageResult(target, int(told["steps"]), 0.0, told["figures"], told.get("start", {}))
