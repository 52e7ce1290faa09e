"""Micro-batches padded to one of a few sizes, so that steps of rows of any lengths replay the same CUDA graphs.

Padding stands behind the real rows, as rows of its own that are at least one token long: a sequence of no tokens has no
first token and no mean. Numbers of tokens are 4, 5, 6 or 7 times a power of two, so that about a quarter of the real
tokens is added at most, and a tenth on average. Attention reads `longest` in the place of a batch's longest sequence.
What is padded depends on the batch alone, so that a run that goes on pads as it did before.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compress.contracts import Batch
from compress.contracts.grid import MOST_PAIRS
from compress.contracts.padding import pad_batch
from compress.encoder.infer.prepare import PreparedModel
from compress.encoder.modules.model import Model
from compress.encoder.modules.varlen import supports_varlen
from compress.training.module import StageModule

MASKED_PARTS = 5
"""Masked positions are padded to so many fifths of the tokens: at BERT's masking rate of 15 %, to one."""
FREE_PAIRS = 32 * MOST_PAIRS
"""Of tokens in rows as long as the longest, where nothing computes them: the host still lays out their places."""


class FixedSizes:
    """Pads the steps that are one micro-batch. counts: what each term of the loss counts in a batch on the host.

    longest: tokens of the longest sequence of the data.  most_tokens: of a step that is padded, padding included.
    most_pairs: of tokens, where attention computes all rows as long as the longest.
    """

    def __init__(
        self,
        counts: Callable[[Batch], Mapping[str, int]],
        longest: int,
        *,
        most_tokens: float = math.inf,
        most_pairs: float = MOST_PAIRS,
    ) -> None:
        self._counts, self.longest = counts, longest
        self._most_tokens, self._most_pairs = most_tokens, most_pairs

    def pad(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """The micro-batches of a step. They come back as they are where there are several, where padding would be too
        much, and where a batch has what cannot be padded."""
        if len(batches) != 1 or any(isinstance(x, Tensor) for x in batches[0].extra.values()):
            return batches
        (batch,) = batches
        padded = batch
        if int(batch.cu_seqlens.diff().min()) < self.longest:
            padded = pad_rows(batch, self.longest, self._most_pairs)
        padded = _pad_masked(padded, batch)
        if padded is batch or padded.tokens > self._most_tokens:
            return batches
        real, counts = self._counts(batch), self._counts(padded)
        if any(bool(real[name]) != bool(count) for name, count in counts.items()):
            return batches
        shares = torch.tensor([count / real[name] if count else 0.0 for name, count in counts.items()])
        return [dataclasses.replace(padded, shares=shares, unpadded=batch)]


def find_padding_obstacle(
    module: StageModule, rows: int, longest: int | None, most_pairs: float = MOST_PAIRS
) -> str | None:
    """Why steps of so many rows are not padded, for people; None: they are. longest, most_pairs: as in FixedSizes,
    where known."""
    if type(module) is not StageModule:
        return "teacher and student have different tokenizers"
    if longest is None:
        return "the texts change from epoch to epoch"
    if choose_size(rows, rows, longest)[1] * longest**2 > most_pairs:  # not even rows of one token
        return f"{rows:,} rows of up to {longest:,} tokens take too much memory when padded"
    for name, objective in module.objectives.items():
        if not getattr(objective, "ignores_padding", False):
            return f"objective {name} does not support padding"
    models = [("student", module.student)]
    if module.teacher is not None:
        if not isinstance(module.teacher, PreparedModel):
            return "the teacher is several models, or its outputs are not computed in each step"
        models.append(("teacher", module.teacher.model))
    for whose, model in models:
        if (why := _find_obstacle_of_model(model)) is not None:
            return f"the {whose} {why}"
    return None


def attends_to_real_tokens(module: StageModule, kind: torch.dtype) -> bool:
    """Whether rows of padding cost attention as good as nothing: it is one kernel for rows of any lengths, and no loss
    reads its maps, or makes such of queries, keys and values. kind: of the products."""
    for objective in module.objectives.values():
        for needs in (getattr(objective, "student_needs", None), getattr(objective, "teacher_needs", None)):
            if needs is not None and (needs.attentions or needs.attention_scores or needs.projections):
                return False
    models = [module.student, *([module.teacher.model] if isinstance(module.teacher, PreparedModel) else [])]
    return all(isinstance(model, Model) and _has_kernel(model, kind) for model in models)


def _has_kernel(model: Model, kind: torch.dtype) -> bool:
    config = model.config
    if config.relative_bias is not None or config.disentangled is not None:
        return False
    return all(
        supports_varlen(kind, shape.head_width, pattern)
        for shape, pattern in zip(config.layers, config.patterns, strict=True)
    )


def _find_obstacle_of_model(model: nn.Module) -> str | None:
    if not isinstance(model, Model):
        return "is not an encoder"
    if model.config.quantization is not None:  # padding would move the ranges of activations
        return "is quantized"
    if model.config.is_static:
        return "is static"
    if model.exits or model.config.kept_tokens:
        return "drops tokens or exits early"
    return None


def round_up_size(number: int) -> int:
    """The smallest of 1 to 8, and of 4, 5, 6 and 7 times a power of two, that is not below `number`."""
    step = 1 << max(0, (number - 1).bit_length() - 3)
    return math.ceil(number / step) * step


def choose_size(tokens: int, rows: int, longest: int) -> tuple[int, int]:
    """(tokens, rows) with padding, of a batch of so many."""
    size = round_up_size(tokens + 1)
    while size < tokens + _count_padding_rows(size, rows, longest):
        size = round_up_size(size + 1)
    return size, rows + _count_padding_rows(size, rows, longest)


def _count_padding_rows(size: int, rows: int, longest: int) -> int:
    """Enough for a fifth of the tokens, which is the most that the next smaller size lacks, and for a round number of
    rows."""
    return round_up_size(rows) - rows + math.ceil(size / 5 / max(1, longest - 1))


def pad_rows(batch: Batch, longest: int, most_pairs: float = MOST_PAIRS) -> Batch:
    """The batch with rows of padding; itself where that would be too much. most_pairs: as in FixedSizes."""
    size, rows = choose_size(batch.tokens, batch.rows, longest)
    if rows * longest**2 > most_pairs or size - batch.tokens > (rows - batch.rows) * longest:
        return batch
    return pad_batch(batch, size, rows, longest)


def _pad_masked(padded: Batch, batch: Batch) -> Batch:
    """`padded` with more masked positions than `batch` has, which no loss counts; itself where nothing is masked."""
    positions, labels = batch.mlm_positions, batch.mlm_labels
    if positions is None or labels is None or not len(positions):
        return padded
    step = max(1, padded.tokens // MASKED_PARTS)
    count = math.ceil(len(positions) / step) * step
    return dataclasses.replace(
        padded,
        mlm_positions=F.pad(positions, (0, count - len(positions)), value=padded.tokens - 1),
        mlm_labels=F.pad(labels, (0, count - len(labels))),
        real_masked=torch.arange(count) < len(positions),
    )
