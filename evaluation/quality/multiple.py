"""Many tests at once: p-values that hold for all of them together."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """(M,) p-values → (M,) adjusted ones (Holm 1979): calling those below a level leaves at most that chance of
    calling even one wrongly, however the tests depend on one another. Raises ValueError for what is no probability."""
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not np.all((p >= 0) & (p <= 1)):
        raise ValueError("p-values lie from 0 to 1, in one row")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted
