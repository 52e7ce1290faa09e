"""All rows once, for inference, and a model's outputs put back into their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from compress.contracts import Batch
from compress.data.batches.buckets import bucket_rows
from compress.data.batches.epoch_order import cut_by_tokens
from compress.data.batches.examples import Examples, collate
from compress.data.batches.ragged import gather


class EvaluationBatches:
    """All rows once, in `parts`, shortest first. `row_ids` put results back: out[batch.row_ids] = result."""

    def __init__(self, examples: Examples, parts: Sequence[np.ndarray]) -> None:
        self._examples, self._parts = examples, parts

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def tokens(self) -> list[int]:
        """Of each batch."""
        return [int(self._examples.lengths[part].sum()) for part in self._parts]

    def __getitem__(self, index: int) -> Batch:
        return collate(self._examples, self._parts[index])

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))


def evaluation_batches(examples: Examples, max_tokens: int, rows: np.ndarray | None = None) -> EvaluationBatches:
    """All rows once, or those of `rows`, for inference on real tokens only, by token budget; can be iterated again and
    again."""
    rows = np.arange(len(examples), dtype=np.int64) if rows is None else rows
    ranked = rows[np.argsort(examples.lengths[rows], kind="stable")]
    return EvaluationBatches(examples, np.split(ranked, cut_by_tokens(examples.lengths[ranked], max_tokens)))


def bucketed_batches(examples: Examples, max_tokens: int, call_tokens: int) -> EvaluationBatches:
    """The same for a runtime that pads a batch to its longest row: rows of one length, or nearly (`bucket_rows`)."""
    return EvaluationBatches(examples, bucket_rows(examples.lengths, max_tokens, call_tokens))


def copy_to_host(tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Each as float32 on the host. Those on a GPU are gathered there and copied once: the host waits once for all."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [tensor.detach().float().numpy() for tensor in tensors]
    whole = torch.cat([tensor.detach().float().reshape(-1) for tensor in tensors]).cpu().numpy()
    ends = np.cumsum([tensor.numel() for tensor in tensors])
    return [part.reshape(tensor.shape) for part, tensor in zip(np.split(whole, ends[:-1]), tensors, strict=True)]


def restore_outputs(examples: Examples, parts: Sequence[tuple[np.ndarray, torch.Tensor]]) -> np.ndarray:
    """`restore_order` of outputs wherever they are, in float32; the host waits once."""
    rows = [row_ids for row_ids, _ in parts]
    outputs = copy_to_host([output for _, output in parts])
    return outputs[0] if len(examples) == 1 else restore_order(examples, zip(rows, outputs, strict=True))


def restore_order(examples: Examples, parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """What a model gave for batches, in the order of the examples.

    parts: (row_ids, output) of each batch; outputs are (B, C), one a row, or (T, C), one a token, which come back as
    (rows, C) or (all tokens, C).
    """
    out: np.ndarray | None = None
    for rows, given in parts:
        per_token = len(given) == (examples.offsets[rows + 1] - examples.offsets[rows]).sum()
        if out is None:
            out = np.zeros((len(examples.ids) if per_token else len(examples), *given.shape[1:]), given.dtype)
        out[gather(examples.offsets, rows)[0] if per_token else rows] = given
    assert out is not None, "no rows"
    return out
