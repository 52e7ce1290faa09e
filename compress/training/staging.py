"""Copies of the state on the host, which a thread writes while training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Groups = Mapping[str, Mapping[str, Tensor]]


class HostCopy:
    """Tensors that are on their way to the host from `device`. event: of CUDA, when all have arrived; None: they are
    there."""

    def __init__(self, tensors: Groups, device: torch.device, event: Any = None) -> None:
        self._tensors, self._device, self._event = tensors, device, event

    def wait(self) -> Groups:
        """The copies, complete."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensors

    def hold_back_changes(self) -> None:
        """What is launched from now on runs when the copies have arrived; the host does not wait."""
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)


class Staging:
    """Copies tensors of `device` into memory of its own, which the next call fills anew. On a GPU the memory is pinned:
    the host does not wait for the copies, and the driver takes long to make such memory."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._pinned = device, device.type == "cuda"
        self._buffers: dict[tuple[str, str], Tensor] = {}
        self._stream: Any = None

    def copy(self, now: Groups, late: Groups) -> HostCopy:
        """Begin to copy `now` and `late`, whose groups are united.

        now: what the next forward pass may change.  late: what only an optimizer step changes: on a GPU it travels on a
        stream of its own, beside the next forward and backward pass; call `hold_back_changes` before the step.
        """
        found = {name: self._copy(name, tensors) for name, tensors in now.items()}
        if self._device.type != "cuda":
            later = {name: self._copy(name, tensors) for name, tensors in late.items()}
            return HostCopy(_unite(found, later), self._device)
        self._stream = self._stream or torch.cuda.Stream(self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            later = {name: self._copy(name, tensors) for name, tensors in late.items()}
        return HostCopy(_unite(found, later), self._device, self._stream.record_event())

    def _copy(self, group: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._find_buffer(group, name, x).copy_(x, non_blocking=True) for name, x in tensors.items()}

    def _find_buffer(self, group: str, name: str, like: Tensor) -> Tensor:
        found = self._buffers.get((group, name))
        if found is None or found.shape != like.shape or found.dtype != like.dtype:
            found = self._buffers[group, name] = self._allocate(like)
        return found

    def _allocate(self, like: Tensor) -> Tensor:
        """Of a host that has too little memory to pin, ordinary memory: the copies are waited for."""
        if self._pinned:
            try:
                return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
            except RuntimeError:
                self._pinned = False
        return torch.empty(like.shape, dtype=like.dtype)


def _unite(first: Groups, second: Groups) -> Groups:
    names = dict.fromkeys((*first, *second))
    return {name: {**first.get(name, {}), **second.get(name, {})} for name in names}
