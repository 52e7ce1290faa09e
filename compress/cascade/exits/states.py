"""What exits read of rows: the states of a frozen model behind some of its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from compress.contracts import Needs, Teacher
from compress.data.batches.evaluation_batches import evaluation_batches, restore_outputs
from compress.data.batches.examples import Examples
from compress.encoder.modules.exits import read_exit
from compress.encoder.modules.layout import PackedLayout

NEEDS = Needs(logits=True, hidden_states=True)


@dataclass(frozen=True)
class ExitStates:
    """Of N rows. states: layer → (N, 2 D) fp32, what an exit behind it reads.  logits: (N, C) of the model itself."""

    states: Mapping[int, np.ndarray]
    logits: np.ndarray


def compute_states(
    model: Teacher,
    examples: Examples,
    layers: Sequence[int],
    *,
    max_tokens: int,
    device: str = "cpu",
    told: Callable[[int], None] = lambda _: None,
) -> ExitStates:
    """One pass over the rows; of each, only what is in the result is kept. max_tokens: of a batch.  told: of how many
    rows are done."""
    parts: dict[int, list[tuple[np.ndarray, torch.Tensor]]] = {layer: [] for layer in layers}
    logits, done = [], 0
    for batch in evaluation_batches(examples, max_tokens):
        there, rows = batch.to(device), batch.row_ids.numpy()
        output = model(there, NEEDS)
        assert output.hidden_states is not None
        assert output.logits is not None
        layout = PackedLayout.of(there)
        for layer in layers:
            parts[layer].append((rows, read_exit(output.hidden_states[layer], layout).float()))
        logits.append((rows, output.logits.float()))
        done += batch.rows
        told(done)
    states = {layer: restore_outputs(examples, found) for layer, found in parts.items()}
    return ExitStates(states, restore_outputs(examples, logits))
