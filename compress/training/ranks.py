"""Which of the processes of a run this one is, as `torchrun` says. Imports no torch: every command asks."""

from __future__ import annotations

import os
from dataclasses import dataclass

from compress.errors import UserError

ONE_COUNT = "give the number of threads of each process, such as 1"
"""What to do in place of `--threads auto`."""


@dataclass(frozen=True)
class Ranks:
    """rank: 0..world-1, of all processes.  local, beside: the same among those of this machine."""

    rank: int = 0
    world: int = 1
    local: int = 0
    beside: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes, logs and talks; the others only compute."""
        return self.rank == 0

    @property
    def launcher(self) -> list[str]:
        """The words before a command's own that start it again as it was started, on each of its machines."""
        if self.world == 1:
            return ["compress"]
        several = []
        if self.world > self.beside:
            machines = str(self.world // self.beside)
            several = ["--nnodes", machines, "--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:PORT"]
        return ["torchrun", *several, "--nproc-per-node", str(self.beside), "-m", "compress"]


def ranks() -> Ranks:
    """This process's place; alone unless torchrun started it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # RANK alone may be a cluster's, and mean something else
        return Ranks()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return Ranks(*(int(os.environ[name]) for name in names))


def require_one_process(what: str, where: str, do: str) -> None:
    """Raise UserError where torchrun started several."""
    if ranks().world > 1:
        raise UserError(f"{what} does not support several processes", where=where, do=do)
