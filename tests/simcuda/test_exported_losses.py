"""`torch.export` takes every loss as one graph: what depends on the data is read on the host, before the loss.

There is no list of exceptions. A new objective is a case by itself (`step_cases.CASES`).
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from step_cases import CASES, SMALL, build_batch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from compress.contracts import Batch, EncoderOutput, VocabularyOutput
from compress.encoder.infer.prepare import prepare

for _kind in (EncoderOutput, VocabularyOutput):
    torch.export.register_dataclass(_kind)


class Loss(nn.Module):
    """An objective over tensors. host: the batch where it can be read, as of one on a device."""

    def __init__(self, objective: nn.Module, host: Batch) -> None:
        super().__init__()
        self.objective, self._host = objective, host

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, tensors: dict[str, Any]) -> Tensor:
        return self.objective(student, teacher, replace(self._host, **tensors, host=self._host))


@pytest.mark.parametrize("name", CASES)
def test_losses_are_exported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    teacher, student = (case.build_model(SMALL, layers, 0.0).initialize(layers) for layers in (2, 1))
    module = case.build_module(teacher, student, prepare(teacher, "fp32"))
    given: list[Any] = []
    prepare_outputs = module.prepare_outputs
    monkeypatch.setattr(module, "prepare_outputs", lambda *outputs: given.append(prepare_outputs(*outputs)) or given[0])
    terms = module(case.label(build_batch([3, 3, 4, 4, 5, 5, 6, 6], SMALL["vocabulary"])))
    *outputs, batch = given[0]
    batch.values.read_all()
    inputs = (*(None if output is None else _tensors_alone(output) for output in outputs), _tensors_of(batch))
    for kind, objective in module.objectives.items():
        exported = torch.export.export(Loss(objective, batch), inputs, strict=False).module()
        torch.testing.assert_close(exported(*inputs), terms[kind].value.detach())


def _tensors_alone(output: EncoderOutput) -> EncoderOutput:
    """With maps as lists of tensors, and nothing that is differentiated."""
    maps = {kind: getattr(output, kind) for kind in ("attentions", "attention_scores")}
    lists = {kind: None if x is None else tuple(list(layer) for layer in x) for kind, x in maps.items()}
    return tree_map_only(Tensor, Tensor.detach, replace(output, **lists))


def _tensors_of(batch: Batch) -> dict[str, Any]:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    extra = {name: x for name, x in batch.extra.items() if isinstance(x, Tensor)}
    return {"extra": extra, **{name: x for name, x in values.items() if isinstance(x, Tensor)}}
