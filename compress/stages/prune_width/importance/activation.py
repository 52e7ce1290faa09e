"""Activation-aware: magnitude of the output on real text (Wanda, Sun et al., arXiv 2306.11695; whole heads,
neurons)."""

from __future__ import annotations

import torch
from torch import Tensor

from compress.contracts import WidthScores, WidthStudy
from compress.encoder.modules.layers import Attention, FeedForward
from compress.encoder.modules.tied import dense_weight
from compress.encoder.reshape.basis import copy_plain
from compress.stages.prune_width.importance._common import by_unit, readers


class Importance:
    """Score: root mean square of the output that a head or neuron adds to the hidden states; for a channel, of the
    values that are read from it."""

    reads_text, reads_labels, in_loss, rearranges, refits = True, False, False, False, False

    def __call__(self, study: WidthStudy) -> WidthScores:
        moments = study.moments

        def of_heads(unit: int, module: Attention) -> Tensor:
            output = (
                copy_plain(dense_weight(module.output)).unflatten(1, (module.heads, -1)).transpose(0, 1)
            )  # (H, D, K)
            return torch.einsum("hdk,hkl,hdl->h", output, moments.heads[unit], output).clamp_min(0).sqrt()

        def of_neurons(unit: int, module: FeedForward) -> Tensor:
            return (copy_plain(dense_weight(module.down)).square().sum(0) * moments.neurons[unit]).sqrt()

        return by_unit(study.model, of_heads, of_neurons)

    def hidden(self, study: WidthStudy) -> Tensor:
        return (readers(study.model) * study.moments.stream).sqrt()
