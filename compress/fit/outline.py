"""`--dry-run`: what a fit reads and what it would do, before anything is measured."""

from __future__ import annotations

from typing import Any

from compress.fit.request.case import Case
from compress.fit.train.recovery import plan_rungs
from compress.modelfolder.resolve import HUB


def show(case: Case) -> dict[str, Any]:
    """Print it; the document that --json prints."""
    lines = [f"data: {case.table.summary}", *_steps(case)]
    lines += [f"push: {HUB}{case.options.push}"] if case.options.push else []
    for line in lines:
        case.console.result(line)
    return {"bounds": case.bounds.as_json(), "plan": lines}


def _steps(case: Case) -> list[str]:
    wanted, config = case.wanted, case.loaded.config
    place = "this machine" if wanted.target is None else f"the target {wanted.target.name}"
    parts = f"{len(config.layers)} layers x {config.hidden}, {config.count_parameters():,} parameters"
    texts = f"sequences of {case.length} tokens" if case.texts is None else "the lengths of the test rows"
    lines = [
        f"model: {case.source}: {parts}",
        f"goal: {case.bounds.sentence()}; batch size {wanted.batch}, {texts}, on {place}",
        "measure: what each part of the model costs there, and what its removal costs in quality on training rows; "
        "both are kept for later fits",
    ]
    if wanted.plan_only:
        return [*lines, "plan: forecasts only; no model is built"]
    lines.append(
        f"plan: build up to {wanted.plans} models, compare them on {_count(case, 'validation')} validation rows"
    )
    if wanted.train != "none":
        rungs = (f"the {count} best for {steps} steps" for count, steps in plan_rungs(wanted.steps))
        lines.append(f"train: recovery training, {', then '.join(rungs).replace('the 1 best', 'the best')}")
    if wanted.trials:
        lines.append(f"train: the best one {wanted.trials} more times with other settings")
    if wanted.train == "full":
        lines.append(f"train: the best one with quantization-aware training, {wanted.steps} steps")
    if wanted.cascade:
        lines.append("cascade: join models of the fit within --max-drop")
    return [*lines, f"certify: the best one on {_count(case, 'test')} test rows"]


def _count(case: Case, split: str) -> str:
    return f"{len(case.table.split(split)):,}"
