"""Optimal brain surgery (Hassibi and Stork 1992) of heads and neurons: what the answers lose with one gone and the
others fitted to make good for it, one after the other (arXiv 2302.04089), errors weighed by a Fisher matrix in two
Kronecker factors (arXiv 2312.17244). Measured the best of all here before recovery."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from compress.contracts import WidthScores, WidthStudy
from compress.encoder.modules.layers import Attention
from compress.encoder.modules.tied import dense_weight
from compress.encoder.reshape.basis import plain
from compress.encoder.reshape.cut import OUTPUTS, unit_modules
from compress.stages.prune_width.obs import eliminated


class Importance:
    """The rise of the loss to second order, as each goes in its turn. Other importances score each by itself, beside
    all others; here two that say the same are known to stand in for each other. What is left is fitted anew.

    Of layers that share a matrix, each with a residual of its own, the mean is looked at.

    on: "answers", drawn from the model's own probabilities, which needs no labels; "labels".
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
                matrices.setdefault(unit, []).append(plain(dense_weight(getattr(module, name))))
                widths[unit] = module.head_width if isinstance(module, Attention) else 1
            for unit in sorted(matrices):
                study.stop()
                found[part].append(eliminated(torch.stack(matrices[unit]).mean(0), given[part, unit], widths[unit]))
        return WidthScores(found["attention"], found["feed_forward"])

    def hidden(self, study: WidthStudy) -> Tensor:
        return study.stream_curvatures() / 2
