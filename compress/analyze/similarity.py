"""CKA of a model's layers with each other, and with those of the model that it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compress.analyze.subject import Analysis, Subject
from compress.data.batches.examples import Examples
from compress.report.plots import heatmap
from evaluation.representation.cka import LEAST_BLOCKS, MINIBATCH, LayerCKA
from evaluation.representation.hsic import LEAST_ROWS, UndefinedError

OUTLIERS = 3  # dimensions that the second heatmap leaves out


def measure_similarity(one: Subject, other: Subject | None, examples: Examples, found: Analysis) -> None:
    """CKA of a model's layers with each other and with those of the model it was made from."""
    tokens = int(examples.offsets[-1])
    size = max(LEAST_ROWS, min(MINIBATCH, tokens // (4 * LEAST_BLOCKS)))
    inside, trimmed, across = LayerCKA(size), LayerCKA(size, without=OUTLIERS), LayerCKA(size)
    for batch, states in one.states(examples):
        inside.update(states)
        trimmed.update(states)
        if other is not None:
            across.update(other.states_of(batch), states)
    names = one.layers
    title = "CKA of layer outputs, debiased, all tokens"
    _matrix("cka", title, inside, names, names, found)
    _matrix("cka-without-outliers", f"{title}, without the {OUTLIERS} widest dimensions", trimmed, names, names, found)
    if other is None:
        return
    _matrix("cka-against", f"rows: {other.name}; columns: {one.name}", across, other.layers, names, found)
    matches = find_most_similar(across.matrix())
    rows = [
        (name, "" if best is None else names[best], _figure(cka))
        for name, (best, cka) in zip(other.layers, matches, strict=True)
    ]
    found.tables["lost"] = ("most similar layer", ((f"layer of {other.name}", f"layer of {one.name}", "CKA"), rows))
    weakest = min((row for row in rows if row[1]), key=lambda row: float(row[2]), default=None)
    if weakest is not None:
        found.lines.append(f"layer {weakest[0]} is preserved least: CKA {weakest[2]} with layer {weakest[1]}")


def find_most_similar(cka: np.ma.MaskedArray) -> list[tuple[int | None, Any]]:
    """Of each row the column with the largest CKA, and that CKA; None and masked where it is undefined for all."""
    undefined = np.ma.getmaskarray(cka)
    best = [int(row.argmax()) for row in cka.filled(-np.inf)]
    return [(None, np.ma.masked) if undefined[i].all() else (j, cka[i, j]) for i, j in enumerate(best)]


def _matrix(key: str, title: str, cka: LayerCKA, rows: Sequence[str], columns: Sequence[str], found: Analysis) -> None:
    matrix = cka.matrix()
    try:
        low, high = cka.interval()
    except UndefinedError as error:
        low = high = None
        found.lines.append(f"{key}: {error}")
    figures = []
    for i, one in enumerate(rows):
        for j, other in enumerate(columns):
            ends = ("", "") if low is None or high is None else (_figure(low[i, j]), _figure(high[i, j]))
            figures.append((one, other, _figure(matrix[i, j]), *ends))
    found.tables[key] = (title, (("layer", "with layer", "CKA", "low", "high"), figures))
    found.plots[key] = heatmap(title, rows, columns, matrix.filled(np.nan).tolist())


def _figure(value: Any) -> str:
    return "undefined" if value is np.ma.masked else f"{float(value):.3f}"
