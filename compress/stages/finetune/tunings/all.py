"""Full fine-tuning (Devlin et al. 2019, arXiv 1810.04805)."""

from __future__ import annotations

from compress.stages.finetune.tunings._base import Base


class Tuning(Base):
    """Train all parameters."""
