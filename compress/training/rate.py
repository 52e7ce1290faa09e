"""The peak learning rate of a recipe that names none."""

from __future__ import annotations

WIDTH, RATE = 384, 1e-4
"""At this hidden size, this rate: MiniLM, on sets of four kinds (benchmarks/RESULTS.md)."""
POWER = 1.25
LOWEST, HIGHEST = 1e-5, 5e-4


def choose_rate(hidden: int, factor: float = 1.0) -> float:
    """The rate for an encoder of this hidden size, for AdamW and batches of about 32 rows: 1e-4 at 384 (MiniLM),
    4.2e-5 at 768 and 2.9e-5 at 1024, within bounds.

    A power law through MiniLM's rate here and the rates of BERT-base and BERT-large (2e-5 to 5e-5, Devlin et al. 2019,
    appendix A.3). Narrower matrices take larger steps (Yang et al., arXiv 2203.03466). factor: for
    a training of few of the parameters, which takes larger steps.
    """
    rate = min(max(RATE * (WIDTH / hidden) ** POWER, LOWEST), HIGHEST)
    return float(f"{factor * rate:.1e}")
