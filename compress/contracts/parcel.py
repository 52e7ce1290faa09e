"""Tensors that travel to a device in one buffer, by one copy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

ALIGNMENT = 16
"""Bytes; where each tensor begins in the buffer."""


Groups = Mapping[str, Mapping[str, "Tensor"]]


class Parcel:
    """Groups of CPU tensors, end to end in one buffer. pinned: in memory that a GPU reads while the host goes on."""

    def __init__(self, groups: Groups, *, pinned: bool) -> None:
        import torch

        self._places: dict[str, dict[str, tuple[slice, torch.dtype, torch.Size]]] = {name: {} for name in groups}
        end = 0
        for group, tensors in groups.items():
            for name, x in tensors.items():
                size = x.numel() * x.element_size()
                self._places[group][name] = (slice(end, end + size), x.dtype, x.shape)
                end += math.ceil(size / ALIGNMENT) * ALIGNMENT
        self._buffer = torch.empty(end, dtype=torch.uint8, pin_memory=pinned)
        content = self._buffer.numpy()  # by arrays: the tensors are small, and torch takes longer for each
        for group, places in self._places.items():
            for name, (place, _, _) in places.items():
                numbers = _as_array(groups[group][name])
                content[place].view(numbers.dtype)[:] = numbers.reshape(-1)

    @property
    def places(self) -> tuple[Any, ...]:
        """Equal for parcels that hold tensors of the same names, kinds and shapes in the same places."""
        return tuple(
            (group, name, place.start, dtype, tuple(shape))
            for group, found in self._places.items()
            for name, (place, dtype, shape) in found.items()
        )

    def to(self, device: torch.device | str) -> dict[str, Any]:
        """The groups there, as views of one buffer."""
        return self.load(device)[1]

    def load(self, device: torch.device | str) -> tuple[Tensor, dict[str, Any]]:
        """The buffer on the device, and the groups in it."""
        buffer = self._buffer.to(device, non_blocking=True)
        return buffer, self._view(buffer)

    def refill(self, buffer: Tensor) -> None:
        """Copy into what `load` of a parcel with the same `places` gave."""
        buffer.copy_(self._buffer, non_blocking=True)

    def _view(self, buffer: Tensor) -> dict[str, Any]:
        def view(place: slice, dtype: torch.dtype, shape: torch.Size) -> Tensor:
            return buffer[place].view(dtype).view(shape)

        return {group: {name: view(*x) for name, x in places.items()} for group, places in self._places.items()}


def _as_array(x: Tensor) -> np.ndarray:
    import torch

    known = x.view(torch.int16) if x.dtype == torch.bfloat16 else x  # which numpy does not have
    return known.detach().numpy()
