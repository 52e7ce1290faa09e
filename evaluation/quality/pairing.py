"""A model's figure on resamples of its rows, kept: what a paired interval with another model needs later.

The rows that a resample draws follow from the seed and their number, so the figures of two models on the same rows
belong together one by one, whatever the metric and without the rows themselves (Koehn 2004;
`intervals.resample_figure`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.intervals import Interval, percentile_interval, resample_figure

FORMAT = "resampled-1"
SEED = 0


@dataclass(frozen=True)
class ResampledMetric:
    """A metric of one model. data: names the rows, in their order.  value: of the rows.  figures: (R,) of resamples,
    NaN where undefined.  stream: a checksum of the generator's draws, so that only draws of the same rows are paired.
    """

    metric: str
    data: str
    rows: int
    value: float
    figures: NDArray[np.float64]
    stream: int

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        """Two models with the same one are resampled alike."""
        return self.metric, self.data, self.rows, len(self.figures), self.stream

    def minus(self, other: ResampledMetric) -> Interval:
        """This model's metric minus the other's, with its paired interval. Raises ValueError for other draws."""
        if self.key != other.key:
            raise ValueError(f"a paired interval needs the same resamples: {self.key} against {other.key}")
        apart = self.figures - other.figures
        return percentile_interval(self.value - other.value, apart[~np.isnan(apart)], self.rows)

    def text(self) -> str:
        """As JSON, seven digits a figure; `parse` reads it."""
        figures = [None if np.isnan(x) else float(f"{x:.7g}") for x in self.figures]
        said = {"format": FORMAT, "metric": self.metric, "data": self.data, "rows": self.rows, "stream": self.stream}
        return json.dumps({**said, "value": self.value, "figures": figures}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> ResampledMetric:
        """Raises ValueError for what `text` did not write."""
        try:
            said = json.loads(text)
            if said["format"] != FORMAT:
                raise ValueError(f"unknown format {said['format']!r}")
            figures = np.array([np.nan if x is None else x for x in said["figures"]], dtype=np.float64)
            names = (str(said["metric"]), str(said["data"]), int(said["rows"]))
            return cls(*names, float(said["value"]), figures, int(said["stream"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no figures of resamples: {error!r}") from error


def resample_metric(
    rows: int,
    score: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    metric: str,
    data: str,
    resamples: int = 1000,
) -> ResampledMetric:
    """A metric on `rows` rows and on resamples of them. score: as of `intervals.bootstrap_rows`.

    Raises ValueError on no rows.
    """
    value, figures = resample_figure(rows, score, resamples=resamples, seed=SEED)
    return ResampledMetric(metric, data, rows, value, figures, stream(rows))


def stream(rows: int) -> int:
    """Which rows this version of numpy draws out of `rows`, as a checksum."""
    return zlib.crc32(np.random.default_rng(SEED).integers(0, rows, 64).astype("<i8").tobytes())
