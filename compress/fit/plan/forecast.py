"""`--plan-only`: what would be tried, and what is known of it before anything is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compress.errors import UserError
from compress.fit.loss.past_fits import FEWEST, Experience
from compress.fit.make.bench import Bench
from compress.fit.plan.plans import Plan
from compress.fit.plan.search import SKIPPED, Search
from compress.fit.request.case import Case
from compress.modelfolder import folder as modelfolder
from compress.report.rows import title
from compress.tracking import resolve_store
from compress.tracking.reading import Reader


def forecast(case: Case, bench: Bench, search: Search) -> dict[str, Any]:
    """The plans before any is made: exact sizes, milliseconds with their margin, and what plans like them lost."""
    past, why = _experience(case)
    margin = bench.costs.blocks.margin
    rows, told, without = [], [], []
    for place, (plan, mb) in enumerate(
        plan_within_budget(search, lambda plan: bench.maker.megabytes(plan, bench.serving)), 1
    ):
        low, high = plan.ms / margin, plan.ms * margin
        expected = None if past is None else past.estimate_loss(plan.loss)
        lost = "unknown"
        if expected is not None:
            lost = f"{expected.value:.2f} [{expected.low:.2f}, {expected.high:.2f}]"
        elif past is not None:
            without.append(f"plan {place} ({past.count_similar(plan.loss)} similar)")
        rows.append((
            f"plan {place}", f"{mb:.3f}", f"{plan.ms:.2f} [{low:.2f}, {high:.2f}]", f"{plan.loss:.3f}", lost,
            plan.sentence(case.loaded.config),
        ))  # fmt: skip
        told.append({
            **plan.as_json(), "mb": mb, "ms_low": low, "ms_high": high,
            "points_lost": None if expected is None else expected.as_json(),
        })  # fmt: skip
    machine = "this machine" if case.wanted.target is None else f"the target {case.wanted.target.name}"
    columns = ("", "MB", "ms", case.loss_words.column, f"{title(case.metric)} lost, points", "plan")
    case.console.table(f"plans for {case.bounds.sentence()}", columns, rows)
    lines = [
        "MB are exact: they are sizes of written files",
        f"ms are predicted from the cost table, with a 95 % interval from the prediction errors of "
        f"{len(bench.costs.blocks.checks)} models with random weights on {machine}",
        f"{case.loss_words.name} is predicted as the sum of the separate losses; it is measured when the plan is built",
        *_on_points(told, without, why),
    ]
    if not rows and search.skipped:
        more = max(search.skipped.values())
        lines.insert(
            0, f"no plan: written files are up to {more:.3f} MB larger than predicted, which is over the budget"
        )
    for line in lines:
        case.console.result(line)
    return {"plans": told, "bounds": case.bounds.as_json(), "notes": lines}


def plan_within_budget(search: Search, megabytes: Callable[[Plan], float]) -> list[tuple[Plan, float]]:
    """The first plans whose files, by their exact megabytes, are within the budget, and these: where planned ones were
    too low the next plans are aimed lower, as they are when plans are made."""
    exact: dict[str, float] = {}
    found: list[Plan] = []
    for _ in range(SKIPPED):
        found = search.forecast()
        exact |= {plan.key: megabytes(plan) for plan in found if plan.key not in exact}
        over = [plan for plan in found if search.skip(plan, exact[plan.key])]
        if not over:
            break
    return [(plan, exact[plan.key]) for plan in found if plan.key not in search.skipped]


def _experience(case: Case) -> tuple[Experience | None, str]:
    """What the store knows of earlier plans, or why it is not to be had."""
    try:
        reader = Reader(resolve_store(case.options.tracking_uri))
        return Experience.of(reader, case.metric, modelfolder.fingerprint(case.source)), ""
    except UserError as error:
        return None, error.line()


def _on_points(told: Sequence[Mapping[str, Any]], without: Sequence[str], why: str) -> list[str]:
    """Where the intervals of lost points come from, and which plans have none."""
    lines = []
    for of in ("this model", "all models"):
        sizes = [row["points_lost"]["plans"] for row in told if row["points_lost"] and row["points_lost"]["of"] == of]
        if sizes:
            holds = 100 * (min(sizes) - 1) / (min(sizes) + 1)
            lines.append(
                f"points lost: median and range of {min(sizes)} or more earlier plans of {of} with similar KL, built "
                f"without training; at least {holds:.0f} % of such plans lie within the range"
            )
    if without:
        lines.append(
            f"points lost are unknown where fewer than {FEWEST} earlier plans have similar KL: {', '.join(without)}; "
            "to measure them, run the same command without --plan-only"
        )
    if why:
        lines.append(f"points lost are unknown because the store cannot be opened: {why}")
    return lines
