"""Linear probes of every layer on labelled data, each beside its control task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from compress.analysis.seen import Analysis, Subject, encoded, table_of
from compress.console import Console
from compress.contracts import RunOptions
from compress.data.table import UNLABELLED, Table
from compress.errors import UserError
from evaluation.representation.probes import Probed, probe
from evaluation.representation.rows import rows_of

PROBE_ROWS = {"train": 1000, "test": 500}  # texts of a probe
PROBED = ("token-classification", "classification", "pair-classification")
PROBE_TOKENS = 6000  # most words of a probe's split


def probed(one: Subject, source: str, options: RunOptions, console: Console, found: Analysis) -> None:
    """A linear probe with its control at every layer."""
    table = table_of("--probe", source, one, options, console)
    if table.task not in PROBED:
        raise UserError(
            f"a probe needs one class a word or a row, not {table.task}", where=f"--probe {source}",
            do="use data for token-classification, classification or pair-classification",
        )  # fmt: skip
    splits = {name: _probe_rows(one, table, name) for name in PROBE_ROWS}
    rows = []
    for place, name in enumerate(one.layers):
        (x, y, kinds), (u, v, others) = ((s[0][place], s[1], s[2]) for s in splits.values())
        result = probe((x, y), (u, v), (kinds, others))
        rows.append((name, *_cells(result)))
        found.values[f"probe/{table.name}_layer_{name}"] = result.accuracy.value
        found.values[f"selectivity/{table.name}_layer_{name}"] = result.selectivity
    columns = ("layer", "accuracy x 100", "control", "selectivity", "commonest label")
    key = f"probe-{Path(table.name).name}"
    found.tables[key] = (f"linear probes on {table.name}, {table.task}", (columns, rows))


def _probe_rows(one: Subject, table: Table, split: str) -> tuple[list[torch.Tensor], np.ndarray, list[object]]:
    """(rows of each layer, classes, kinds): a word's first piece each, of its piece; or a text's mean, of its last."""
    examples = encoded(one, table, split, PROBE_ROWS[split])
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


def _cells(p: Probed) -> tuple[str, ...]:
    a = p.accuracy
    shown = f"{100 * a.value:.1f} [{100 * a.low:.1f}, {100 * a.high:.1f}]"
    return shown, f"{100 * p.control.value:.1f}", f"{100 * p.selectivity:+.1f}", f"{100 * p.baseline:.1f}"
