"""Measured loss, greedy: repeatedly remove the layer whose removal raises the loss of the remaining model least."""

from __future__ import annotations

from compress.contracts import LayerChoice, LayerStudy
from compress.stages.prune_layers.criteria._common import list_remaining


class Criterion:
    """Score: loss on the labels after each further removal; one pass per remaining layer at every step."""

    reads_text = True
    reads_labels = True

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
        gone: list[int] = []
        reasons: dict[int, str] = {}
        scores: dict[int, float] = {}
        now = study.loss(range(study.depth))
        while study.depth - len(gone) > keep:
            free = [layer for layer in list_remaining(study.depth, gone) if layer not in protected]
            without = {layer: list_remaining(study.depth, [*gone, layer]) for layer in free}
            found = study.losses(without.values())
            losses = {layer: found[kept] for layer, kept in without.items()}
            best = min(losses, key=lambda layer: (losses[layer], -layer))
            scores |= {layer: loss - now for layer, loss in losses.items()}
            reasons[best] = f"loss {losses[best] - now:+.4f} without it, the smallest of {len(losses)} remaining layers"
            now = losses[best]
            gone.append(best)
        return LayerChoice(
            list_remaining(study.depth, gone),
            reasons,
            scores,
            score="increase of the loss when last tried without it",
            form="{:+.4f}",
        )
