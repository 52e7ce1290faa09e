"""Optimal brain surgeon (Hassibi and Stork 1992) for heads and neurons: remove one unit at a time and update the others
to compensate (arXiv 2302.04089), with errors weighted by a Kronecker-factored Fisher matrix (arXiv 2312.17244). Best of
all importances in our measurements before recovery training."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from compress.contracts import WidthScores, WidthStudy
from compress.encoder.modules.layers import Attention
from compress.encoder.modules.tied import dense_weight
from compress.encoder.reshape.basis import copy_plain
from compress.encoder.reshape.cut import OUTPUTS, unit_modules
from compress.stages.prune_width.obs import compute_elimination_losses


class Importance:
    """Score: second-order estimate of the rise of the loss when the units are removed one after the other. Unlike other
    importances, it accounts for redundant units that can replace each other. The remaining weights are refitted.

    For layers that share a matrix but have residuals of their own, the mean matrix is used.

    on: "answers" drawn from the model's own probabilities, which needs no labels, or "labels".
    """

    reads_text, in_loss, rearranges, refits = True, True, False, True

    def __init__(self, *, on: Literal["labels", "answers"] = "answers") -> None:
        self.on: Literal["labels", "answers"] = on

    @property
    def reads_labels(self) -> bool:
        return self.on == "labels"

    def __call__(self, study: WidthStudy) -> WidthScores:
        given = study.factors(self.on)
        found: dict[str, list[Tensor]] = {part: [] for part in OUTPUTS}
        for part, name in OUTPUTS.items():
            matrices: dict[int, list[Tensor]] = {}
            widths: dict[int, int] = {}
            for unit, module in unit_modules(study.model, part):
                matrices.setdefault(unit, []).append(copy_plain(dense_weight(getattr(module, name))))
                widths[unit] = module.head_width if isinstance(module, Attention) else 1
            for unit in sorted(matrices):
                study.stop()
                found[part].append(
                    compute_elimination_losses(torch.stack(matrices[unit]).mean(0), given[part, unit], widths[unit])
                )
        return WidthScores(found["attention"], found["feed_forward"])

    def hidden(self, study: WidthStudy) -> Tensor:
        return study.stream_curvatures() / 2
