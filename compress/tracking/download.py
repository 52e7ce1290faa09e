"""Downloads a model of the store into a local folder: `runs:/<run>/<name>`, `models:/name@alias`, `models:/name/1`."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compress.errors import UserError, did_you_mean, printable
from compress.storage.cache import keep_folder, private_folder
from compress.storage.trees import restore_names
from compress.tracking.files import patience
from compress.tracking.listing import find_run
from compress.tracking.models import versions_named
from compress.tracking.names import slug
from compress.tracking.places import local_path
from compress.tracking.registering import FINGERPRINT, FINGERPRINT_TAG
from compress.tracking.store import Store, open_client, require_made, resolve_store, short

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

MARKS = ("cascade.json", "config.json")
"""What a model folder contains, one of them. That of a cascade contains others, which have only a config."""
KEPT = 8  # downloaded versions of one registered model; and models of runs
_LOGGED = "m-"
_ID = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class _Address:
    """Where the store keeps the files that a name means.

    group: folder of the cache for its copies.  name: of the copied folder, as it is shown.  key: version and digest of
    all that tells it from other models; None for files that may change under this very address, which are never read
    from an earlier copy.
    """

    place: str
    group: str
    name: str
    key: str | None = None


def download_model(uri: str, tracking_uri: str | None = None) -> Path:
    """The folder of a logged or registered model. A store on this machine is read in place; files of a server are
    copied into the user's cache folder, a copy for each version. Raises UserError when there is no such model, or its
    files are gone."""
    store = resolve_store(tracking_uri)
    require_made(store)
    client = open_client(store)
    try:
        address = _address(client, uri, store)
    except UserError:
        raise
    except Exception as error:
        raise _unknown(uri, store, error) from error
    found = local_path(address.place)
    if found is None:
        found = _copied(address, uri, store)
    elif not found.exists():
        do = "if the project was moved, run `compress runs relocate`"
        if store.is_server:
            do = (
                "the server stores artifacts on its own disk and does not serve them; start it with "
                "--artifacts-destination"
            )
        raise UserError(f"the files of '{printable(uri, 200)}' are missing", where=str(found), do=do)
    folders = sorted(p.parent for mark in MARKS for p in found.rglob(mark))
    if not folders:
        why = f"looked for {' and '.join(MARKS)}"
        raise UserError(f"'{printable(uri, 200)}' contains no model folder", where=store.shown, why=why)
    return folders[0]


def download(uri: str, target: Path, tracking_uri: str) -> Path:
    """Files of the store into the folder `target`, made if need be; where they are. Any error of MLflow comes
    through."""
    from mlflow.artifacts import download_artifacts

    target.mkdir(parents=True, exist_ok=True)
    where = {"tracking_uri": tracking_uri, "registry_uri": tracking_uri}
    return Path(download_artifacts(artifact_uri=uri, dst_path=str(target), **where))


def _address(client: MlflowClient, uri: str, store: Store) -> _Address:
    """Asked of our client: MLflow's own resolution of these names looks into the process's default store."""
    scheme, _, rest = uri.partition(":")
    name, _, inner = rest.strip("/").partition("/")
    if scheme == "runs":
        number, inner = _find_run(store, name, inner)
        run = client.get_run(number)
        models = [client.get_logged_model(m.model_id) for m in (run.outputs.model_outputs if run.outputs else [])]
        chosen = [m for m in models if m.name == inner] or (models if not inner and len(models) == 1 else [])
        if chosen:
            return _of_logged(chosen[-1], store)
        if models:
            hint = did_you_mean(inner, [m.name for m in models])
            raise UserError(f"run {name} has no model '{printable(inner, 80)}'", do=f"write runs:/{name}/NAME; {hint}")
        return _Address(f"{run.info.artifact_uri}/{inner}", "artifacts", slug(run.info.run_name or name))
    if name.startswith(_LOGGED):
        return _of_logged(client.get_logged_model(name), store)
    registered, at, alias = name.partition("@")
    if at:
        aliases = client.get_registered_model(registered).aliases  # says so when there is none
        if alias not in aliases:
            where, hint = printable(registered, 80), did_you_mean(alias, aliases)
            raise UserError(f"model '{where}' has no alias '{printable(alias, 80)}'", where=store.shown, do=hint)
        version = client.get_model_version_by_alias(registered, alias)
    elif inner == "latest" or not inner:
        client.get_registered_model(name)  # says so when there is none
        version = max(versions_named(client, name), key=lambda v: int(v.version))
    else:
        version = client.get_model_version(name, inner)
    return _of_version(client, version, store)


def _find_run(store: Store, name: str, inner: str) -> tuple[str, str]:
    """(id, model) of `runs:/NAME/MODEL`, or of `runs:/NAME`, where a name may hold a slash, as that of a stage does."""
    if _ID.fullmatch(name):
        return name, inner
    if inner:
        with suppress(UserError):
            return find_run(store, f"{name}/{inner}").run_id, ""
    return find_run(store, name).run_id, inner


def _of_logged(model: LoggedModel, store: Store) -> _Address:
    marked = (model.params or {}).get(FINGERPRINT)
    told = [store.shown, model.model_id, model.artifact_location, model.creation_timestamp, marked]
    key = f"{slug(model.model_id)}-{_digest(told)}"
    return _Address(model.artifact_location, "logged", slug(model.name), key)


def _of_version(client: MlflowClient, version: ModelVersion, store: Store) -> _Address:
    """A number alone is no version: the model may have been deleted and registered again."""
    place = version.source or ""
    if place.startswith("models:/"):
        place = client.get_logged_model(place.removeprefix("models:/")).artifact_location
    marked = version.tags.get(FINGERPRINT_TAG)
    told = [store.shown, version.name, version.version, version.creation_timestamp, place, marked]
    name = slug(version.name)
    return _Address(place, f"registered/{name}", f"{name}-{version.version}", f"{version.version}-{_digest(told)}")


def _digest(told: list[object]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


def _copied(address: _Address, uri: str, store: Store) -> Path:
    """Files of another machine, in an entry of the cache."""

    def fill(entry: Path) -> None:
        try:
            with patience():
                download(address.place, entry / address.name, store.uri)
        except Exception as error:
            raise _unknown(uri, store, error) from error
        for mark in MARKS:
            for file in entry.rglob(mark):
                restore_names(file.parent)

    parent = private_folder(f"models/{address.group}")
    return keep_folder(parent, address.key, fill, KEPT if address.key else 1) / address.name


def _unknown(uri: str, store: Store, error: Exception) -> UserError:
    return UserError(f"the store has no model '{printable(uri, 200)}'", where=store.shown, why=short(error))
