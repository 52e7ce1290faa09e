"""Validation by several processes: each computes some of the batches, and the leading one gets what all computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from compress.data.batches.deal import deal
from compress.training.distributed import validating_team

Part = TypeVar("Part")


def share_out(tokens: Sequence[int]) -> list[int]:
    """Places, rising, of the batches that this process computes: all, unless several processes validate together.

    tokens: of each batch; each process has about as many. Whole batches are dealt, not rows: beside other rows, a row's
    outputs may differ in the last bit.
    """
    team = validating_team()
    if team is None:
        return list(range(len(tokens)))
    return deal(np.array(tokens), team.place.rank, team.place.world).tolist()


def collect(places: Sequence[int], parts: Sequence[Part]) -> list[Part] | None:
    """The parts of all batches, in order; None in a process that only helps another.

    parts: what this process computed of the batches at `places`, on the host. Raises PeerError and Stopped.
    """
    team = validating_team()
    if team is None:
        return list(parts)
    found = team.gather(dict(zip(places, parts, strict=True)))
    return None if found is None else [found[place] for place in sorted(found)]


def only_helps() -> bool:
    """Whether this process computes its share for another one, which needs nothing else of it."""
    team = validating_team()
    return team is not None and not team.place.leads
