"""What the command names and a machine of a Ray cluster does not see: small files and folders are sent there, once for
each content."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compress.console import Console
from compress.errors import ExitCode, UserError, format_count
from compress.storage.disk import human_bytes
from compress.storage.parcels import Parcel, ParcelInfo, plan_parcels
from compress.tracking.names import redact

MOST_BYTES = 1_000_000_000
"""Bytes that a command sends to a node."""


Missing = Sequence[tuple["Node", Sequence[str]]]
"""What machines do not see, as the command names it."""


@dataclass(frozen=True)
class Sent:
    """A parcel in the cluster's object store. content: Ray's reference to what `Parcel.pack` read."""

    info: ParcelInfo
    content: Any


@dataclass(frozen=True)
class Node:
    """A machine of the cluster. host: its name, for people.  place: makes Ray run a task there."""

    host: str
    place: Any


def send(ray: Any, missing: Missing, console: Console) -> list[Sent]:
    """Send to each machine what it does not see, unless it has kept a copy. Raises UserError, naming machine and path,
    for too many bytes, for what cannot be read here, and for what a machine cannot keep."""
    parcels = plan_parcels(path for _, paths in missing for path in paths)
    require_small(parcels, missing)
    sent: list[Sent] = []
    with console.slow_progress("send files to the nodes", len(parcels), "folders") as progress:
        for parcel in parcels:
            receivers = _list_receivers(parcel, missing)
            info, content = parcel.pack()
            try:
                one = Sent(info, ray.put(content))
                del content
                count = _deliver(ray, one, parcel.title, receivers)
            except ray.exceptions.RayError as error:
                why = redact(str(error).splitlines()[0])[:200]
                raise _explain_unsent(f"{parcel.title} could not be sent to the nodes", why) from None
            if count:
                console.note(f"sent {parcel.title} ({human_bytes(parcel.size)}) to {format_count(count, 'node')}")
            sent.append(one)
            progress.update(len(sent))
    return sent


def _deliver(ray: Any, sent: Sent, title: str, receivers: Sequence[Node]) -> int:
    """Have all receivers keep a copy at once; returns how many had none."""
    receive = ray.remote(num_cpus=0, max_retries=0)(receive_parcel)
    asked = [(node, receive.options(scheduling_strategy=node.place).remote(sent)) for node in receivers]
    count = 0
    for node, answer in asked:
        is_new, error = ray.get(answer)
        if error is not None:
            raise _explain_unsent(f"node {node.host} could not keep a copy of {title}", error)
        count += is_new
    return count


def _explain_unsent(what: str, why: str) -> UserError:
    do = "free space there, set COMPRESS_CACHE to another folder, or use a folder that all nodes share"
    return UserError(what, where="--on", why=why, do=do, code=ExitCode.RESOURCES)


def require_small(parcels: Sequence[Parcel], missing: Missing) -> None:
    """Raise UserError, naming a machine and the largest parcel, where all together are too large to be sent."""
    size = sum(parcel.size for parcel in parcels)
    if size <= MOST_BYTES:
        return
    largest = max(parcels, key=lambda parcel: parcel.size)
    why = f"{human_bytes(size)} would have to be sent, and the limit is {human_bytes(MOST_BYTES)}"
    raise refuse_path(_list_receivers(largest, missing)[0].host, largest.title, why)


def refuse_path(host: str, path: str, why: str | None = None) -> UserError:
    """The error for something that a machine does not see, and has to."""
    return UserError(
        f"node {host} does not see {path}", where="--on", why=why,
        do="use a folder that all nodes share for the working folder, --output and what the runs read",
        code=ExitCode.ENVIRONMENT,
    )  # fmt: skip


def _list_receivers(parcel: Parcel, missing: Missing) -> list[Node]:
    return [node for node, paths in missing if not {*parcel.paths}.isdisjoint(paths)]


# --- on a worker --------------------------------------------------------------------------------------------------


def receive_parcel(sent: Sent) -> tuple[bool, str | None]:
    """Keep a copy on this machine; returns whether there was none, and why it failed."""
    fetched: list[Sent] = []
    try:
        sent.info.unpack(lambda: fetched.append(sent) or _fetch(sent))
    except (UserError, OSError) as error:
        return False, error.line() if isinstance(error, UserError) else str(error)
    return bool(fetched), None


def open_sent(sent: Sequence[Sent]) -> dict[str, str]:
    """Path as it was named → copy, for what is not on this machine; fetched again where it is not kept any more. Raises
    UserError when it cannot be kept."""
    copies: dict[str, str] = {}
    for one in sent:
        if not all(map(os.path.exists, one.info.places)):
            copies |= one.info.unpack(lambda one=one: _fetch(one))
    return copies


def _fetch(sent: Sent) -> Mapping[str, bytes]:
    import ray  # pyright: ignore[reportMissingImports]

    return ray.get(sent.content)
