"""A model that the store holds, as a local folder: `runs:/<run>/<path>`, `models:/name@alias`, `models:/name/1`."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from compress.errors import UserError, printable
from compress.tracking.store import open_client, resolve_store

MARK = "config.json"


def download_model(uri: str, tracking_uri: str | None = None) -> Path:
    """The folder of a logged or registered model. A store on this machine is read in place; files of a server are
    copied into the temporary folder. Raises UserError when there is no such model."""
    store = resolve_store(tracking_uri)
    open_client(store)
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    target = (
        Path(tempfile.gettempdir()) / f"compress-model-{hashlib.sha256(f'{store.uri} {uri}'.encode()).hexdigest()[:16]}"
    )
    target.mkdir(parents=True, exist_ok=True)
    try:
        found = Path(download_artifacts(artifact_uri=uri, dst_path=str(target), tracking_uri=store.uri))
    except (MlflowException, OSError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"the store has no model '{printable(uri, 200)}'", where=store.shown, why=printable(first, 200)
        ) from error
    folders = [found, *sorted(p.parent for p in found.rglob(MARK))]
    for folder in folders:
        if (folder / MARK).is_file():
            return folder
    raise UserError(f"'{printable(uri, 200)}' holds no model folder", where=store.shown, why=f"looked for {MARK}")
