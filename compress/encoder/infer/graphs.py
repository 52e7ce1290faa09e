"""Small batches answered by CUDA graphs: the host replays a whole forward pass by one call.

A few sequences are computed by the GPU sooner than the host launches their kernels one by one. A graph has fixed shapes
and fixed memory, so that a batch is copied, padded, into the buffers of the smallest bucket that it fits into
(`choose_bucket`). Each bucket is captured at its first batch. Batches with more tokens are computed as by `prepare`, on
real tokens only. Never run on a GPU: experimental.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.contracts.parcel import Parcel
from compress.encoder.infer.prepare import Precision, PreparedModel, prepare
from compress.encoder.modules.model import NOTHING, Model
from compress.errors import ExitCode, UserError, printable

ROWS = (1, 2, 4, 8, 16, 32)
LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
MOST_TOKENS = 4096
"""Of a bucket, with padding: by the predictions of benchmarks/gpu.md, the device takes longer than the launches."""
WARM_UPS = 3
"""Calls before a capture: libraries choose kernels and take memory in them."""
ANSWERS = Needs(logits=True)
WHERE = "--runtime torch-graph"

Result = TypeVar("Result")

_log = logging.getLogger("compress.encoder")


class Bucket(NamedTuple):
    """A shape: rows times tokens of each."""

    rows: int
    length: int


Capture = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], object]]]
"""A computation over fixed memory → (its result, what computes it anew into the same memory)."""


def choose_bucket(rows: int, length: int, positions: int) -> Bucket | None:
    """The smallest that holds `rows` sequences of at most `length` tokens; None where none does.

    positions: of the model; a bucket is never longer.
    """
    lengths = [*(x for x in LENGTHS if x < positions), *([positions] if positions <= LENGTHS[-1] else [])]
    found = Bucket(
        next((x for x in ROWS if x >= rows), 0),
        next((x for x in lengths if x >= length), 0),
    )
    return found if 0 < found.rows * found.length <= MOST_TOKENS else None


def lay_in_bucket(batch: Batch, bucket: Bucket) -> np.ndarray:
    """(4, rows, length) int64: token ids, 1 on real tokens, segments, and in the first T numbers of the last plane, row
    by row, the places of the T real tokens among all. Rows that the batch does not have are one token long."""
    values = batch.on_host.values
    bounds = values["cu_seqlens"]
    lengths = np.diff(bounds)
    planes = np.zeros((4, *bucket), dtype=np.int64)
    flat = planes.reshape(4, -1)
    tokens = np.arange(bounds[-1])
    places = tokens + np.repeat(bucket.length * np.arange(len(lengths)) - bounds[:-1], lengths)
    flat[0, places], flat[1, places], flat[2, places] = values["input_ids"], 1, values["segment_ids"]
    flat[3, tokens] = places
    planes[1, len(lengths) :, 0] = 1  # of no tokens at all, attention would be NaN
    return planes


def capture_graph(compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
    """A `Capture` by CUDA, after some warm-ups. Raises RuntimeError where it fails."""
    for _ in range(WARM_UPS):
        warm_up(compute)
    return record_graph(compute)


def warm_up(compute: Callable[[], Result]) -> Result:
    """Compute as before a capture: on a stream of its own. Later work waits for it."""
    stream = _open_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = compute()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def record_graph(compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
    """A `Capture` by CUDA; nothing is computed yet. Raises RuntimeError where it fails.

    All graphs use the same memory, but for their results: they run one after the other. Other threads, which prepare
    batches or write files, may go on: what they ask of the driver is no part of the graph.
    """
    graph, here, pool = torch.cuda.CUDAGraph(), torch.cuda.stream(torch.cuda.current_stream()), _find_pool()
    try:
        # Of a capture that fails, torch leaves the stream current.
        with here, torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = compute()
    except Exception:
        _clean_up(pool)
        raise
    _graphs.add(graph)
    return result, graph.replay


_graphs: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those that are in use."""


def _find_pool() -> Any:
    """The memory that graphs share. torch frees it with the last of them, and refuses a capture into what was freed."""
    return next((graph.pool() for graph in _graphs), None) or torch.cuda.graph_pool_handle()


def _clean_up(pool: Any) -> None:
    """After a capture that CUDA broke off: memory would still be taken from the pool, and the device's random numbers
    would still be those of a graph, so that no others could be drawn. A copy goes on where they were."""
    device = torch.cuda.current_device()
    with contextlib.suppress(RuntimeError):  # a capture that ended by itself has closed it
        torch._C._cuda_endAllocateToPool(device, pool)
    generator = torch.cuda.default_generators[device]
    generator.graphsafe_set_state(generator.clone_state())


@functools.cache
def _open_stream() -> Any:
    return torch.cuda.Stream()


class _Captured:
    """One bucket: its buffer, and the pass over it."""

    def __init__(self, model: Model, bucket: Bucket, device: torch.device, capture: Capture) -> None:
        self.bucket, self.device = bucket, device
        self.planes = torch.zeros((4, *bucket), dtype=torch.int64, device=device)
        self.planes[1] = 1

        def compute() -> Tensor:
            ids, mask, segments, _ = self.planes
            logits = model.forward_padded(ids, mask, segments, ANSWERS).logits
            assert logits is not None
            return logits

        self.logits, self.replay = capture(compute)

    def answer(self, batch: Batch) -> Tensor:
        """(B, C), or (T, C) of a head that answers every token: of the batch alone, in memory of its own."""
        planes = torch.from_numpy(lay_in_bucket(batch, self.bucket))
        sent = Parcel({"": {"planes": planes}}, pinned=self.device.type == "cuda").to(self.device)
        self.planes.copy_(sent[""]["planes"])
        self.replay()
        if self.logits.dim() == 2:
            return self.logits[: batch.rows].clone()
        return self.logits.flatten(0, 1).index_select(0, self.planes[3].flatten()[: batch.tokens])


class GraphedModel(PreparedModel):
    """A frozen twin that answers small batches by CUDA graphs."""

    def __init__(self, model: Model, precision: Precision, capture: Capture = capture_graph) -> None:
        """model: as `prepare` makes it."""
        super().__init__(model, precision)
        self._capture = capture
        self._captured: dict[Bucket, _Captured] = {}
        self._fails = False

    def __call__(self, batch: Batch, needs: Needs = NOTHING) -> EncoderOutput:
        """What `Model.forward` gives, in this precision. Of small batches whose logits alone are read, `last_hidden` is
        empty."""
        captured = None if needs != ANSWERS or self._fails else self._find(batch)
        if captured is None:
            return super().__call__(batch, needs)
        with torch.inference_mode():
            logits = captured.answer(batch)
        return EncoderOutput(last_hidden=logits.new_zeros(0), logits=logits)

    def capture(self, batch: Batch) -> _Captured | None:
        """The graph of the batch's bucket, captured now if it was not before; None for a batch that is too large.
        Raises what a failed capture does."""
        bucket = choose_bucket(batch.rows, batch.max_length, self.config.max_positions)
        if bucket is None:
            return None
        if bucket not in self._captured:
            device = self.model.encoder.embeddings.word.weight.device
            with torch.inference_mode(), torch.autocast(device.type, enabled=False):
                self._captured[bucket] = _Captured(self.model, bucket, device, self._capture)
        return self._captured[bucket]

    def _find(self, batch: Batch) -> _Captured | None:
        try:
            return self.capture(batch)
        except Exception as error:  # whatever CUDA, a library or the model raise
            self._fails = True
            why = printable(str(error).strip().partition("\n")[0], 160)
            _log.warning("a CUDA graph could not be captured (%s); computing without graphs", why)
            return None


def prepare_graphed(model: Model, precision: Precision = "fp32", capture: Capture = capture_graph) -> GraphedModel:
    """`prepare`, with CUDA graphs for small batches. Raises UserError for a model that graphs do not support."""
    if (kind := _find_unsupported(model)) is not None:
        raise UserError(f"CUDA graphs do not support {kind}", where=WHERE, do="use --runtime torch")
    if model.config.quantization is not None:
        precision = "fp32"
    return GraphedModel(prepare(model, precision).model, precision, capture)


def _find_unsupported(model: Model) -> str | None:
    if model.exits:
        return "a model with early exits"
    if model.config.is_static:
        return "a static model"
    if model.config.kept_tokens is not None:  # shapes that depend on the lengths
        return "a model that drops tokens between its layers"
    return None


def require_gpu(device: torch.device) -> None:
    """Raise UserError for a device without CUDA graphs."""
    if device.type != "cuda":
        raise UserError(
            "torch-graph only runs on a CUDA GPU",
            where=WHERE,
            do="use --runtime torch, or --device cuda on a machine with a GPU",
            code=ExitCode.ENVIRONMENT,
        )
