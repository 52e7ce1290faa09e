"""What torchrun would put into the environment of each process, for tests that fork them themselves."""

from __future__ import annotations

import socket


def places(world: int) -> list[dict[str, str]]:
    """Of each of `world` processes on this machine; nothing for one."""
    if world == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "TORCHELASTIC_RUN_ID": "toy", "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
