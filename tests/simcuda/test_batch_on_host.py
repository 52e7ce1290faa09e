"""A batch on a device keeps what its lengths and labels are read from."""

from __future__ import annotations

import torch

from compress.contracts import Batch


def test_a_moved_batch_knows_its_values_on_the_host() -> None:
    zeros = torch.zeros(5, dtype=torch.int64)
    batch = Batch(zeros, zeros, zeros, torch.tensor([0, 2, 5]), 3, torch.arange(2), labels=torch.tensor([1, -100]))
    assert batch.on_host is batch
    assert batch.to("cpu").host is None
    moved = batch.to("meta")  # a device whose values cannot be read
    assert moved.input_ids.device.type == "meta"
    assert moved.on_host is batch
    assert moved.to("meta").on_host is batch
