"""Linear probes of every layer on labelled data, each beside its control task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from compress.analyze.subject import DEPTH, Analysis, Subject, encode_split, table_of
from compress.console import Console
from compress.contracts import RunOptions
from compress.data.tables.table import UNLABELLED, Table
from compress.errors import UserError
from compress.report.plots import Curve, line_chart
from compress.tracking.names import slug
from evaluation.quality.intervals import Interval
from evaluation.representation.probes import ProbeResult, probe
from evaluation.representation.rows import rows_of

PROBE_ROWS = {"train": 1000, "test": 500}  # texts of a probe
PROBED = ("token-classification", "classification", "pair-classification")
PROBE_TOKENS = 6000  # most words of a probe's split


def probe_layers(one: Subject, source: str, options: RunOptions, console: Console, found: Analysis) -> None:
    """A linear probe with its control at every layer."""
    table = table_of("--probe", source, one, options, console)
    if table.task not in PROBED:
        raise UserError(
            f"a probe needs one class per word or per row, not {table.task}", where=f"--probe {source}",
            do="use data for token-classification, classification or pair-classification",
        )  # fmt: skip
    splits = {name: _probe_rows(one, table, name) for name in PROBE_ROWS}
    data = _free_name(table.display_name, found)
    results = []
    for place in range(len(one.layers)):
        (x, y, kinds), (u, v, others) = ((s[0][place], s[1], s[2]) for s in splits.values())
        results.append(probe((x, y), (u, v), (kinds, others)))
    rows = [(name, *_cells(result)) for name, result in zip(one.layers, results, strict=True)]
    for name, result in zip(one.layers, results, strict=True):
        found.values[f"probe/{data}_layer_{name}"] = result.accuracy.value
        found.values[f"selectivity/{data}_layer_{name}"] = result.selectivity
    columns = ("layer", "accuracy x 100", "control", "selectivity", "majority class")
    key = _key(data)
    title = f"linear probes on {data}, {table.task}"
    kind = "word" if table.task == "token-classification" else "last word of a text"
    found.tables[key] = (f"{title}; control: one random label for each {kind}", (columns, rows))
    curves = {
        "task": _curve([r.accuracy for r in results]),
        "control": _curve([r.control for r in results]),
        "majority class": [(i, *(3 * (100 * r.baseline,))) for i, r in enumerate(results)],
    }
    found.plots[key] = line_chart(title, DEPTH, "accuracy, %", curves)


def _free_name(data: str, found: Analysis) -> str:
    """What its figures are called: several sources may have files of one name."""
    free, number = data, 1
    while _key(free) in found.tables:
        number += 1
        free = f"{data}-{number}"
    return free


def _key(data: str) -> str:
    """Of its table and its plot, which are files."""
    return f"probe-{slug(data)}"


def _probe_rows(one: Subject, table: Table, split: str) -> tuple[list[torch.Tensor], np.ndarray, list[object]]:
    """(rows of each layer, classes, kinds): a word's first piece each, of its piece; or a text's mean, of its last."""
    examples = encode_split(one, table, split, PROBE_ROWS[split])
    parts: list[list[torch.Tensor]] = [[] for _ in one.layers]
    labels, kinds, seen = [], [], 0
    per_word = table.task == "token-classification"
    for batch, states in one.states(examples):
        assert batch.labels is not None
        wanted = torch.from_numpy(np.flatnonzero((batch.labels != UNLABELLED).numpy()))
        for kept, state in zip(parts, states, strict=True):
            taken = state if per_word else rows_of(state, batch.cu_seqlens, "mean")
            kept.append(taken[wanted])
        labels.append(batch.labels[wanted].numpy())
        pieces = batch.input_ids if per_word else batch.input_ids[batch.cu_seqlens[1:] - 2]
        kinds += pieces[wanted].tolist()
        seen += len(wanted)
        if per_word and seen >= PROBE_TOKENS:
            break
    return [torch.cat(kept) for kept in parts], np.concatenate(labels), kinds


def _cells(p: ProbeResult) -> tuple[str, ...]:
    a = p.accuracy
    shown = f"{100 * a.value:.1f} [{100 * a.low:.1f}, {100 * a.high:.1f}]"
    return shown, f"{100 * p.control.value:.1f}", f"{100 * p.selectivity:+.1f}", f"{100 * p.baseline:.1f}"


def _curve(shares: Sequence[Interval]) -> Curve:
    return [(place, 100 * s.value, 100 * s.low, 100 * s.high) for place, s in enumerate(shares)]
