"""A model that the store holds, as a local folder: `runs:/<run>/<name>`, `models:/name@alias`, `models:/name/1`."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from compress.durable.trees import restore_names
from compress.errors import UserError, did_you_mean, printable
from compress.tracking.places import local_path
from compress.tracking.store import Store, open_client, resolve_store, short

if TYPE_CHECKING:
    from mlflow import MlflowClient

MARK = "config.json"
_LOGGED = "m-"


def download_model(uri: str, tracking_uri: str | None = None) -> Path:
    """The folder of a logged or registered model. A store on this machine is read in place; files of a server are
    copied into the temporary folder. Raises UserError when there is no such model, or its files are gone."""
    store = resolve_store(tracking_uri)
    client = open_client(store)
    try:
        address = _address(client, uri)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the store has no model '{printable(uri, 200)}'", where=store.shown, why=short(error)
        ) from error
    found = local_path(address)
    address_is_far = found is None
    if found is None:
        found = _copied(address, uri, store)
    elif not found.exists():
        do = "was the project moved? see `compress runs relocate`"
        raise UserError(f"the files of '{printable(uri, 200)}' are gone", where=str(found), do=do)
    folders = [found, *sorted(p.parent for p in found.rglob(MARK))]
    for folder in folders:
        if (folder / MARK).is_file():
            if address_is_far:
                restore_names(folder)
            return folder
    raise UserError(f"'{printable(uri, 200)}' holds no model folder", where=store.shown, why=f"looked for {MARK}")


def download(uri: str, target: Path, tracking_uri: str) -> Path:
    """Files of the store into the folder `target`, made if need be; where they are. Any error of MLflow comes
    through."""
    from mlflow.artifacts import download_artifacts

    target.mkdir(parents=True, exist_ok=True)
    where = {"tracking_uri": tracking_uri, "registry_uri": tracking_uri}
    return Path(download_artifacts(artifact_uri=uri, dst_path=str(target), **where))


def _address(client: MlflowClient, uri: str) -> str:
    """Where the store keeps the files that a name means. Asked of our client: MLflow's own resolution of these names
    looks into the process's default store."""
    scheme, _, rest = uri.partition(":")
    name, _, inner = rest.strip("/").partition("/")
    if scheme == "runs":
        run = client.get_run(name)
        models = [client.get_logged_model(m.model_id) for m in (run.outputs.model_outputs if run.outputs else [])]
        chosen = [m for m in models if m.name == inner] or (models if not inner and len(models) == 1 else [])
        if chosen:
            return chosen[-1].artifact_location
        if models:
            hint = did_you_mean(inner, [m.name for m in models])
            raise UserError(f"run {name} has no model '{printable(inner, 80)}'", do=f"write runs:/{name}/NAME; {hint}")
        return f"{run.info.artifact_uri}/{inner}"
    if name.startswith(_LOGGED):
        return client.get_logged_model(name).artifact_location
    registered, at, alias = name.partition("@")
    if at:
        version = client.get_model_version_by_alias(registered, alias)
    elif inner == "latest" or not inner:
        client.get_registered_model(name)  # says so when there is none
        version = max(client.search_model_versions(f"name = '{name}'"), key=lambda v: int(v.version))
    else:
        version = client.get_model_version(name, inner)
    source = version.source or ""
    if source.startswith("models:/"):
        return client.get_logged_model(source.removeprefix("models:/")).artifact_location
    return source


def _copied(address: str, uri: str, store: Store) -> Path:
    """Files of another machine, in a folder of their own below the temporary one."""
    digest = hashlib.sha256(f"{store.uri} {uri}".encode()).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / f"compress-model-{digest}"
    try:
        return download(address, target, store.uri)
    except Exception as error:
        raise UserError(
            f"the store has no model '{printable(uri, 200)}'", where=store.shown, why=short(error)
        ) from error
