"""Angular distance: remove the run of layers that changes its input least (Gromov et al., arXiv 2403.17887)."""

from __future__ import annotations

from compress.contracts import LayerChoice, LayerStudy
from compress.stages.prune_layers.criteria._common import list_remaining, make_undefined_error


class Criterion:
    """Score: mean angle between the input of the first and the output of the last of n neighbouring layers, as a
    fraction of π. The n removed layers are always neighbours."""

    reads_text = True
    reads_labels = False

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
        n = study.depth - keep
        angles = study.angles().angles()
        runs = {
            list_remaining(study.depth, range(start, start + n)): float(angles[start, start + n])
            for start in range(study.depth - n + 1)
            if not protected & set(range(start, start + n))
        }
        if not runs:
            raise make_undefined_error("angular", f"every run of {n} consecutive layers contains a protected layer")
        best = min(runs, key=lambda kept: (runs[kept], kept))
        gone = [layer for layer in range(study.depth) if layer not in best]
        why = (
            f"layers {gone[0]} to {gone[-1]} rotate their input by {runs[best]:.3f} π, the smallest of {len(runs)} runs"
        )
        return LayerChoice(best, dict.fromkeys(gone, why), of_sets=runs, score="angle over the run, share of π")
