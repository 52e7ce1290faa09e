"""Versions of registered models: who holds an alias, and a model folder made into the version that holds it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from compress.errors import ExitCode, UserError, printable
from compress.tracking import records as rec
from compress.tracking.listing import all_experiments
from compress.tracking.models import CARD_LIMIT, ensure_registered, is_ready, new_version, read_card, versions_named
from compress.tracking.names import model_name, name_conditions, truncate_text
from compress.tracking.relocating import require_in_place
from compress.tracking.run import open_run
from compress.tracking.state import read_state
from compress.tracking.store import Store, open_client, short

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

FINGERPRINT = "fingerprint"
FINGERPRINT_TAG = "compress.fingerprint"
FLAVOUR_TAG, PYFUNC = "compress.flavour", "pyfunc"
PROMOTED_TAG = "compress.promoted"  # of a run that holds a promoted folder which no run of the store made
DESCRIPTION_LIMIT = 5000
_UPLOAD_SECONDS = 600.0
_ALIAS = re.compile(r"[A-Za-z0-9_-]{1,250}")


@dataclass(frozen=True)
class Version:
    """A version of a registered model. fingerprint: of the model folder, empty where another tool made it.  flavour:
    PYFUNC for one that `mlflow.pyfunc.load_model` opens, else empty."""

    name: str
    number: str
    fingerprint: str
    flavour: str
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """A model folder on its way to the registry. loader: a folder of files that go beside it, by which MLflow loads it
    (`pyfunc.write_loader`); None: nothing but the folder.

    name: what people call it.  dataset: (name, digest) that the figures were measured on.  context: under which
    conditions (`contracts.Measurement`).  params: of its run, by MLflow name.  facts: tags of the version.
    """

    folder: Path
    name: str
    loader: Path | None
    fingerprint: str
    method: str
    figures: Mapping[str, float]
    dataset: tuple[str, str] | None
    context: Mapping[str, str]
    params: Mapping[str, object]
    facts: Mapping[str, str]


def check_alias(alias: str) -> None:
    """UserError for a word that MLflow does not take as an alias."""
    if not _ALIAS.fullmatch(alias) or re.fullmatch(r"v?\d+", alias, re.IGNORECASE) or alias.lower() == "latest":
        why = "use letters, digits, _ and -; 'latest' and version numbers such as v1 are reserved"
        raise UserError(f"'{printable(alias, 60)}' is not allowed as an alias", where="--as", why=why)


def format_registered_name(name: str) -> str:
    """`name` as the registry takes it."""
    return model_name(name)


def holder(store: Store, name: str, alias: str) -> Version | None:
    """The version of `name` that bears the alias; None when there is no such name or alias."""
    client = open_client(store)
    try:
        return _version(client.get_model_version_by_alias(name, alias))
    except Exception as error:
        if getattr(error, "error_code", None) in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise _failed(store, error) from error


def promote(store: Store, name: str, alias: str, candidate: Candidate, experiment: str, warn: Callable) -> Version:
    """Give the alias to this model: to the version of it that is there, else to a new one.

    Raises UserError when the store does not take it; then the alias is where it was.
    """
    require_in_place(store)
    client = open_client(store)
    try:
        found = _existing(client, name, candidate.fingerprint)
        if found is None:
            found = _register(store, client, name, candidate, experiment, warn)
        elif candidate.loader is not None and not found.flavour:
            found = _complete(client, found, candidate)
        client.set_registered_model_alias(name, alias, found.number)
    except UserError:
        raise
    except Exception as error:
        raise _failed(store, error) from error
    return found


def _register(
    store: Store, client: MlflowClient, name: str, candidate: Candidate, experiment: str, warn: Callable
) -> Version:
    """A new version of the model."""
    model_id, run_id = _logged(client, candidate) or _log(store, client, candidate, experiment, warn)
    tags = {
        **{key: truncate_text(value, DESCRIPTION_LIMIT) for key, value in candidate.facts.items()},
        FINGERPRINT_TAG: candidate.fingerprint,
    }
    if candidate.loader is not None:
        _add_loader(client, model_id, candidate.loader)
        tags[FLAVOUR_TAG] = PYFUNC
    ensure_registered(client, name)
    number = new_version(store, client, name, model_id, run_id, tags, read_card(candidate.folder, DESCRIPTION_LIMIT))
    return Version(name, number, candidate.fingerprint, tags.get(FLAVOUR_TAG, ""), tags)


def _complete(client: MlflowClient, found: Version, candidate: Candidate) -> Version:
    """A version that was registered without the files by which MLflow loads it gets them, where its logged model is
    still there."""
    logged = _logged(client, candidate)
    if logged is None or candidate.loader is None:
        return found
    _add_loader(client, logged[0], candidate.loader)
    client.set_model_version_tag(found.name, found.number, FLAVOUR_TAG, PYFUNC)
    return replace(found, flavour=PYFUNC, tags={**found.tags, FLAVOUR_TAG: PYFUNC})


def _add_loader(client: MlflowClient, model_id: str, loader: Path) -> None:
    for file in sorted(loader.iterdir()):
        client.log_model_artifact(model_id, str(file))


def _existing(client: MlflowClient, name: str, fingerprint: str) -> Version | None:
    """The newest version of this very model; of several, one that MLflow loads."""
    versions = [_version(v) for v in versions_named(client, name)]
    same = (v for v in versions if v.fingerprint == fingerprint)
    return max(same, key=lambda v: (bool(v.flavour), int(v.number)), default=None)


def _version(found: ModelVersion) -> Version:
    tags = dict(found.tags)
    return Version(found.name, str(found.version), tags.get(FINGERPRINT_TAG, ""), tags.get(FLAVOUR_TAG, ""), tags)


def _logged(client: MlflowClient, candidate: Candidate) -> tuple[str, str | None] | None:
    """(model id, run id) of the LoggedModel that a run of ours made of this very folder."""
    where = [e.experiment_id for e in all_experiments(client)]
    query = f"params.{FINGERPRINT} = '{candidate.fingerprint}'"
    for model in client.search_logged_models(where, filter_string=query, max_results=50) if where else []:
        copied = FLAVOUR_TAG in model.tags  # by earlier versions, as a folder within an MLflow model
        if not copied and is_ready(model):
            return model.model_id, model.source_run_id
    return None


def _log(
    store: Store, client: MlflowClient, candidate: Candidate, experiment: str, warn: Callable
) -> tuple[str, str | None]:
    """A run of its own for a folder that no run of this store made. UserError unless all its files have arrived."""
    with tempfile.TemporaryDirectory() as scratch:
        run = open_run(
            Path(scratch) / "run",
            experiment=experiment,
            name=candidate.name,
            method=candidate.method,
            store=store,
            tags={
                "compress.folder": str(candidate.folder),
                PROMOTED_TAG: "yes",
                FINGERPRINT_TAG: candidate.fingerprint,
                **name_conditions(candidate.context),
            },
            warn=warn,
        )
        if candidate.dataset:
            run.dataset(*candidate.dataset)
        run.params({"method": candidate.method, **candidate.params})
        run.note(read_card(candidate.folder, CARD_LIMIT))
        key = run.model(
            candidate.folder,
            name=candidate.name,
            model_type=candidate.method,
            params={FINGERPRINT: candidate.fingerprint},
            metrics=candidate.figures,
            dataset=candidate.dataset,
        )
        ending = run.finish(seconds=_UPLOAD_SECONDS)
        state = read_state(rec.state_path(run.folder))
        if ending.left or state is None or key not in state.models:
            raise UserError("the store rejected the model", where=store.shown, code=ExitCode.ENVIRONMENT)
        model_id = state.models[key]
        if not is_ready(client.get_logged_model(model_id)):  # files that the store refuses for good are not left over
            raise UserError("the store rejected the files of the model", where=store.shown, code=ExitCode.ENVIRONMENT)
    return model_id, ending.run_id


def _failed(store: Store, error: Exception) -> UserError:
    return UserError(
        "the model registry rejected the model", where=store.shown, why=short(error), code=ExitCode.ENVIRONMENT
    )
