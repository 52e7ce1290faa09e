"""A model's figure on resamples of its rows, kept: what a paired interval with another model needs later.

The rows that a resample draws follow from the seed and their number, so the figures of two models on the same rows
belong together one by one, whatever the metric and without the rows themselves (Koehn 2004;
`intervals.resample_figure`). Of a share of rows it also keeps which were right, a bit a row.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.draws import RowMean, Weighted
from evaluation.quality.estimates import difference_interval
from evaluation.quality.intervals import Interval, Resamples, resample_figure
from evaluation.quality.shares import count_discordant, paired_share_interval

FORMAT, BEFORE = "resampled-2", "resampled-1"
"""BEFORE: without `left_out` and `right`."""
SEED = 0


@dataclass(frozen=True)
class ResampledMetric:
    """A metric of one model. data: names the rows, in their order.  value: of the rows.  figures: (R,) of resamples,
    NaN where undefined.  stream: a checksum of the generator's draws, so that only draws of the same rows are paired.
    left_out: as of `intervals.Resamples`.  right: (N,) bool where the metric is a share of rows.
    """

    metric: str
    data: str
    rows: int
    value: float
    figures: NDArray[np.float64]
    stream: int
    left_out: NDArray[np.float64] | None = None
    right: NDArray[np.bool_] | None = None

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        """Two models with the same one are resampled alike."""
        return self.metric, self.data, self.rows, len(self.figures), self.stream

    def minus(self, other: ResampledMetric) -> Interval:
        """This model's metric minus the other's, with its paired interval (`estimates.estimate_difference`).

        Raises ValueError for other draws, or where the difference is undefined.
        """
        if self.key != other.key:
            raise ValueError(f"a paired interval needs the same resamples: {self.key} against {other.key}")
        if self.right is not None and other.right is not None:
            return paired_share_interval(*count_discordant(self.right, other.right), self.rows)
        return difference_interval(self._resamples.minus(other._resamples))

    @property
    def _resamples(self) -> Resamples:
        return Resamples(self.rows, self.value, self.figures, self.left_out)

    def text(self) -> str:
        """As JSON, seven digits a figure; `parse` reads it."""
        said = {"format": FORMAT, "metric": self.metric, "data": self.data, "rows": self.rows, "stream": self.stream}
        said |= {"value": self.value, "figures": _written(self.figures)}
        if self.left_out is not None:
            said["left_out"] = _written(self.left_out)
        if self.right is not None:
            said["right"] = np.packbits(self.right).tobytes().hex()
        return json.dumps(said, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> ResampledMetric:
        """Raises ValueError for what `text` did not write."""
        try:
            said = json.loads(text)
            if said["format"] not in (FORMAT, BEFORE):
                raise ValueError(f"unknown format {said['format']!r}")
            rows = int(said["rows"])
            right = None if said.get("right") is None else _bits(said["right"], rows)
            left_out = None if said.get("left_out") is None else _read(said["left_out"])
            names = (str(said["metric"]), str(said["data"]), rows)
            return cls(*names, float(said["value"]), _read(said["figures"]), int(said["stream"]), left_out, right)
        except (KeyError, TypeError) as error:
            raise ValueError(f"no figures of resamples: {error!r}") from error


def _written(figures: NDArray[np.float64]) -> list[float | None]:
    return [None if np.isnan(x) else float(f"{x:.7g}") for x in figures]


def _read(figures: list[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if x is None else x for x in figures], dtype=np.float64)


def _bits(text: str, rows: int) -> NDArray[np.bool_]:
    packed = np.frombuffer(bytes.fromhex(text), dtype=np.uint8)
    if len(packed) != (rows + 7) // 8:
        raise ValueError(f"{len(packed)} bytes do not hold {rows} rows")
    return np.unpackbits(packed, count=rows).astype(bool)


def resample_metric(
    rows: int,
    score: Weighted,
    *,
    metric: str,
    data: str,
    resamples: int = 1000,
) -> ResampledMetric:
    """A metric on `rows` rows and on resamples of them. score: as of `intervals.bootstrap_rows`.

    Raises ValueError on no rows.
    """
    drawn = resample_figure(rows, score, resamples=resamples, seed=SEED)
    right = score.right if isinstance(score, RowMean) else None
    return ResampledMetric(metric, data, rows, drawn.value, drawn.figures, stream(rows), drawn.left_out, right)


def stream(rows: int) -> int:
    """Which rows this version of numpy draws out of `rows`, as a checksum."""
    return zlib.crc32(np.random.default_rng(SEED).integers(0, rows, 64).astype("<i8").tobytes())
