"""Early exits: behind some layers a linear head answers the rows that it is sure of; the next layers read the rest."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from compress.contracts import Batch
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.layers import linear
from compress.encoder.modules.layout import PackedLayout


def build_exits(config: EncoderConfig, task: HeadConfig | None) -> nn.ModuleList:
    """(2 D → C) for each exit of a task head."""
    if task is None:
        return nn.ModuleList()
    return nn.ModuleList(linear(2 * config.hidden, task.labels) for _ in task.exits)


def read_exit(x: Tensor, layout: PackedLayout) -> Tensor:
    """What an exit reads of the states x (T, D) behind its layer: the first token and the mean of all, (B, 2 D)."""
    return torch.cat((layout.first(x), layout.pool(x, "mean")), dim=-1)


class OpenRows:
    """The rows of a batch that nobody has answered yet, and the answers to the others.

    layout, positions: of the open rows.  logits: (B, C) fp32.  places: (B,) int64, which exit answers a row; `exits`
    for the model's own head.  margins: (B,), how near a row's confidence came to the threshold of an exit.
    """

    def __init__(self, batch: Batch, labels: int, exits: int) -> None:
        self.layout, self.positions = PackedLayout.of(batch), batch.position_ids
        self._left = torch.arange(batch.rows, device=self.positions.device)
        self.logits = torch.empty(batch.rows, labels, device=self.positions.device)
        self.places = torch.full_like(self._left, exits)
        self.margins = torch.ones(batch.rows, device=self.positions.device)

    def __len__(self) -> int:
        return len(self._left)

    def leave(self, x: Tensor, found: Tensor, threshold: float, place: int) -> Tensor:
        """The states of the rows that stay open after exit `place`. x: (T, D) of the open rows.  found: (rows, C) what
        it answers."""
        found = found.float()
        confidence = found.softmax(-1).amax(-1)
        sure = confidence > threshold
        self.margins[self._left] = torch.minimum(self.margins[self._left], (confidence - threshold).abs())
        self.logits[self._left[sure]], self.places[self._left[sure]] = found[sure], place
        self._left = self._left[~sure]
        if not len(self) or not sure.any():
            return x
        self.layout, tokens = self.layout.take(~sure)
        self.positions = self.positions[tokens]
        return x[tokens]

    def close(self, found: Tensor) -> None:
        """Answer the rest. found: (rows, C)."""
        self.logits[self._left] = found.float()
