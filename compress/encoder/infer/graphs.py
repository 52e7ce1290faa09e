"""Small batches answered by CUDA graphs: the host replays a whole forward pass by one call.

A few sequences are computed by the GPU sooner than the host launches their kernels one by one. A graph has fixed shapes
and fixed memory, so that a batch is copied, with rows of padding behind its own, to where that of the capture lay: one
of the size of the smallest bucket that it fits into (`choose_bucket`). Each bucket is captured at its first batch.
Larger batches are computed as by `prepare`, on real tokens only.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.contracts.padding import pad_batch
from compress.contracts.parcel import Parcel
from compress.encoder.infer.prepare import Precision, PreparedModel, prepare
from compress.encoder.kernels.add_norm import fuse_all
from compress.encoder.modules.model import NOTHING, Model
from compress.errors import ExitCode, UserError, printable

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
LENGTHS = (16, 32, 64, 128, 256, 512)
MOST_TOKENS = 8192
"""Of a bucket, with padding: of more, the host launches the kernels of BERT-base in less time than a GPU computes."""
TOKENS = (16, 32, 48, *(part << n for n in range(5, 12) for part in (2, 3)), MOST_TOKENS)
MOST_PLACES = 4 * MOST_TOKENS
"""Rows times length: what attention computes of models for which there is no kernel for rows of any length."""
WARM_UPS = 3
"""Calls before a capture: libraries choose kernels and take memory in them."""
ANSWERS = Needs(logits=True)
WHERE = "--runtime torch-graph"

Result = TypeVar("Result")

_log = logging.getLogger("compress.encoder")


class Bucket(NamedTuple):
    """A size: tokens of so many rows, and what stands for the length of each."""

    tokens: int
    rows: int
    length: int


Capture = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], object]]]
"""A computation over fixed memory → (its result, what computes it anew into the same memory)."""


def choose_bucket(tokens: int, rows: int, longest: int, positions: int) -> Bucket | None:
    """The smallest that holds so many tokens in so many rows, and rows of padding of at least one token; None where
    none does. longest: of the rows.  positions: of the model; `length` is never more."""
    length = next((x for x in LENGTHS if x >= longest), None)
    if length is None:
        return None
    length = min(length, positions)
    for size in TOKENS:
        missing = size - tokens
        all_rows = next((x for x in ROWS if x >= rows + math.ceil(missing / length)), None)
        if missing >= 0 and all_rows is not None and all_rows - rows <= missing:
            return Bucket(size, all_rows, length) if all_rows * length <= MOST_PLACES else None
    return None


def lay_in_bucket(batch: Batch, bucket: Bucket) -> Batch:
    """What the encoder reads of a batch on the host, padded."""
    read = dataclasses.replace(
        batch, labels=None, pair_labels=None, mlm_positions=None, mlm_labels=None, special_mask=None, answered=None,
        extra={}, grid=None, parcel=None,
    )  # fmt: skip
    return pad_batch(read, *bucket)


def capture_graph(compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
    """A `Capture` by CUDA, after some warm-ups. Raises RuntimeError where it fails."""
    for _ in range(WARM_UPS):
        warm_up(compute)
    return record_graph(compute)


def warm_up(compute: Callable[[], Result]) -> Result:
    """Compute as before a capture: on a stream of its own. Later work waits for it."""
    stream = _open_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), fuse_all():
        result = compute()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def record_graph(compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
    """A `Capture` by CUDA; nothing is computed yet. Raises RuntimeError where it fails.

    All graphs use the same memory, but for their results: they run one after the other. Other threads, which prepare
    batches or write files, may go on: what they ask of the driver is no part of the graph.
    """
    graph, here = torch.cuda.CUDAGraph(), torch.cuda.stream(torch.cuda.current_stream())
    try:
        # Of a capture that fails, torch leaves the stream current.
        with here, torch.cuda.graph(graph, pool=_find_pool(), capture_error_mode="thread_local"), fuse_all():
            result = compute()
    except Exception:
        _clean_up()
        raise
    _graphs.add(graph)
    return result, graph.replay


_graphs: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those that are in use, and share memory."""


def _find_pool() -> Any:
    """The memory that graphs share. torch frees it with the last of them, and refuses a capture into what was freed."""
    return next((graph.pool() for graph in _graphs), None)


def _clean_up() -> None:
    """After a capture that CUDA broke off, torch refuses others into the same memory, and the device's random numbers
    are still those of a graph, so that none can be drawn: a copy goes on where they were."""
    _graphs.clear()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


@functools.cache
def _open_stream() -> Any:
    return torch.cuda.Stream()


class _Captured:
    """One bucket: where its batches are copied to, and the pass over them."""

    def __init__(self, model: Model, bucket: Bucket, first: Batch, device: torch.device, capture: Capture) -> None:
        """first: a batch on the host that fits into the bucket."""
        self.bucket, self.device = bucket, device
        self.per_token = model.head_configs["task"].per_token
        padded = lay_in_bucket(first, bucket)
        self.buffer, there = self._build_parcel(padded).load(device)
        batch = padded.unpack(there, device)

        def compute() -> Tensor:
            # A copy, which remembers nothing: what is worked out of a batch, such as masks, is part of each pass.
            logits = model(dataclasses.replace(batch), ANSWERS).logits
            assert logits is not None
            return logits

        self.logits, self.replay = capture(compute)

    def answer(self, batch: Batch) -> Tensor:
        """(B, C), or (T, C) of a head that answers every token: of the batch alone, in memory of its own."""
        self._build_parcel(lay_in_bucket(batch.on_host, self.bucket)).refill(self.buffer)
        self.replay()
        return self.logits[: batch.tokens if self.per_token else batch.rows].clone()

    def _build_parcel(self, padded: Batch) -> Parcel:
        return padded.build_parcel(pinned=self.device.type == "cuda")


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
        bucket = choose_bucket(batch.tokens, batch.rows, batch.max_length, self.config.max_positions)
        if bucket is None:
            return None
        if bucket not in self._captured:
            device = self.model.encoder.embeddings.word.weight.device
            with torch.inference_mode(), torch.autocast(device.type, enabled=False):
                self._captured[bucket] = _Captured(self.model, bucket, batch.on_host, device, self._capture)
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
