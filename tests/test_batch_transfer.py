"""A batch knows how its sequences lie, and goes to a device in one buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.contracts import Batch
from compress.contracts.grid import divide, lay_out
from compress.contracts.parcel import ALIGNMENT, Parcel


def example(lengths: list[int]) -> Batch:
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    tokens = torch.arange(sum(lengths))
    return Batch(
        tokens, tokens * 0, tokens, bounds, max(lengths), torch.arange(len(lengths)),
        labels=torch.linspace(0, 1, len(lengths)), special_mask=tokens > 2,
        extra={"queries": torch.arange(len(lengths)), "name": "toy"},
    )  # fmt: skip


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_the_grid_says_where_each_token_lies(lengths: list[int]) -> None:
    found = lay_out(lengths)
    assert all(x.dtype == np.int32 for name, x in found.items() if name != "is_padding")
    assert found["bounds"].tolist() == [0, *np.cumsum(lengths)]
    assert found["rows"].tolist() == [row for row, length in enumerate(lengths) for _ in range(length)]
    place = token = 0
    for block in divide(lengths, padded=True):
        if len(set(block)) == 1:
            continue
        size, tokens = len(block) * max(block), sum(block)
        sources, is_padding = (found[name][place : place + size] for name in ("sources", "is_padding"))
        places = found["places"][token : token + tokens]
        assert is_padding.reshape(len(block), -1).sum(1).tolist() == [max(block) - length for length in block]
        assert sources[places].tolist() == list(range(tokens))
        assert sources.max() < tokens
        assert not is_padding[places].any()
        place, token = place + size, token + tokens
    assert (place, token) == (len(found["sources"]), len(found["places"]))


def test_a_parcel_keeps_values_types_and_shapes() -> None:
    whole = {
        "a": torch.arange(5),
        "b": torch.tensor([True, False, True]),
        "c": torch.rand(2, 3),
        "d": torch.zeros(0, 2),
        "every second": torch.arange(6)[::2],
        "expanded": torch.ones(1).expand(3),
        "one of stride 0": torch.arange(3)[1:].as_strided((1,), (0,)),
        "transposed": torch.rand(2, 3, dtype=torch.bfloat16).T,
        "one number": torch.tensor(2.5, requires_grad=True),
    }
    made = Parcel({"first": whole, "second": {"e": torch.arange(3, dtype=torch.int32)}}, pinned=False).to("cpu")
    for name, x in whole.items():
        assert made["first"][name].dtype == x.dtype
        assert torch.equal(made["first"][name], x)
    assert made["second"]["e"].tolist() == [0, 1, 2]
    assert made["second"]["e"].untyped_storage().data_ptr() == made["first"]["a"].untyped_storage().data_ptr()
    assert made["second"]["e"].data_ptr() % ALIGNMENT == made["first"]["a"].data_ptr() % ALIGNMENT


def test_a_batch_goes_to_a_device_in_one_buffer_with_its_grid() -> None:
    batch = example([2, 5, 5])
    staged = batch.stage("meta")
    assert batch.parcel is None
    assert staged.stage("meta") is staged
    moved: Any = staged.to("meta")
    assert moved.parcel is None
    assert moved.grid["bounds"].shape == (4,)
    tensors = [moved.input_ids, moved.labels, moved.extra["queries"], moved.grid["rows"]]
    assert all(x.device.type == "meta" for x in tensors)
    assert [x.dtype for x in tensors] == [torch.int64, torch.float32, torch.int64, torch.int32]
    assert moved.extra["name"] == "toy"
    assert moved.on_host.input_ids.device.type == "cpu"
    assert batch.stage("cpu") is batch
    assert batch.to("cpu") is batch
    here = staged.to("cpu")
    assert here.grid is None
    assert here.parcel is None
    assert torch.equal(here.input_ids, batch.input_ids)


def test_a_changed_batch_forgets_its_layout() -> None:
    batch = example([2, 5, 5])
    moved = batch.to("meta")
    assert batch.without_special().grid is None
    assert moved.memo is moved.memo
    assert "layout" not in batch.without_special().memo
