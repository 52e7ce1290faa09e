"""The MLflow store: resolves its address, opens it, and hides passwords in what is shown.

The default is one sqlite file per project, `mlruns/mlflow.db`, with the artifacts beside it. A fresh sqlite store that
several processes open at once is broken for good (mlflow/mlflow#24321), so every opening happens under a file lock.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compress.errors import ExitCode, UserError, printable
from compress.storage.lock import file_lock
from compress.tracking.names import hide_address, redact, redact_address, slug
from compress.tracking.schema import prepare

if TYPE_CHECKING:
    from mlflow import MlflowClient

# A dead server must cost seconds in the background, not mlflow's own four minutes a call. Whoever set more keeps it.
# One that is only slow, behind a login or under load, takes seconds to answer; `bounded` gives up connecting sooner.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
# Its client prints two lines for each run that ends on a server, in the middle of --json too.
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

VARIABLE = "MLFLOW_TRACKING_URI"
SERVERS = ("http", "https")
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
DRIVERS = {"psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""Of databases: module that SQLAlchemy imports → what to install, where that is called differently."""
EXTRAS = {"psycopg": "postgres", "MySQLdb": "mysql"}
"""Module → the extra of this package that brings it."""
ARTIFACT_ROOT = "MLFLOW_DEFAULT_ARTIFACT_ROOT"
"""Where the files of runs go whose database is given directly: the variable of `mlflow server`."""
LOCK_SECONDS = 120.0
_SQLITE = "sqlite:///"
_opening = threading.Lock()


@dataclass(frozen=True)
class Store:
    """An address of a store. `uri` may hold a password: show and write `shown` only.

    chosen: what named it: `--tracking-uri`, `MLFLOW_TRACKING_URI`, `default`, or `recorded` (in a run's folder).
    """

    uri: str
    chosen: str = "default"

    def __post_init__(self) -> None:
        hide_address(self.uri)

    @property
    def shown(self) -> str:
        return redact_address(self.uri)

    @property
    def has_secret(self) -> bool:
        return self.shown != self.uri

    @property
    def is_server(self) -> bool:
        return self.uri.split(":", 1)[0] in SERVERS

    @property
    def is_bare_database(self) -> bool:
        """A database server, without an MLflow server in front of it."""
        return self.database is None and self.uri.split(":", 1)[0].split("+", 1)[0] in DATABASES

    @property
    def database(self) -> Path | None:
        """The sqlite file, or None for another kind of store."""
        if not self.uri.startswith(_SQLITE):
            return None
        return Path(self.uri[len(_SQLITE) :].split("?", 1)[0])

    def artifact_location(self, experiment: str) -> str | None:
        """Folder of an experiment's artifacts: beside a sqlite file, below MLFLOW_DEFAULT_ARTIFACT_ROOT for another
        database, whose UserError without it comes through; None: the server decides."""
        if self.database is not None:
            return (self.database.parent / "artifacts" / slug(experiment)).as_uri()
        return f"{require_artifact_root(self)}/{slug(experiment)}" if self.is_bare_database else None

    def client(self, *, touch: bool = True) -> MlflowClient:
        """Opens the store, making it when it is not there, bringing an older one up to date after a copy of it was
        made. Any error of mlflow or the database comes through.

        touch: asks a server whether it is there; else the first call finds out.
        """
        import_mlflow()
        silence()
        from mlflow import MlflowClient

        database = self.database
        if database is None:
            require_driver(self)
            client = MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
            return _touched(client) if touch or not self.is_server else client
        database.parent.mkdir(parents=True, exist_ok=True)
        with _opening, file_lock(database.with_name(database.name + ".lock"), timeout=LOCK_SECONDS):
            prepare(database)
            return _touched(MlflowClient(tracking_uri=self.uri, registry_uri=self.uri))


def open_client(store: Store) -> MlflowClient:
    """The store for a person who waits for it: UserError when it does not open."""
    try:
        return store.client()
    except UserError:
        raise
    except Exception as error:
        raise unopened(store, error) from error


def unopened(store: Store, error: Exception) -> UserError:
    """What the first call to a store raised, for a person."""
    return UserError(
        "the store cannot be opened",
        where=store.shown,
        why=short(error),
        do="check that the server responds, or that the file is an MLflow database",
        code=ExitCode.ENVIRONMENT,
    )


def require_made(store: Store) -> None:
    """UserError for a file that is not there: to open it would make it, and nothing is in it."""
    if store.database is not None and not store.database.exists():
        raise UserError("no MLflow store found", where=str(store.database), do="name it with --tracking-uri")


def require_artifact_root(store: Store) -> str:
    """The address below which the files of runs go whose database is given directly. UserError where none is named:
    MLflow would put them into the working folder and give everybody addresses on this machine's disk."""
    root = os.environ.get(ARTIFACT_ROOT, "").strip().rstrip("/")
    if re.match(r"/|[A-Za-z][\w+.-]*:/", root):
        return root
    why = f"{ARTIFACT_ROOT} is not set"
    if root:
        why = f"{ARTIFACT_ROOT} is '{printable(redact(root), 200)}', neither an address nor an absolute path"
    raise UserError(
        "a database has no place for the files of runs",
        where=store.shown,
        why=why,
        do="put a server in front (mlflow server --backend-store-uri … --artifacts-destination …) and give its "
        f"address, http://host:port, or set {ARTIFACT_ROOT} to storage that all machines reach, such as s3://bucket/runs",
    )


def require_driver(store: Store) -> None:
    """UserError (environment) when the Python package that reads the store's kind of database is missing; UserError for
    an address that SQLAlchemy does not take."""
    if store.is_server or store.uri.split(":", 1)[0].split("+", 1)[0] not in DATABASES:
        return
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        dialect = make_url(store.uri).get_dialect()
    except (ArgumentError, ValueError) as error:
        why, do = short(error), "write postgresql://user:password@host:port/database"
        raise UserError("is not a database address", where=store.shown, why=why, do=do) from error
    try:
        dialect.import_dbapi()
    except ImportError as error:
        module = error.name or dialect.driver  # psycopg without its C library raises an error without a name
        extra = f" (extra: 'compress-bert[{EXTRAS[module]}]')" if module in EXTRAS else ""
        raise UserError(
            f"the database driver {module} is not installed",
            where=store.shown,
            do=f"pip install '{DRIVERS.get(module, module)}'{extra}, or better: run an MLflow server in front of the "
            "database and give its address, http://host:port",
            code=ExitCode.ENVIRONMENT,
        ) from error


LOGIN = {
    401: "401: the server rejects the login; check MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
    "MLFLOW_TRACKING_TOKEN",
    403: "403: the server does not permit this; check the permissions of MLFLOW_TRACKING_USERNAME or "
    "MLFLOW_TRACKING_TOKEN",
}
"""Status of an answer → what it means."""


def short(error: BaseException) -> str:
    """What went wrong, in one line without secrets: mlflow's errors go on for pages, their cause says it in a word. A
    server that asks for a login is told with the variables that hold one."""
    status = _server_status(error)
    if status in LOGIN:
        return LOGIN[status]
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (OSError, sqlite3.Error)) and not (cause.__cause__ or cause.__context__):
            error = cause
        cause = cause.__cause__ or cause.__context__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return printable(redact(lines[0]), 200)


def _server_status(error: BaseException) -> int | None:
    """The HTTP status that the MLflow server answered; None for another error, also for one of a store of files."""
    answered = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(answered, int):
        return answered
    said = getattr(error, "get_http_status_code", None)
    status = said() if callable(said) else None
    return status if isinstance(status, int) else None


def _touched(client: MlflowClient) -> MlflowClient:
    client.search_experiments(max_results=1)
    return client


def project_store(project: Path | None = None) -> Store:
    """The store of the project folder (default: the current folder)."""
    database = (project or Path.cwd()).resolve() / "mlruns" / "mlflow.db"
    return Store(_SQLITE + str(database))


def resolve_store(uri: str | None = None, project: Path | None = None) -> Store:
    """`--tracking-uri` if given, else MLFLOW_TRACKING_URI, else the project's own. UserError for an address that
    cannot be one."""
    if uri is not None:
        return _checked(uri, "--tracking-uri")
    from_environment = os.environ.get(VARIABLE, "").strip()
    if from_environment:
        return _checked(from_environment, VARIABLE)
    return project_store(project)


def _checked(uri: str, chosen: str) -> Store:
    scheme = uri.split(":", 1)[0].split("+", 1)[0].lower() if ":" in uri else ""
    shown = redact_address(uri)
    if scheme == "sqlite":
        if not uri.startswith(_SQLITE) or uri == _SQLITE:
            raise UserError(f"'{shown}' names no database file", where=chosen, do="write sqlite:///path/to/mlflow.db")
        path, _, query = uri[len(_SQLITE) :].partition("?")
        return Store(_SQLITE + str(Path(path).expanduser().absolute()) + (f"?{query}" if query else ""), chosen)
    if scheme in SERVERS:
        if not re.match(r"https?://[^/\s]+", uri):
            raise UserError(f"'{shown}' names no host", where=chosen, do="write http://host:port")
        return Store(uri.rstrip("/"), chosen)
    if scheme in DATABASES or scheme == "databricks" or uri == "databricks":
        return Store(uri, chosen)
    if scheme == "file" or not scheme:
        raise UserError(
            f"'{shown}' is a folder, and MLflow keeps runs in a database or on a server",
            where=chosen,
            do="write sqlite:///path/to/mlflow.db or http://host:port",
        )
    raise UserError(
        f"unknown type of store '{shown}'",
        where=chosen,
        why=f"found '{scheme}:', allowed: {', '.join((*SERVERS, *DATABASES))}",
        do="write sqlite:///path/to/mlflow.db or http://host:port",
    )


def import_mlflow() -> None:
    """Imports mlflow, about a second. Call it on the main thread first: imports of the libraries below it that run in
    two threads at once can see half-made modules."""
    silence()
    import mlflow
    import mlflow.entities
    import mlflow.store.tracking.sqlalchemy_store
    import mlflow.tracking  # noqa: F401

    from compress.tracking.bounded import bound_client

    bound_client()
    silence()  # again: the import sets up loggers of its own


def silence() -> None:
    """Keeps mlflow's own noise off the terminal: it prints a traceback of 6 kB for every call that fails, and we report
    a failure once, in one line. Warnings that are not ours are dropped by name."""
    for name in ("mlflow", "alembic", "urllib3.connectionpool"):
        logger = logging.getLogger(name)
        if logger.level != logging.CRITICAL:  # setting it visits every logger there is
            logger.setLevel(logging.CRITICAL)
    # sqlalchemy 2.1 on mlflow 3.17's mappers; the category is not importable without sqlalchemy, the text is enough
    warnings.filterwarnings("ignore", message=r"The ``noload`` loader strategy is deprecated")
    warnings.filterwarnings("ignore", module=r"(mlflow|alembic|sqlalchemy|pydantic)(\..*)?")
