"""An exported file in its runtime, asked for packed batches as a model of ours is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.errors import UserError
from compress.onnx.axes import INT8_PRODUCTS, LENGTH, VECTOR
from compress.onnx.overflow import rewrite_as_unsigned
from compress.onnx.runtimes import make_missing_error
from compress.onnx.start import Source, start_onnxruntime
from evaluation.cost.cpu import saturates

SPANS = ("start_logits", "end_logits")


class FileSession(ABC):
    """A file that answers. inputs, outputs: their names.  per_token: of each output, whether it is (B, L, ..)."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    per_token: Sequence[bool]

    @abstractmethod
    def infer(self, feed: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        """Inputs (B, L) int64 by name → the outputs in their order."""

    def run(self, batch: Batch) -> dict[str, np.ndarray]:
        """Output name → (B, ..), or (T, ..) without the padding where it says something of every token."""
        real, feed = pad_batch(batch)
        found = self.infer({name: feed[name] for name in self.inputs})
        return {
            name: value[real] if each else value
            for name, value, each in zip(self.outputs, found, self.per_token, strict=True)
        }

    def __call__(self, batch: Batch, needs: Needs) -> EncoderOutput:
        """As a model of ours answers when its task's logits are asked for; `last_hidden` is empty."""
        assert needs == Needs(logits=True), needs
        found = self.run(batch)
        logits = answer_in(found)
        return EncoderOutput(last_hidden=torch.empty(0), logits=torch.from_numpy(np.ascontiguousarray(logits)))


def answer_in(found: Mapping[str, Any], stack: Callable[..., Any] = np.stack) -> Any:
    """What a file answers, of its outputs: start and end scores side by side, logits, vectors, or the last states.

    stack: of numpy or of torch, as the outputs are.
    """
    if SPANS[0] in found:
        return stack([found[name] for name in SPANS], -1)
    return found[next(name for name in ("logits", VECTOR, "last_hidden_state") if name in found)]


class OnnxSession(FileSession):
    """In onnxruntime, on the CPU with `threads` threads, None for torch's number of them.

    Files of earlier versions and of other programs may hold int8 products that overflow on this processor: their
    weights are stored otherwise in memory, see `overflow`.
    Raises UserError where onnxruntime is not installed or cannot read the file.
    """

    def __init__(self, source: Source, *, threads: int | None = None) -> None:
        count = threads or torch.get_num_threads()
        try:
            self.session = start_onnxruntime(source, count)
            if saturates() and INT8_PRODUCTS not in self.session.get_modelmeta().custom_metadata_map:
                self.session = start_onnxruntime(rewrite_as_unsigned(source), count)
        except ImportError as error:
            raise make_missing_error(error, "onnxruntime") from error
        except UserError:
            raise
        except Exception as error:  # onnxruntime has a class of its own for every complaint
            raise unreadable("onnxruntime", source, error) from error
        self.inputs = [entry.name for entry in self.session.get_inputs()]
        given_out = self.session.get_outputs()
        wanted = [entry for entry in given_out if entry.name == VECTOR] or given_out
        self.outputs = [entry.name for entry in wanted]
        self.per_token = [entry.shape[1:2] == [LENGTH] for entry in wanted]

    def infer(self, feed: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        return self.session.run(self.outputs, dict(feed))  # type: ignore[return-value]


def unreadable(runtime: str, source: Source, error: Exception) -> UserError:
    """A runtime's complaint about a file, in one line: its last, which says what is wrong."""
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    return UserError(
        f"{runtime} cannot load this file",
        where="the exported model" if isinstance(source, bytes) else str(source),
        why=said[-1][:160] if said else type(error).__name__,
        do="export it again",
    )


def pad_batch(batch: Batch) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Where the real tokens stand, (B, L) bool, and the inputs of the file, each (B, L) int64, padded with 0."""
    lengths = np.diff(batch.cu_seqlens.cpu().numpy())
    real = np.arange(batch.max_length) < lengths[:, None]
    full = real.all()

    def grid(values: Tensor) -> np.ndarray:
        tokens = values.cpu().numpy()
        if full:
            return tokens.reshape(real.shape)
        made = np.zeros(real.shape, dtype=np.int64)
        made[real] = tokens
        return made

    return real, {
        "input_ids": grid(batch.input_ids),
        "attention_mask": real.astype(np.int64),
        "token_type_ids": grid(batch.segment_ids),
    }
