"""What `compress verify` reads of a certificate, so that a file that was edited by hand is an error that names the
key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
Counts = Annotated[tuple[Count, ...], Field(min_length=1)]


class _Part(BaseModel):
    """Other keys are for people, or of a later version."""

    model_config = ConfigDict(extra="allow", frozen=True)


class HashedFile(_Part):
    """A file of the folder."""

    sha256: str


class CertifiedBounds(_Part):
    """Of the request."""

    max_mb: Positive | None
    max_ms: Positive | None
    max_drop: Finite | None


class Tokenization(_Part):
    """Milliseconds of a latency."""

    tokenization: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Predicted(Tokenization):
    """For a target. whole: tokens → milliseconds of a model of the parent's shape."""

    target: str
    margin: Positive
    whole: dict[Annotated[str, Field(pattern="^[1-9][0-9]*$")], Positive] | None = None
    shape: dict[Literal["encoder", "heads"], dict[str, Any]] | None = None


class KitLatency(Tokenization):
    """Of a latency that a kit measured."""

    predicted_ms: Positive | None
    predicted: Predicted | None = None
    pace: Positive | None = None


class CertifiedLatency(_Part):
    """Either `length`, or `tokens` and `sequences` of each timed call of the texts of `data`."""

    ms: Positive
    p50: Positive
    p95: Positive
    quiet: bool
    repeats: Annotated[int, Field(ge=0)]
    batch: Count
    length: Count | None = None
    tokens: Counts | None = None
    sequences: Counts | None = None
    data: str | None = None
    digest: str | None = None
    texts: Tokenization | None = None
    predicted: Predicted | None = None
    kit: KitLatency | None = None

    @model_validator(mode="after")
    def _require_calls(self) -> CertifiedLatency:
        if self.length is None and (self.tokens is None or len(self.tokens) != len(self.sequences or ())):
            raise PydanticCustomError("calls", "expected `length`, or as many `tokens` as `sequences`")
        return self


class Interval(_Part):
    """A figure with its 95 % interval."""

    value: Finite | None
    low: Finite | None
    high: Finite | None


class CertifiedQuality(Interval):
    """Of the main metric."""

    metric: str
    labels: str


class Difference(Interval):
    """Against the parent."""

    p_value: Finite | None


class CertifiedDevice(_Part):
    """What was timed on."""

    device: str
    threads: Annotated[str, Field(pattern="^[1-9][0-9]*$")]


class CertificateContent(_Part):
    """All that is read of a certificate."""

    format: Literal[1, 2]
    status: Literal["certified", "uncertified", "infeasible", "predicted"]
    why: tuple[str, ...]
    bounds: CertifiedBounds
    deployed: Annotated[tuple[str, ...], Field(min_length=1)]
    files: dict[str, HashedFile]
    size_mb: Positive
    latency: CertifiedLatency
    speedup: Positive | None
    quality: CertifiedQuality
    difference: Difference
    agreement_pct: Interval
    rows: Annotated[int, Field(ge=0)]
    shared_rows: Annotated[int, Field(ge=0)] = 0
    dataset: str
    dataset_digest: str
    runtime: str
    device: CertifiedDevice
    versions: dict[str, str | None]

    @model_validator(mode="after")
    def _require_hashes(self) -> CertificateContent:
        missing = [name for name in self.deployed if name not in self.files]
        if missing:
            raise PydanticCustomError("deployed", "`files` has no {name}, which is deployed", {"name": missing[0]})
        return self
