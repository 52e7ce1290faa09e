"""What is measured of a model on real input: second moments of what flows through it, and how sensitive the loss is to
each weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from compress.contracts import Batch, Objective
from compress.encoder.infer.second_moments import compute_second_moments
from compress.encoder.modules.layers import EncoderLayer
from compress.encoder.modules.model import Model
from compress.errors import UserError

TOKENS = 8192  # of input: ten for each channel of a base model
ROWS = 256  # whose gradients are squared: one backward pass each
RIDGE = 0.01  # of a least-squares fit with as many tokens as unknowns, in units of the inputs' mean square


@dataclass
class Statistics:
    """stream: (D, D) of the hidden states between layers, every layer counting alike.

    inputs: linear layer → (n+1, n+1) mean of [x 1]ᵀ[x 1] over tokens of its input.  outputs: norm → the same of its
    output. Only those that narrowing asks for. Module objects are the keys: layers may be shared.
    """

    stream: Tensor
    tokens: int = 0
    inputs: dict[nn.Module, Tensor] = field(default_factory=dict)
    outputs: dict[nn.Module, Tensor] = field(default_factory=dict)


def collect(model: Model, batches: Iterable[Batch]) -> Statistics:
    """Read batches until there are TOKENS tokens. The model is called in evaluation mode and left as it was."""
    width = model.config.hidden
    sums = Statistics(torch.zeros(width, width, dtype=torch.float64))
    hooks: list[Any] = []

    def watch(part: nn.Module, store: dict[nn.Module, Tensor], of_output: bool) -> None:
        if not isinstance(part, nn.LayerNorm | nn.Linear):
            return

        def note(_: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
            found = compute_second_moments(made if of_output else given[0])
            store[part] = store[part] + found if part in store else found

        hooks.append(part.register_forward_hook(note))

    def stream(_: nn.Module, given: tuple[Any, ...]) -> None:
        x = given[0].flatten(0, -2).double()
        sums.stream += (x.T @ x / x.square().mean()).cpu()

    encoder = model.encoder
    for layer in encoder.layers:
        assert isinstance(layer, EncoderLayer)
        hooks.append(layer.register_forward_pre_hook(stream))
        for part in (layer.attention.query, layer.attention.output, layer.feed_forward.down):
            watch(part, sums.inputs, of_output=False)
        for part in (layer.attention_norm, layer.output_norm):
            watch(part, sums.outputs, of_output=True)
    for part in (encoder.embeddings.norm, encoder.final_norm):
        if part is not None:
            watch(part, sums.outputs, of_output=True)
    was = model.training
    model.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                last = model(batch).last_hidden
                stream(model, (last,))
                sums.tokens += batch.tokens
                if sums.tokens >= TOKENS:
                    break
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was)
    for store in (sums.inputs, sums.outputs):
        for part, total in store.items():
            store[part] = (total / total[-1, -1]).double().cpu()
    return sums


def refit(
    weight: Tensor, bias: Tensor, kept: Tensor, second: Tensor, start: Tensor, tokens: int
) -> tuple[Tensor, Tensor]:
    """Weights and bias that give, from fewer inputs x B, nearly what they gave from x: least squares over real input.

    weight: (m, n).  bias: (m,).  kept: (n, k) the matrix B.  second: (n+1, n+1) of [x 1] over so many tokens.
    start: (m, k) what is kept where the input does not say: the fewer the tokens, the more of it.  → (m, k), (m,).
    """
    wider = torch.zeros(kept.shape[0] + 1, kept.shape[1] + 1, dtype=torch.float64)
    wider[:-1, :-1], wider[-1, -1] = kept, 1
    targets = torch.cat([weight, bias[:, None]], 1) @ second @ wider
    found = ridge(wider.T @ second @ wider, targets, torch.cat([start, bias[:, None]], 1), tokens)
    return found[:, :-1], found[:, -1]


def ridge(left: Tensor, right: Tensor, start: Tensor, tokens: int) -> Tensor:
    """W (m, k) of least squares: W left = right, drawn towards `start` by RIDGE, the more so the fewer the tokens.

    left: (k, k) second moments of the inputs, of any scale.  right: (m, k) of targets with inputs, of the same scale.
    start: (m, k), which stays where the inputs do not say.
    """
    missing = right - start @ left
    left = left.clone()
    left.diagonal().add_(RIDGE * len(left) / tokens * float(left.diagonal().mean()))
    return start + torch.linalg.solve(left, missing.T).T


def inputs(model: Model, batches: Iterable[Batch]) -> dict[nn.Module, Tensor]:
    """Linear layer → (in+1, in+1) mean of [x 1]ᵀ[x 1] over tokens of its input."""
    read = collect(model, batches)
    found, pre = dict(read.inputs), model.config.norm == "pre"
    layers: Any = model.encoder.layers
    for layer in layers:
        for part in (layer.attention.key, layer.attention.value):
            found[part] = found[layer.attention.query]
        found[layer.feed_forward.up] = read.outputs[layer.output_norm if pre else layer.attention_norm]
    return found


def fisher(model: Model, objective: Objective, rows: Iterable[Batch]) -> dict[nn.Parameter, Tensor]:
    """Parameter of a layer → mean square, fp64, of its gradient of the objective over ROWS batches of one row each.

    With the rows' own labels: the empirical diagonal Fisher information. Raises UserError when no row has one.
    """
    parameters = [p for p in model.encoder.layers.parameters() if p.requires_grad]
    sums = {p: torch.zeros(p.shape, dtype=torch.float64) for p in parameters}
    used = 0
    for batch in islice(_labelled(objective, rows), ROWS):
        loss = objective(model(batch, objective.student_needs), None, batch)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                sums[parameter] += gradient.double().square().cpu()
        used += 1
    if not used:
        raise UserError("no row has a label", where="data", why="Fisher information needs labelled rows")
    return {parameter: total / used for parameter, total in sums.items()}


def _labelled(objective: Objective, rows: Iterable[Batch]) -> Iterator[Batch]:
    return (batch for batch in rows if objective.count(batch))
