"""Models in the store: a LoggedModel made from a model folder as it lies on disk (no pickle, no flavour), and its
versions in the registry."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from compress.storage.manifest import files_below
from compress.storage.trees import second_names
from compress.tracking.batch import METRICS_PER_CALL, Point
from compress.tracking.records import Record
from compress.tracking.state import SendState

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric
    from mlflow.entities.model_registry import ModelVersion

    from compress.tracking.store import Store

KEY_TAG = "compress.key"
FROM_TAG = "compress.imported_from"  # the id that an imported run or model had where it was exported
VERSIONS_TAG = "mlflow.modelVersions"  # where the page of a LoggedModel looks for its versions
UPLOAD_SECONDS = "120"
NOTE = "mlflow.note.content"  # the tag that holds the description of an experiment, a run, a logged model
CARD_LIMIT = 8000  # characters of a tag of a logged model
_CUT = "\n\n… The rest is in README.md, among the model's artifacts."


class JournalUpload(Protocol):
    """A journal on its way to the store: the run that its records go to. role_tags: tags that its models carry too."""

    @property
    def store(self) -> Store: ...
    @property
    def state(self) -> SendState: ...
    @property
    def run_id(self) -> str: ...
    @property
    def role_tags(self) -> dict[str, Any]: ...
    def save(self) -> None: ...
    def place(self, path: str) -> Path: ...
    def metric(self, point: Point, **of_model: str) -> Metric: ...


@contextmanager
def patience() -> Iterator[None]:
    """Longer time-outs while files travel: a server answers a large upload late and is not dead for it."""
    names = ("MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT")
    before = {n: os.environ.get(n) for n in names}
    os.environ.update(dict.fromkeys(names, UPLOAD_SECONDS))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def attach_model(replay: JournalUpload, client: MlflowClient, record: Record, points: Sequence[Point]) -> None:
    """Makes the LoggedModel of a journal's `model` record, or goes on with the one that was begun."""
    folder = replay.place(record["folder"])
    if not folder.is_dir():
        raise FileNotFoundError(f"model folder {folder} does not exist")
    model_id = _model_id(replay, client, record)
    with patience():
        _upload(client, model_id, folder)
    card = read_card(folder, CARD_LIMIT)
    if card:
        client.set_logged_model_tags(model_id, {NOTE: card})
    client.finalize_logged_model(model_id, "READY")
    _show_on_run(replay, client, model_id)
    dataset = {}
    if record["dataset"]:
        dataset = {"dataset_name": record["dataset"][0], "dataset_digest": record["dataset"][1]}
    for i in range(0, len(points), METRICS_PER_CALL):
        piece = points[i : i + METRICS_PER_CALL]
        metrics = [replay.metric(p, model_id=model_id, **dataset) for p in piece]
        client.log_batch(replay.run_id, metrics=metrics, synchronous=True)


def read_card(folder: Path, limit: int) -> str:
    """The model card of a folder without the header that model hubs read, for the page of the model; empty where there
    is none. A longer one is cut at the end of a paragraph and says so.

    limit: characters.
    """
    file = folder / "README.md"
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    if text.startswith("---\n"):
        text = text.partition("\n---\n")[2]
    text = text.strip()
    for generic in ("# model\n", "# student\n"):  # the folder's name within a run; the page has the name of the run
        text = text.removeprefix(generic).lstrip()
    if len(text) <= limit:
        return text
    kept = text[: limit - len(_CUT)]
    return (kept[: kept.rfind("\n\n")] if "\n\n" in kept else kept) + _CUT


def _upload(client: MlflowClient, model_id: str, folder: Path) -> None:
    """The folder's files, each once: a second name of a file would take its room again in the store."""
    further = second_names(folder)
    if not further:
        client.log_model_artifacts(model_id, str(folder))
        return
    for name in files_below(folder):
        if name not in further:
            inner = str(PurePosixPath(name).parent)
            client.log_model_artifact(model_id, str(folder / name), None if inner == "." else inner)


def _model_id(replay: JournalUpload, client: MlflowClient, record: Record) -> str:
    key = record["key"]
    if key not in replay.state.models:
        replay.state.models[key] = _find(replay, client, key) or _create(replay, client, record)
        replay.save()
    return replay.state.models[key]


def _find(replay: JournalUpload, client: MlflowClient, key: str) -> str | None:
    assert replay.state.experiment_id is not None
    found = client.search_logged_models(
        [replay.state.experiment_id], filter_string=f"tags.`{KEY_TAG}` = '{key}'", max_results=1
    )
    return found[0].model_id if found else None


def _create(replay: JournalUpload, client: MlflowClient, record: Record) -> str:
    assert replay.state.experiment_id is not None
    return client.create_logged_model(
        experiment_id=replay.state.experiment_id,
        name=record["name"],
        source_run_id=replay.run_id,
        tags={**replay.role_tags, KEY_TAG: record["key"]},
        params=record["params"],
        model_type=record["model_type"],
    ).model_id


def _show_on_run(replay: JournalUpload, client: MlflowClient, model_id: str) -> None:
    from mlflow.entities import LoggedModelOutput

    outputs = client.get_run(replay.run_id).outputs
    if outputs is None or all(m.model_id != model_id for m in outputs.model_outputs):
        client.log_outputs(replay.run_id, [LoggedModelOutput(model_id, step=0)])


def register_model(replay: JournalUpload, client: MlflowClient, record: Record) -> None:
    """A version of a registered model from a LoggedModel of this run, and its alias."""
    model_id = replay.state.models.get(record["model"])
    if model_id is None:
        raise FileNotFoundError("the model to register was not logged")
    name = record["name"]
    ensure_registered(client, name)
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
    card = client.get_logged_model(model_id).tags.get(NOTE)
    tags = {KEY_TAG: record["model"]}
    return new_version(replay.store, client, record["name"], model_id, replay.run_id, tags, card)


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
