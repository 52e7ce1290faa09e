"""`--train heal`: the best plans, distilled from the parent before they are rounded, by successive halving.

Each rung trains what the last one left, longer and fewer: most plans are told apart by little training (Jamieson and
Talwalkar, arXiv 1502.07943). A cut model is trained whole, over the whole vocabulary and in floats; then vocabulary,
tables and bits are cut as its plan says, and it is judged as every plan is.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.console import Console
from compress.contracts import Override
from compress.durable import atomic, safe
from compress.encoder.model import Model
from compress.fit import telling
from compress.fit.judge import Judged
from compress.modelfolder import folder as modelfolder
from compress.pipeline import Run
from compress.recipe import load_recipe
from compress.tracking import TrackedRun

if TYPE_CHECKING:
    from compress.fit.run import Fit

RECIPE = "distilbert-task"
RUNGS = ((4, 0.25), (2, 0.5), (1, 1.0))
"""How many plans are trained, and for what share of the steps."""
OBJECTIVES: Sequence[dict[str, Any]] = (
    {"kind": "soft_targets", "on": "task", "temperature": 2.0, "weight": 1.0},
    {"kind": "hidden_mse", "weight": 1.0},
    {"kind": "hard_labels", "weight": 0.2},
)
RATE = 1e-4
QUICK = {"repeats": 5, "seconds": 0.5}  # what a rung's own run measures is not what counts


def heal(fit: Fit, tried: Sequence[Judged], steps: int, log: TrackedRun) -> list[Judged]:
    """The plans that were trained, each judged as it was left. tried: plans without training.  steps: of the last rung.

    Only plans within the budgets of megabytes and milliseconds are trained, those nearest to the parent first, and
    none that cuts no layer, head or neuron: there is nothing to win back by it. Rungs that were judged are not run
    again. Raises Stopped where a signal asked for it.
    """
    able = [j for j in tried if not fit.bounds.over(j.mb, j.timing.ms, None) and _narrowed(fit, j)]
    field, healed = sorted(able, key=lambda j: j.apart), []
    starts = {j.plan.key: _start(fit, j) for j in field[: RUNGS[0][0]]}
    for rung, (count, share) in enumerate(RUNGS):
        here = []
        for judged in field[:count]:
            if fit.late(judged.seconds):
                fit.console.note(f"no time for more training in {fit.wanted.seconds:.0f} s")
                return healed
            made, starts[judged.plan.key] = _rung(
                fit, judged, starts[judged.plan.key], rung, max(1, round(share * steps)), log
            )
            here.append(made)
        healed += here
        field = sorted(here, key=lambda j: j.apart)
    return healed


def _narrowed(fit: Fit, judged: Judged) -> bool:
    """Whether layers, heads or neurons are fewer than the parent's."""
    return fit.maker.narrowed(judged.plan)


def _work(fit: Fit, judged: Judged) -> Path:
    return fit.path / "plans" / judged.plan.key / "healing"


def _start(fit: Fit, judged: Judged) -> Path:
    """The folder of the plan's cut model, not rounded, that training starts from."""
    folder = _work(fit, judged) / "start"
    if not folder.is_dir() or atomic.verify_folder(folder):
        fit.maker.save_narrow(judged.plan, folder, fit.data_note())
    return folder


def _rung(fit: Fit, judged: Judged, start: Path, rung: int, steps: int, log: TrackedRun) -> tuple[Judged, Path]:
    """Train from `start` for so many steps, round, judge; returns that and the trained folder."""
    from compress.fit.run import JUDGED, judged_from

    work, begun = _work(fit, judged), time.monotonic()
    folder, name = work / f"rung-{rung}", f"{judged.name.partition(',')[0]}, healed for {steps} steps"
    said = {
        "teacher": str(fit.source),
        "stages.0.student": {"model": str(start)},
        "stages.0.objectives": list(OBJECTIVES),
        "stages.0.control": False,
        "stages.0.checks": "off",
        "stages.0.training.steps": steps,
        "stages.0.training.epochs": None,
        "stages.0.training.learning_rate": RATE,
        **{f"evaluation.latency.{key}": value for key, value in QUICK.items()},
    }
    overrides = (*fit.options.overrides, *(Override(key, value, "--train heal") for key, value in said.items()))
    options = dataclasses.replace(
        fit.options, output=folder, overrides=overrides, resume=folder.exists(), runtime=None, onnx=False, json=False
    )
    fit.console.note(f"{judged.name.partition(',')[0]}: rung {rung + 1} of {len(RUNGS)}, {steps} steps from its parent")
    trained = folder / "student"
    told = folder / JUDGED
    if told.is_file() and not atomic.verify_folder(folder / "fitted"):
        return judged_from(safe.read_json(told, 1 << 20), folder / "fitted"), trained
    run = Run(load_recipe(RECIPE, overrides=overrides), options, Console(quiet=fit.console.quiet, json=True), None, {})
    run.parent, run.tags = log.parent, {"compress.parent_run": log.key}
    report = run.go()
    assert report is not None
    model: Model = modelfolder.load_model(report.model, device=fit.options.device).model.eval()
    fit.maker.write(judged.plan, fit.serving, folder / "fitted", fit.data_note(), narrow=model, steps=steps)
    made = fit.judge.judge(name, judged.plan, folder / "fitted", begun)
    atomic.write_json(told, made.as_json())
    fit.console.note(f"{name}: {telling.figures_of(fit, made)}")
    return made, report.model
