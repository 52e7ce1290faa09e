"""What is asked of each machine of a Ray cluster before the first job: its software, its folders, and whether all can
log to the store."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from compress.contracts import RunOptions
from compress.errors import ExitCode, UserError
from compress.run.jobs.shipping import Node, refuse_path
from compress.storage import atomic
from compress.storage.disk import remove_file
from compress.tracking import resolve_store

PACKAGES = ("compress-bert", "torch")
MARKER = ".probe-"
"""Begins the name of the file by which a node shows that it sees the output folder."""


def check_store(options: RunOptions, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Raise UserError for a store that is a file, where runs are made on several machines."""
    store = resolve_store(options.tracking_uri)
    if store.database is None or len({node["NodeManagerAddress"] for node in nodes} | {_own_address(nodes)}) == 1:
        return
    host = socket.gethostname()
    raise UserError(
        "a sqlite file cannot be the MLflow store of several machines", where=store.shown,
        do=f"start a server: mlflow server --backend-store-uri {store.shown} --host {host} --port 5000, and add "
        f"--tracking-uri http://{host}:5000",
    )  # fmt: skip


def _own_address(nodes: Sequence[Mapping[str, Any]]) -> str:
    """The address of this machine's node; the machine's name where it has none."""
    host = socket.gethostname()
    return next((node["NodeManagerAddress"] for node in nodes if node["NodeManagerHostname"] == host), host)


def check_nodes(
    ray: Any, nodes: Sequence[Mapping[str, Any]], folder: Path, written: Sequence[str], read: Sequence[str]
) -> list[tuple[Node, list[str]]]:
    """The machines that do not see all that is to `read`, with what they lack; of those that have CPUs for a job.

    Raises UserError, naming the machine, where a worker could not do a job: another version of Python, compress or
    torch, another working folder, an output `folder` or another folder to be `written` that is not shared.
    """
    from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
        NodeAffinitySchedulingStrategy as Affinity,
    )

    base = atomic.make_folder(folder)
    marker = base / f"{MARKER}{os.getpid()}"
    atomic.write_text(marker, "")
    try:
        probe = ray.remote(num_cpus=0, max_retries=0)(make_probe())
        places = [Node(node["NodeManagerHostname"], Affinity(node["NodeID"], soft=False)) for node in nodes]
        asked = [
            probe.options(scheduling_strategy=one.place).remote(
                str(Path.cwd()), [str(marker), *written], list(read), PACKAGES
            )
            for one in places
        ]
        answers = [(one, ray.get(answer)) for one, answer in zip(places, asked, strict=True)]
        for one, answer in answers:
            check_answer(one.host, answer, describe_here())
        works = [bool(node["Resources"].get("CPU")) for node in nodes]
        return [
            (one, answer["missing"])
            for (one, answer), can in zip(answers, works, strict=True)
            if can and answer["missing"]
        ]
    finally:
        remove_file(marker)


def make_probe() -> Any:
    """What each machine is asked, as a function that needs nothing installed there."""

    def probe(folder: str, shared: list[str], read: list[str], packages: tuple[str, ...]) -> dict[str, Any]:
        import os
        import platform
        from importlib import metadata

        found: dict[str, Any] = {"Python": ".".join(platform.python_version_tuple()[:2])}
        for name in packages:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                found[name] = None
        if not os.path.isdir(folder):
            return {"versions": found, "unshared": [folder], "missing": []}
        os.chdir(folder)
        unshared, missing = ([path for path in paths if not os.path.exists(path)] for paths in (shared, read))
        return {"versions": found, "unshared": unshared, "missing": missing}

    return probe


def describe_here() -> dict[str, str | None]:
    """The versions that workers must have too."""
    found: dict[str, str | None] = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # a checkout that was never installed
            found[name] = None
    return found


def check_answer(host: str, answer: Mapping[str, Any], here: Mapping[str, str | None]) -> None:
    """Raise UserError for a machine that differs from this one, or does not share its folders."""
    for name, version in here.items():
        found = answer["versions"].get(name)
        if found != version:
            raise UserError(
                f"{name} is {found or 'not installed'} on node {host}", where="--on", why=f"here it is {version}",
                do="install the same versions on all nodes", code=ExitCode.ENVIRONMENT,
            )  # fmt: skip
    if answer["unshared"]:
        path = Path(answer["unshared"][0])
        raise refuse_path(host, str(path.parent if path.name.startswith(MARKER) else path))
