"""Experiments and runs of a store: found, or made where they are not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compress.tracking import models
from compress.tracking.store import Store
from compress.tracking.view import ensure_view, new_view

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment


def find_run(client: MlflowClient, experiment_id: str, key: str) -> str | None:
    """The id of the run with this key of a journal, be it deleted."""
    from mlflow.entities import ViewType

    same_key = f"tags.`{models.KEY_TAG}` = '{key}'"
    found = client.search_runs([experiment_id], same_key, run_view_type=ViewType.ALL, max_results=1)
    return found[0].info.run_id if found else None


def ensure_experiment(client: MlflowClient, store: Store, name: str, view: str | None) -> str:
    """The id of the experiment, made or taken back from the bin when needed, with our saved view."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        experiment = _create_experiment(client, store, name, view)
        if isinstance(experiment, str):
            return experiment
    if experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    if view is not None:
        ensure_view(client, experiment.experiment_id, view, experiment.tags)
    return experiment.experiment_id


def _create_experiment(client: MlflowClient, store: Store, name: str, view: str | None) -> str | Experiment:
    """The id of a new experiment, or the one that another made at the same time."""
    tags = {"mlflow.experimentKind": "custom_model_development"}
    if view is not None:
        tags |= new_view(view)
    try:
        return client.create_experiment(name, artifact_location=store.artifact_location(name), tags=tags)
    except Exception:
        made_by_another = client.get_experiment_by_name(name)
        if made_by_another is None:
            raise
        return made_by_another
