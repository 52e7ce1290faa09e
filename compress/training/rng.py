"""The random number generators that a training step may draw from, as tensors of bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from torch import Tensor


def seed(value: int) -> None:
    """Set every generator from one seed."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)  # every GPU too


def capture(device: torch.device) -> dict[str, Tensor]:
    """Generator name → (n,) uint8. Covers python, numpy, torch on the host, and on the device when it is a GPU."""
    _, keys, position, has_gauss, gauss = cast(tuple[str, np.ndarray, int, int, float], np.random.get_state())
    words = {
        "python": json.dumps(random.getstate()),
        "numpy": json.dumps([keys.tolist(), position, has_gauss, gauss]),
    }
    state = {name: _bytes(text) for name, text in words.items()}
    state["torch"] = torch.get_rng_state()
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Put every captured generator back where it was; one that this device lacks is passed over."""
    version, words, gauss_next = json.loads(_text(state["python"]))
    random.setstate((version, tuple(words), gauss_next))
    keys, position, has_gauss, gauss = json.loads(_text(state["numpy"]))
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"].cpu())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


@contextmanager
def preserve_generators(device: torch.device) -> Iterator[None]:
    """What runs inside may draw as it likes: afterwards every generator is as before."""
    before = capture(device)
    try:
        yield
    finally:
        restore(before, device)


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def _text(data: Tensor) -> str:
    return data.cpu().numpy().tobytes().decode()
