"""What the host reads of a batch while it decides what to compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class HostValues:
    """Tensors by name as arrays, each read when it is first asked for, and kept.

    Nothing here is an operator of torch: a trace (`torch.export`) would record it, and would not know its result.
    Whoever traces reads the values before.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._arrays: dict[str, np.ndarray] = {}
        self.read: set[str] = set()
        """What was read with `[]`: on it depends what is computed."""

    def __getitem__(self, name: str) -> np.ndarray:
        """A view of a tensor on the host. Of one on a device a copy, which is waited for."""
        self.read.add(name)
        return self.inspect(name)

    def inspect(self, name: str) -> np.ndarray:
        """The same, for a check that changes nothing of what is computed."""
        if name not in self._arrays:
            self._arrays[name] = self._tensors[name].cpu().numpy()
        return self._arrays[name]

    def read_all(self) -> None:
        """Read every tensor."""
        for name in self._tensors:
            self[name]
