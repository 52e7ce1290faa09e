"""Saved MLflow views of related runs: the lineage of one model, or one criterion comparison; written on request.

Their keys do not begin as that of the trade-offs does: the page of an experiment stays its trade-offs, and an archive
does not carry them, as they name runs by ids that another store does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from compress.errors import ExitCode, UserError, printable
from compress.tracking.deleting import with_children
from compress.tracking.listing import Page, all_experiments, experiment_named, find_page, find_run
from compress.tracking.models import KEY_TAG
from compress.tracking.reading import PARENT
from compress.tracking.store import Store, open_client, short
from compress.tracking.view import DEFAULT_QUALITY, criteria_state, lineage_state, write_view

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

MOST = 400
"""Runs of one lineage: the view names each by its id, and a tag of the store holds 20,000 characters."""
CRITERIA = "compress.criteria"  # a tag of each cut in a contest
SUMMARY = "summary"  # role of a run above those of several models: a contest, a sweep, several seeds


def find_view(store: Store, view: str, run: str | None = None, experiment: str | None = None) -> Page | None:
    """The page of the view `tradeoffs`, `lineage` or `criteria`; None when there is no run of ours.

    run: name, id or begin of the id of the run it is about; not given: the newest that has such a view.
    Raises UserError for a run or an experiment that is not there, a run that is no part of a contest, and a store that
    does not take the view.
    """
    if view == "tradeoffs":
        if run is not None:
            raise UserError(
                "only applies to the view of one run", where="--run", do="add --view lineage, or --view criteria"
            )
        return find_page(store, experiment)
    client = open_client(store)
    asked = _named(client, store, run, experiment) if run else _newest(client, experiment, view)
    if asked is None:
        return None
    return _lineage(client, asked) if view == "lineage" else _contest(client, asked)


def _named(client: MlflowClient, store: Store, run: str, experiment: str | None) -> Run:
    return client.get_run(find_run(store, run, experiment).run_id)


def _newest(client: MlflowClient, experiment: str | None, view: str) -> Run | None:
    """The newest run of ours, for a contest the newest cut in one; None when there is no run of ours at all."""
    where = [experiment_named(client, experiment)] if experiment else all_experiments(client)
    for tag in (CRITERIA, KEY_TAG) if view == "criteria" else (KEY_TAG,):
        found = client.search_runs(
            [e.experiment_id for e in where],
            f"tags.`{tag}` LIKE '%'",
            order_by=["attributes.start_time DESC"],
            max_results=1,
        )
        if found:
            return found[0]
    return None


def _lineage(client: MlflowClient, run: Run) -> Page:
    """The view of the model that the run made or is a stage of: its own run, and all below that."""
    while (above := _above(client, run)) is not None and above.data.tags.get("compress.role") != SUMMARY:
        run = above
    runs = with_children(client, run, [run.info.experiment_id])
    if len(runs) > MOST:
        raise UserError(
            f"has {len(runs):,} child runs; a view shows at most {MOST}",
            where=f"run {_name(run)}",
            do="name one of its child runs with --run",
        )
    state = lineage_state(_quality(runs), [one.info.run_id for one in runs])
    return _written(client, run, "lineage", f"Lineage of {_name(run)}", state)


def _contest(client: MlflowClient, run: Run) -> Page:
    """The view of the contest that the run is, or is part of."""
    at: Run | None = run
    while at is not None:
        cuts = client.search_runs(
            [at.info.experiment_id], f"tags.`{PARENT}` = '{at.info.run_id}' AND tags.`{CRITERIA}` LIKE '%'"
        )
        if cuts:
            return _written(
                client, at, "contest", f"Contest {_name(at)}", criteria_state(_quality(cuts), at.info.run_id)
            )
        at = _above(client, at)
    raise UserError(
        "it is not a criterion comparison with recovery training, nor a run of one",
        where=f"run {_name(run)}",
        do="name one with --run, or run one: compress prune-layers --criterion all",
    )


def _above(client: MlflowClient, run: Run) -> Run | None:
    """The run above; None at the top, and where the one above is gone for good."""
    above = run.data.tags.get(PARENT)
    if not above:
        return None
    try:
        return client.get_run(above)
    except Exception as error:
        if getattr(error, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def _name(run: Run) -> str:
    return printable(run.info.run_name or run.info.run_id, 80)


def _quality(runs: Sequence[Run]) -> str:
    """The figure that decides these runs' task."""
    named = (run.data.tags.get("measured.metric") for run in runs)
    return next((f"quality/{metric}" for metric in named if metric), DEFAULT_QUALITY)


def _written(client: MlflowClient, run: Run, kind: str, name: str, state: dict[str, Any]) -> Page:
    """The page with the view, which the store has now."""
    key = f"{kind}-{run.info.run_id[:8]}"
    try:
        write_view(client, run.info.experiment_id, key, state, name)
    except Exception as error:
        raise UserError(
            f"the store rejected the view: {short(error)}",
            where="--view",
            do="remove the option; the page then opens on the trade-off view",
            code=ExitCode.ENVIRONMENT,
        ) from error
    experiment = client.get_experiment(run.info.experiment_id)
    return Page(experiment.experiment_id, experiment.name, key, charts=False)
