"""Models in the store: a LoggedModel made from a model folder as it lies on disk (no pickle, no flavour), and its
versions in the registry."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from compress.tracking.batch import METRICS_PER_CALL, Point
from compress.tracking.records import Record
from compress.tracking.state import SendState

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Metric
    from mlflow.entities.model_registry import ModelVersion

    from compress.tracking.store import Store

KEY_TAG = "compress.key"
FROM_TAG = "compress.imported_from"  # the id that an imported run or model had where it was exported
VERSIONS_TAG = "mlflow.modelVersions"  # where the page of a LoggedModel looks for its versions
NOTE = "mlflow.note.content"  # the tag that holds the description of an experiment, a run, a logged model
CARD_LIMIT = 8000  # characters of a tag of a logged model
_CUT = "\n\n… The rest is in README.md, among the model's artifacts."


class JournalUpload(Protocol):
    """A journal on its way to the store: the run that its records go to. is_new: nothing of it can be in the store but
    what its state says, which a failure within `making` ends.  role_tags: tags that its models carry too."""

    @property
    def store(self) -> Store: ...
    @property
    def state(self) -> SendState: ...
    @property
    def run_id(self) -> str: ...
    @property
    def is_new(self) -> bool: ...
    @property
    def role_tags(self) -> dict[str, Any]: ...
    def making(self) -> AbstractContextManager[None]: ...
    def save(self) -> None: ...
    def place(self, path: str) -> Path: ...
    def metric(self, point: Point, **of_model: str) -> Metric: ...


def attach_model(replay: JournalUpload, client: MlflowClient, record: Record, points: Sequence[Point]) -> str:
    """Makes the LoggedModel of a journal's `model` record with its figures, or goes on with the one that was begun;
    returns the address of its files, which `finish_model` follows."""
    folder = replay.place(record["folder"])
    if not folder.is_dir():
        raise FileNotFoundError(f"model folder {folder} does not exist")
    model = _find(replay, client, record) or _create(replay, client, record, folder)
    dataset = {}
    if record["dataset"]:
        dataset = {"dataset_name": record["dataset"][0], "dataset_digest": record["dataset"][1]}
    for i in range(0, len(points), METRICS_PER_CALL):
        piece = points[i : i + METRICS_PER_CALL]
        metrics = [replay.metric(p, model_id=model.model_id, **dataset) for p in piece]
        client.log_batch(replay.run_id, metrics=metrics, synchronous=True)
    return model.artifact_location


def finish_model(client: MlflowClient, model_id: str) -> None:
    """Marks a model as ready, once its files are there."""
    client.finalize_logged_model(model_id, "READY")


def is_ready(model: LoggedModel) -> bool:
    """Whether its files have arrived."""
    return str(model.status) == "READY"


def read_card(folder: Path, limit: int) -> str:
    """The model card of a folder for the page of the model, without the header that model hubs read and without its
    title, as the page has one; empty where there is none. A longer one is cut at the end of a paragraph and says so.

    limit: characters.
    """
    file = folder / "README.md"
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    if text.startswith("---\n"):
        text = text.partition("\n---\n")[2]
    text = text.strip()
    if text.startswith("# "):
        text = text.partition("\n")[2].lstrip()
    if len(text) <= limit:
        return text
    kept = text[: limit - len(_CUT)]
    return (kept[: kept.rfind("\n\n")] if "\n\n" in kept else kept) + _CUT


def _find(replay: JournalUpload, client: MlflowClient, record: Record) -> LoggedModel | None:
    """The model of this record, where it was begun; with the card of the folder as it is now."""
    key = record["key"]
    known = replay.state.models.get(key)
    if known is None and replay.is_new:
        return None
    assert replay.state.experiment_id is not None
    if known is not None:
        model = client.get_logged_model(known)
    else:
        same_key = f"tags.`{KEY_TAG}` = '{key}'"
        found = client.search_logged_models([replay.state.experiment_id], filter_string=same_key, max_results=1)
        if not found:
            return None
        model = found[0]
    card = read_card(replay.place(record["folder"]), CARD_LIMIT)
    if card and model.tags.get(NOTE) != card:
        client.set_logged_model_tags(model.model_id, {NOTE: card})
    outputs = client.get_run(replay.run_id).outputs
    shown = outputs is not None and any(m.model_id == model.model_id for m in outputs.model_outputs)
    _remember(replay, client, key, model.model_id, shown=shown)
    return model


def _create(replay: JournalUpload, client: MlflowClient, record: Record, folder: Path) -> LoggedModel:
    assert replay.state.experiment_id is not None
    card = read_card(folder, CARD_LIMIT)
    with replay.making():
        model = client.create_logged_model(
            experiment_id=replay.state.experiment_id,
            name=record["name"],
            source_run_id=replay.run_id,
            tags={**replay.role_tags, KEY_TAG: record["key"], **({NOTE: card} if card else {})},
            params=record["params"],
            model_type=record["model_type"],
        )
    _remember(replay, client, record["key"], model.model_id, shown=False)
    return model


def _remember(replay: JournalUpload, client: MlflowClient, key: str, model_id: str, *, shown: bool) -> None:
    """Notes the model's id, and shows the model on the page of its run."""
    from mlflow.entities import LoggedModelOutput

    if replay.state.models.get(key) != model_id:
        replay.state.models = {**replay.state.models, key: model_id}  # a new one: another thread may be reading it
        replay.save()
    if not shown:
        client.log_outputs(replay.run_id, [LoggedModelOutput(model_id, step=0)])


def register_model(replay: JournalUpload, client: MlflowClient, record: Record) -> None:
    """A version of a registered model from a LoggedModel of this run, and its alias. FileNotFoundError where the store
    has no such model, or not its files."""
    model_id = replay.state.models.get(record["model"])
    if model_id is None:
        raise FileNotFoundError("the model to register was not logged")
    name = record["name"]
    version = _version_of(client, name, record["model"]) or _new_version(replay, client, record, model_id)
    if record["alias"]:
        client.set_registered_model_alias(name, record["alias"], version)


def ensure_registered(client: MlflowClient, name: str) -> None:
    """The registered model of this name, made when it is not there."""
    try:
        client.create_registered_model(name)
    except Exception as error:
        if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
            raise


def versions_named(client: MlflowClient, name: str) -> Sequence[ModelVersion]:
    """The versions of the registered model `name`; none when there is no such name."""
    quoted = name.replace("'", "\\'")
    return client.search_model_versions(f"name = '{quoted}'")


def _version_of(client: MlflowClient, name: str, key: str) -> str | None:
    for found in versions_named(client, name):
        if found.tags.get(KEY_TAG) == key:
            return str(found.version)
    return None


def _new_version(replay: JournalUpload, client: MlflowClient, record: Record, model_id: str) -> str:
    model = client.get_logged_model(model_id)
    if not is_ready(model):
        raise FileNotFoundError("the files of the model to register are not in the store")
    ensure_registered(client, record["name"])
    tags = {KEY_TAG: record["model"]}
    return new_version(replay.store, client, record["name"], model_id, replay.run_id, tags, model.tags.get(NOTE))


def new_version(
    store: Store,
    client: MlflowClient,
    name: str,
    model_id: str,
    run_id: str | None,
    tags: Mapping[str, str],
    description: str | None = None,
) -> str:
    """A version of the registered model `name`, which is there, from a LoggedModel; its number."""
    model = client.get_logged_model(model_id)
    # A server finds a model by its id; a database opened directly would look for it in the process's default store.
    source = f"models:/{model_id}" if store.is_server else model.artifact_location
    given = model_id if store.is_server else None
    made = client.create_model_version(
        name, source=source, run_id=run_id, tags=dict(tags), description=description, model_id=given
    )
    if not store.is_server:  # which does this itself
        versions = json.loads(model.tags.get(VERSIONS_TAG) or "[]")
        versions.append({"name": name, "version": str(made.version)})
        client.set_logged_model_tags(model_id, {VERSIONS_TAG: json.dumps(versions)})
    return str(made.version)


def relative_to(folder: Path, path: Path) -> str:
    """`path` as a record holds it: relative when it lies in the run's folder, else absolute."""
    absolute, base = path.absolute(), folder.absolute()
    return str(absolute.relative_to(base)) if absolute.is_relative_to(base) else str(absolute)
