"""How evenly the vectors of each layer fill their space, as they are and evened out."""

from __future__ import annotations

import numpy as np
import torch

from compress.analyze.subject import DEPTH, Analysis, Subject
from compress.data.batches.examples import Examples
from compress.report.plots import Curve, heatmap, line_chart
from evaluation.representation.anisotropy import anisotropy, remove_top, whiten

SAMPLE = 1500  # tokens whose pairs are compared
REMOVED = 3  # top components


def measure_isotropy(one: Subject, examples: Examples, found: Analysis) -> None:
    """Anisotropy of every layer's tokens, as they are, whitened, and without the top components."""
    tokens = int(examples.offsets[-1])
    chosen = torch.zeros(tokens, dtype=torch.bool)
    chosen[torch.randperm(tokens, generator=torch.Generator().manual_seed(0))[:SAMPLE]] = True
    parts: list[list[torch.Tensor]] = [[] for _ in one.layers]
    seen = 0
    for batch, states in one.states(examples):
        here = chosen[seen : seen + batch.tokens]
        seen += batch.tokens
        for kept, state in zip(parts, states, strict=True):
            kept.append(state[here])
    columns = ("layer", "mean |cosine|", "variance in top 1", "top 3", "top 10", "whitened", "without top 3")
    rows, counts, cosines = [], [], []
    for name, kept in zip(one.layers, parts, strict=True):
        x = torch.cat(kept)
        here = anisotropy(x)
        even = anisotropy(whiten(x)).cosine, anisotropy(remove_top(x, REMOVED)).cosine
        cosines.append((here.cosine, *even))
        rows.append(
            (name, f"{here.cosine:.3f}", *(f"{s:.3f}" for s in here.shares.values()), *(f"{e:.3f}" for e in even))
        )
        counts.append((name, *map(str, here.histogram)))
        found.values[f"anisotropy/layer_{name}"] = here.cosine
    found.tables["anisotropy"] = (f"isotropy of {int(chosen.sum()):,} tokens", (columns, rows))
    bins = tuple(f"{-1 + 0.1 * i:.1f}" for i in range(len(counts[0]) - 1))
    ways = ("as they are", "whitened", f"without the top {REMOVED}")
    curves: dict[str, Curve] = {
        way: [(i, c[k], c[k], c[k]) for i, c in enumerate(cosines)] for k, way in enumerate(ways)
    }
    found.plots["anisotropy"] = line_chart(
        f"{one.name}: anisotropy of the token vectors", DEPTH, "mean |cosine|", curves
    )
    title = "token pairs by cosine similarity, lower edge of each bin"
    found.tables["cosines"] = (title, (("layer", *bins), counts))
    shares = np.array([[int(c) for c in row[1:]] for row in counts], dtype=np.float64)
    found.plots["cosines"] = heatmap(
        f"{title}; share of all pairs", one.layers, bins, [list(row / row.sum()) for row in shares]
    )
