"""`compress runs export`: runs with their figures, files, data sets and models as a folder of `archiveformat`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from compress.errors import UserError, list_some, printable
from compress.storage import atomic
from compress.storage.trees import add_json, copy_tree
from compress.tracking.archiveformat import INDEX, RUN_NAME, Index, ModelFile, Read, RunFile, describe, write_valid
from compress.tracking.deleting import with_children
from compress.tracking.download import download
from compress.tracking.listing import all_experiments, experiment_named, find_run
from compress.tracking.models import KEY_TAG, VERSIONS_TAG
from compress.tracking.names import TAG_LIMIT
from compress.tracking.places import local_path
from compress.tracking.reading import MetricPoint, Reader
from compress.tracking.store import Store, open_client, require_made, short
from compress.tracking.view import PREFIX, TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

_MOST = 50_000
_FEW = 20  # models that are asked for one by one
_NAMED = 5  # registered versions that are named

Say = Callable[[str], None]


@dataclass(frozen=True)
class ExportedArchive:
    """folder: the archive.  runs, models: in it.  left_out: sentences on what is not."""

    folder: Path
    runs: int
    models: int
    left_out: list[str]


def export_runs(
    store: Store, names: Sequence[str], experiment: str | None, target: Path, say: Say = lambda _: None
) -> ExportedArchive:
    """Write the runs with these names and those below them (none named: all, or all of the experiment) to `target`.

    Raises UserError when `target` exists, and for a name that no run has. A run whose artifacts are gone is written
    with its figures.
    """
    require_made(store)
    atomic.require_writable(target)
    client, reader = open_client(store), Reader(store)
    runs = _chosen(store, client, names, experiment)
    experiments = {e.experiment_id: e for e in all_experiments(client)}
    left_out: list[str] = []
    models = _models(client, runs, left_out)
    with atomic.new_folder(target) as temp:
        for number, run in enumerate(runs, 1):
            told = _run(reader, run, experiments[run.info.experiment_id].name, models, left_out)
            add_json(temp / "runs" / f"{run.info.run_id}.json", told.model_dump())
            where = f"artifacts of run {told.name}"
            place = temp / "runs" / run.info.run_id
            left_out += _files(client, run.info.artifact_uri or "", place, where, must=False)
            if number % 100 == 0:
                say(f"{number} of {len(runs)} runs")
        for identity, model in models.items():
            add_json(temp / "models" / f"{identity}.json", _model(model, left_out).model_dump())
            place = temp / "models" / identity
            left_out += _files(client, model.artifact_location, place, f"files of model {model.name}", must=True)
        concerned = {run.info.experiment_id for run in runs}
        views = {experiments[e].name: _views(experiments[e].tags) for e in concerned}
        if versions := _list_versions(models.values()):
            do = "promote the models again after the import"
            names = list_some(versions, _NAMED)
            left_out.append(f"registered versions and their aliases are not exported: {names}; {do}")
        index = Index(store=store.shown, runs=[r.info.run_id for r in runs], experiments=views)
        add_json(temp / INDEX, index.model_dump())
    return ExportedArchive(Path(target), len(runs), len(models), left_out)


def _models(client: MlflowClient, runs: Sequence[Run], left_out: list[str]) -> dict[str, LoggedModel]:
    """The models of the runs by id, of many by the page; those that were deleted are left out and said."""
    names = {m: run.info.run_name for run in runs for m in _outputs(run)}
    found: dict[str, LoggedModel] = {}
    if len(names) > _FEW:
        experiments, token = list({run.info.experiment_id for run in runs}), None
        while True:
            page = client.search_logged_models(experiments, page_token=token)
            found |= {model.model_id: model for model in page if model.model_id in names}
            token = page.token
            if not token:
                break
    for identity, name in names.items():
        if identity in found:
            continue
        try:
            found[identity] = client.get_logged_model(identity)
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
                raise
            left_out.append(f"a model of run {printable(name or '', 250)} was deleted: {identity}")
    return {identity: found[identity] for identity in names if identity in found}


def _list_versions(models: Iterable[LoggedModel]) -> list[str]:
    """`name 3` of each version that was registered from these models."""
    found = []
    for model in models:
        try:
            rows = json.loads(model.tags.get(VERSIONS_TAG) or "[]")
            found += [printable(f"{row['name']} {row['version']}", 250) for row in rows]
        except (ValueError, TypeError, KeyError):  # a tag can hold anything
            continue
    return found


def _outputs(run: Run) -> list[str]:
    """Ids of its models, each once."""
    return list(dict.fromkeys(m.model_id for m in (run.outputs.model_outputs if run.outputs else [])))


def _chosen(store: Store, client: MlflowClient, names: Sequence[str], experiment: str | None) -> list[Run]:
    """Those above first."""
    if names:
        everywhere = [e.experiment_id for e in all_experiments(client)]
        asked = [client.get_run(find_run(store, name).run_id) for name in names]
        found = [run for one in asked for run in with_children(client, one, everywhere)]
    else:
        where = [experiment_named(client, experiment)] if experiment else all_experiments(client)
        ids = [e.experiment_id for e in where]
        found = list(client.search_runs(ids, order_by=["attributes.start_time ASC"], max_results=_MOST)) if ids else []
    unique = {run.info.run_id: run for run in found}
    return list(unique.values())


def _views(tags: dict[str, str]) -> dict[str, str]:
    """Our saved views."""
    return {key: value for key, value in tags.items() if key.startswith(TAG + PREFIX)}


def _run(reader: Reader, run: Run, experiment: str, models: Container[str], left_out: list[str]) -> RunFile:
    """What the store knows of a run. JSON cannot say NaN and infinity: our runs say them in a tag."""
    info = run.info
    name = printable(info.run_name or "").strip()[:TAG_LIMIT] or info.run_id
    tags = dict(run.data.tags)
    data = [
        {
            "name": d.dataset.name,
            "digest": d.dataset.digest,
            "source_type": d.dataset.source_type,
            "source": d.dataset.source,
            "tags": {tag.key: tag.value for tag in d.tags},
        }
        for d in (run.inputs.dataset_inputs if run.inputs else [])
    ]
    content = {
        "id": info.run_id,
        "name": name,
        "experiment": experiment,
        "status": info.status,
        "start_time": info.start_time,
        "end_time": info.end_time,
        "tags": tags | ({RUN_NAME: name} if RUN_NAME in tags else {}),
        "params": dict(run.data.params),
        "metrics": [p for p in reader.points(info.run_id, run.data.metrics, _final(run)) if math.isfinite(p[1])],
        "datasets": data,
        "models": [identity for identity in _outputs(run) if identity in models],
    }
    return _written(RunFile, content, f"run {name}", left_out)


def _final(run: Run) -> list[MetricPoint]:
    """The figures without a step of a run of ours, as they were listed with it: a server has no other call than one for
    each figure, and a run has fifty. An earlier value that a resumed run replaced is left out."""
    if KEY_TAG not in run.data.tags:
        return []
    listed = getattr(run.data, "_metric_objs", ())  # with time and step, which `metrics` lacks
    return [(m.key, m.value, m.timestamp, m.step) for m in listed if m.step == 0]


def _model(model: LoggedModel, left_out: list[str]) -> ModelFile:
    points = [m for m in (model.metrics or []) if math.isfinite(m.value)]
    content = {
        "id": model.model_id,
        "name": printable(model.name),
        "model_type": model.model_type,
        "tags": dict(model.tags),
        "params": dict(model.params or {}),
        "metrics": [(m.key, m.value, m.timestamp, m.step, m.dataset_name, m.dataset_digest) for m in points],
    }
    return _written(ModelFile, content, f"model {model.name}", left_out)


def _written(kind: type[Read], content: dict[str, Any], whose: str, left_out: list[str]) -> Read:
    try:
        told, without = write_valid(kind, content)
    except ValidationError as error:
        do = "change it in `compress ui`, or name the runs to export"
        raise UserError("cannot be exported", where=printable(whose, 250), why=describe(error), do=do) from None
    left_out += [f"{printable(whose, 250)}: left out {line}" for line in without]
    return told


def _files(client: MlflowClient, address: str, place: Path, what: str, must: bool) -> list[str]:
    """Copy the files at an address of the store; sentences on what could not be copied. must: there are some."""
    path = local_path(address)
    try:
        if path is None:
            download(address, place, client.tracking_uri)
        elif path.is_dir():
            copy_tree(path, place)
        elif must or not path.parent.parent.is_dir():
            return [f"{what}: {path} does not exist; if the files were moved, run `compress runs relocate`"]
    except Exception as error:
        return [f"{what}: {short(error)}"]
    return []
