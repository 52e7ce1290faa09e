"""What a fit prints: each plan as it is evaluated, the table of plans, the family, the result."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compress.fit.certificate import document as certificate
from compress.fit.cost.serving import FLOAT
from compress.fit.make.evaluator import Evaluation, Evaluator, share_timings
from compress.fit.plan.plans import Plan
from compress.fit.request.case import Case
from compress.recipe.schema import DataSpec
from compress.report.rows import format_difference, format_figure, in_percent, title
from compress.tracking import TrackedRun

READ = ("text_column", "text_pair_column", "label_column", "task", "limit", "bad_rows", "bad_tags")
"""Keys of the data that say what is read of it; each has a flag of its name."""


def bits(count: int) -> str:
    """`int8`, `float`."""
    return "float" if count == FLOAT else f"int{count}"


def format_plan(plan: Plan, unit: str = "nats") -> str:
    """unit: of the loss; see `Case.loss_words`."""
    return f"{plan.mb:.2f} MB, {plan.ms:.2f} ms, {plan.loss:.3f} {unit}"


def progress(metric: str, judged: Evaluation, best: Evaluation, met: bool) -> str:
    """Of the plan that was just judged, and the best so far."""
    how = "best so far" if met else "closest so far"
    return f"{judged.name}: {figures_of(metric, judged)}; {how}: {best.name}"


def figures_of(metric: str, j: Evaluation) -> str:
    lost = format_difference(metric, 0 - j.drop / 100) + " points" * in_percent(metric)
    return (
        f"{title(metric)} {format_figure(metric, j.value)} ({lost}), {j.mb:.2f} MB, "
        f"{j.timing.ms:.2f} ms{j.timing.remark}, {j.timing.speedup:.2f}x the speed of the float parent"
    )


def figures(metric: str, j: Evaluation) -> dict[str, float]:
    """For MLflow."""
    return {
        f"validation/{metric}": j.value,
        "validation/drop_points": j.drop,
        "validation/kl": j.apart,
        "size/disk_mb": j.mb,
        **j.timing.speeds(),
        **({"fit/speedup": j.timing.speedup} if j.timing.is_measured else {}),
        "fit/planned_ms": j.plan.ms,
        "fit/planned_mb": j.plan.mb,
        "fit/planned_loss": j.plan.loss,
        "fit/trained_steps": float(j.steps),
    }


def plans(
    case: Case, evaluator: Evaluator, tried: Sequence[Evaluation]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns, rows): the parent, and a plan a row."""
    columns = (
        "",
        f"{title(case.metric)} x 100",
        "lost",
        case.loss_words.name,
        "MB",
        "predicted",
        "ms",
        "predicted",
        "speedup",
        "bounds",
    )
    first = tried[0].timing
    parent = first.parent_p50 if first.quiet else first.parent_minimum
    rows = [
        (
            "parent, float",
            f"{100 * evaluator.value:.2f}",
            "",
            "",
            f"{evaluator.parent_mb:.2f}",
            "",
            f"{parent:.2f}",
            "",
            "1.00x",
            "",
        )
    ]
    for j in share_timings(tried):
        over = case.bounds.over(j.mb, j.timing.ms, j.drop)
        rows.append((
            j.name, f"{100 * j.value:.2f}", f"{j.drop:.2f} [{j.drop_low:.2f}, {j.drop_high:.2f}]", f"{j.apart:.3f}",
            f"{j.mb:.2f}", f"{j.plan.mb:.2f}", f"{j.timing.ms:.2f}{j.timing.remark}",
            f"{j.plan.ms:.2f}", f"{j.timing.speedup:.2f}x", "; ".join(over) or "met",
        ))  # fmt: skip
    return columns, rows


def family(case: Case, evaluator: Evaluator, members: Sequence[Evaluation]) -> None:
    """The models that no other beats."""
    columns, rows = plans(case, evaluator, members)
    title = "Pareto family: no other model is as small, as fast and, by the paired 95 % interval, as good"
    case.console.table(title, columns, rows)
    for j in members:
        case.console.result(f"{j.name}: {j.folder}: {j.plan.sentence(case.loaded.config)}")


def result(case: Case, model: Path, found: Mapping[str, Any], log: TrackedRun) -> None:
    """The lines that a person needs next."""
    case.console.result("")
    for line in certificate.sentences(found):
        case.console.result(line)
    location(case, model)
    name = shlex.quote(str(model))
    predicted = found["latency"]["predicted"] is not None
    how = "--kit check.pyz" if predicted else name_data(case.table.name, case.recipe.data)
    case.console.result(f"check it compress verify {name} {how}")
    for line in log.ui_lines():
        case.console.result(f"see it   {line}")


def location(case: Case, model: Path) -> None:
    """Where a model is, and how it is used."""
    case.console.result(f"model    {model}")
    example = case.task.example_for(case.table.columns)
    case.console.result(f"use it   compress predict {shlex.quote(str(model))} {example}")


def name_data(name: str, data: DataSpec | None) -> str:
    """The flags that read the same rows again."""
    default = DataSpec(source=name)
    given = {key: getattr(data or default, key) for key in READ}
    changed = {key: value for key, value in given.items() if value != getattr(default, key)}
    flags = [f"--{key.replace('_', '-')} {shlex.quote(str(value))}" for key, value in changed.items()]
    return " ".join([f"--data {shlex.quote(name)}", *flags])


def short(found: Mapping[str, Any]) -> str:
    """A certificate in a clause."""
    metric, value = (found["quality"][key] for key in ("metric", "value"))
    shown = "" if value is None else f", {title(metric)} {format_figure(metric, value)}"
    return f"{found['size_mb']:.2f} MB, {found['latency']['ms']:.2f} ms{shown}"
