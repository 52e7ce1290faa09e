"""Whether a step of each case runs where the device's tensors are fake: prints {case: null, or what stops it}.

Arguments: the layers of teacher and student, such as 12+6, and cases, none for all. The models are as wide as
BERT-base. Fake tensors have a shape, a type and a device, and no values: a step that needs a number of the device, or a
shape that depends on one, ends with an error. The host's tensors are real, since what is read there costs a GPU
nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import device  # first: it loads the shim before torch
import numpy as np
import torch
from step_cases import BERT_BASE, CASES, Case, build_batch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from compress.contracts import EncoderOutput
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.training import precision

DROPOUTS = (0.1, 0.0)  # without dropout, attention is one kernel for sequences of different lengths
ROWS = 16


class FakeDevice(FakeTensorMode):
    """Fake are the tensors of the device, and what is computed of them."""

    avoid_device_init = True  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride] - there is none

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        named = kwargs.get("device")
        on_device = named is not None and torch.device(named).type == "cuda"
        if on_device or any(isinstance(x, FakeTensor) for x in tree_leaves((args, kwargs))):
            return super().__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **kwargs)


@contextlib.contextmanager
def fake_device() -> Iterator[None]:
    """Inside, tensors on CUDA are fake."""

    def build(kind: type[nn.Module], *args: Any, **keys: Any) -> nn.Module:
        return kind(*args, **keys)

    with contextlib.ExitStack() as stack:
        stack.enter_context(device.report_one_device())
        # It builds on the meta device and moves, and fake parameters cannot be moved.
        stack.enter_context(mock.patch.object(nn.utils, "skip_init", build))
        stack.enter_context(mock.patch.object(Model, "initialize", lambda self, seed=0: self))  # there are no values
        stack.enter_context(FakeDevice(allow_non_fake_inputs=True))
        yield


def make_step(case: Case, depths: tuple[int, int], dropout: float) -> None:
    """Teacher, student, losses, gradients."""
    with torch.device("cuda"):
        teacher, student = (case.build_model(BERT_BASE, layers, dropout) for layers in depths)
        module = case.build_module(teacher, student, prepare(teacher, "bf16")).train()
    batch = case.label(build_batch(64 + np.arange(ROWS) // 2, BERT_BASE["vocabulary"])).to("cuda")
    with precision.autocast("bf16", torch.device("cuda", 0)):
        terms = module(batch)
    assert len(terms) == len(case.objectives)
    total = torch.stack([term.value for term in terms.values()]).sum()
    assert isinstance(total, FakeTensor)
    total.backward()
    gradients = [p.grad for p in student.parameters() if p.grad is not None]
    assert gradients
    assert all(isinstance(x, FakeTensor) and x.is_cuda for x in gradients)


def _read_with(read: Callable[[torch.Tensor], object]) -> None:
    """A step whose loss reads what it must not."""
    case = CASES["vectors"]
    objective = mock.patch(
        "compress.objectives.vectors.Objective.forward",
        lambda self, student, teacher, batch: torch.as_tensor(read(_logits(student))),
    )
    with objective:
        make_step(case, (2, 1), 0.0)


def _logits(output: EncoderOutput) -> torch.Tensor:
    assert output.logits is not None
    return output.logits


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x * x.sum().item(),
    "nonzero": lambda x: x * len(x.nonzero()),
    "mask": lambda x: x[x > 0].sum(),
}
"""What must stop a step, else this script finds nothing."""


def _try(step: Callable[[], None]) -> str | None:
    try:
        with fake_device():
            step()
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(device.PACKAGES)]
        return f"{type(error).__name__}: {error}, {frames[-1].filename}:{frames[-1].lineno}"
    return None


if __name__ == "__main__":
    depths, *names = sys.argv[1:]
    deep, shallow = map(int, depths.split("+"))
    found = {name: _try(partial(_read_with, read)) for name, read in READS.items()}
    for name in names or CASES:
        for share in DROPOUTS:
            found[f"{name}, dropout {share}"] = _try(partial(make_step, CASES[name], (deep, shallow), share))
    print(json.dumps(found), flush=True)
    os._exit(0)  # autograd's thread for the device sometimes aborts a process that ends as usual
