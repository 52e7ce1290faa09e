"""Churn: which rows a model answers otherwise than its teacher, and where they are (Milani Fard et al. 2016)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

QUARTERS = ("shortest quarter", "second quarter", "third quarter", "longest quarter")
BANDS = ("below 0.60", "0.60 to 0.80", "0.80 to 0.95", "0.95 and above")


@dataclass(frozen=True)
class Group:
    """Some rows. changed: answered otherwise than by the teacher; broken: the teacher was right and the model is not;
    fixed: the model is right and the teacher was not."""

    by: str
    name: str
    rows: int
    changed: int
    broken: int
    fixed: int

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def churn(
    ours: ArrayLike, theirs: ArrayLike, gold: ArrayLike, groups: Mapping[str, Sequence[str] | NDArray]
) -> list[Group]:
    """(N,) answers of model and teacher and the right ones → one Group for all rows and one for every group.

    groups: what rows are told apart by → (N,) the group of each row; a group is listed in order of its first row, or
    as QUARTERS and BANDS are.
    """
    a, b, y = (np.asarray(x) for x in (ours, theirs, gold))
    changed, broken, fixed = a != b, (b == y) & (a != y), (a == y) & (b != y)

    def one(by: str, name: str, inside: NDArray) -> Group:
        return Group(by, name, *(int((x & inside).sum()) for x in (inside, changed, broken, fixed)))

    found = [one("all", "all rows", np.ones(len(y), dtype=bool))]
    for by, values in groups.items():
        names = np.asarray(values, dtype=object)
        order = [name for name in (*QUARTERS, *BANDS) if name in names] or list(dict.fromkeys(names.tolist()))
        found += [one(by, str(name), names == name) for name in order]
    return found


def quarters(lengths: ArrayLike) -> list[str]:
    """(N,) lengths → the quarter of the rows that each belongs to; equal lengths share one."""
    x = np.asarray(lengths)
    bounds = np.quantile(x, [0.25, 0.5, 0.75])
    return [QUARTERS[int(i)] for i in np.searchsorted(bounds, x, side="left")]


def confidence_bands(shares: ArrayLike) -> list[str]:
    """(N,) top probabilities of the teacher → the one of BANDS that each lies in."""
    return [BANDS[int(i)] for i in np.searchsorted([0.60, 0.80, 0.95], np.asarray(shares), side="right")]
