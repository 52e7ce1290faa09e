"""Linear probes with control tasks: what a representation holds, and not what a classifier can memorise.

The control gives each kind of input (a word) a random label; selectivity is accuracy on the task less accuracy on the
control (Hewitt and Liang, arXiv 1909.03368).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evaluation.quality.intervals import Interval
from evaluation.quality.shares import share_interval
from evaluation.representation.hsic import finite


@dataclass(frozen=True)
class ProbeResult:
    """Shares of the test rows that are right. baseline: of the commonest label.  control: on random labels."""

    accuracy: Interval
    control: Interval
    baseline: float

    @property
    def selectivity(self) -> float:
        """Accuracy less that of the control task."""
        return self.accuracy.value - self.control.value


def probe(
    train: tuple[Tensor, NDArray[np.int64]],
    test: tuple[Tensor, NDArray[np.int64]],
    kinds: tuple[Sequence[object], Sequence[object]],
    *,
    seed: int = 0,
    decay: float = 1e-3,
) -> ProbeResult:
    """A linear classifier on rows (n, D) with classes from 0, and its control.

    kinds: what each train and test row is of, e.g. its word: equal kinds get the same random label, drawn with the
    frequencies of the real ones.  decay: of the weights.  Raises ValueError when labels or kinds are not one a row.
    """
    (x, y), (u, v) = train, test
    if not (len(x) == len(y) == len(kinds[0]) and len(u) == len(v) == len(kinds[1])):
        raise ValueError("a probe needs one label and one kind a row")
    x, u = finite(x).float(), finite(u).float()
    mean, scale = x.mean(0), x.std(0).clamp(min=1e-6)
    x, u = (x - mean) / scale, (u - mean) / scale
    frequencies = np.bincount(y, minlength=int(max(y.max(), v.max())) + 1) / len(y)
    rng = np.random.default_rng(seed)
    names = sorted({str(kind) for kind in (*kinds[0], *kinds[1])})
    drawn = dict(zip(names, rng.choice(len(frequencies), len(names), p=frequencies).tolist(), strict=True))
    controls = [np.array([drawn[str(kind)] for kind in some], dtype=np.int64) for some in kinds]
    right = _right(x, y, u, v, len(frequencies), decay)
    control = _right(x, controls[0], u, controls[1], len(frequencies), decay)
    baseline = float((v == int(frequencies.argmax())).mean())
    ours, theirs = (share_interval(float(rows.sum()), len(rows)) for rows in (right, control))
    return ProbeResult(ours, theirs, baseline)


def _right(
    x: Tensor, y: NDArray[np.int64], u: Tensor, v: NDArray[np.int64], classes: int, decay: float
) -> NDArray[np.float64]:
    """(test rows,) 1 where the classifier is right."""
    weight = torch.zeros(x.shape[1], classes, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=50, line_search_fn="strong_wolfe")
    gold = torch.from_numpy(y)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(x @ weight + bias, gold) + decay * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        found = (u @ weight + bias).argmax(1).numpy()
    return (found == v).astype(np.float64)
