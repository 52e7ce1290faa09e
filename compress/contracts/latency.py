"""What a latency is of: the condition that travels with the figure, without which two of them must not be compared."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class FixedLength:
    """`batch` sequences of `length` tokens each, without tokenization."""

    batch: int
    length: int

    def __str__(self) -> str:
        return f"batch {self.batch} x {self.length} tokens"


@dataclass(frozen=True)
class TextLengths:
    """Texts of a data set, `batch` of like length to a call, with tokenization.

    data: name and split.  digest: of the data, hexadecimal.  rows: that the measured ones were chosen from.
    """

    batch: int
    data: str
    digest: str
    rows: int

    def __str__(self) -> str:
        return f"batch {self.batch} x texts of {self.data} ({self.rows:,} rows, digest {self.digest[:8]}), tokenized"


LatencyShape = FixedLength | TextLengths
"""Its text is the condition `latency_shape` of a measurement and the parameter `latency.shape` of a run."""

_FIXED = re.compile(r"batch (\d+) x (\d+) tokens")


def fixed_length_of(text: str) -> int | None:
    """The tokens that a `latency_shape` names; None where it is of texts, or of an unknown form."""
    found = _FIXED.fullmatch(text)
    return None if found is None else int(found[2])
