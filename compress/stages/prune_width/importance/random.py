"""Random baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from compress.contracts import WidthScores, WidthStudy
from compress.encoder.reshape.cut import KeptUnits


class Importance:
    """Score: uniform random numbers from the run's seed."""

    reads_text, reads_labels, in_loss, rearranges, refits = False, False, False, False, False

    def __call__(self, study: WidthStudy) -> WidthScores:
        generator = torch.Generator().manual_seed(study.seed)
        whole = KeptUnits.everything(study.model.config)
        drawn = [[_drawn(len(n), generator) for n in part] for part in (whole.heads, whole.neurons)]
        return WidthScores(*drawn)

    def hidden(self, study: WidthStudy) -> Tensor:
        return _drawn(study.model.config.hidden, torch.Generator().manual_seed(study.seed))


def _drawn(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, dtype=torch.float64)
