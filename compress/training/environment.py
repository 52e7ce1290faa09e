"""On what a run computes: bits repeat only where all of this is the same."""

from __future__ import annotations

import torch


def describe(device: torch.device, precision: str) -> dict[str, str]:
    """torch, device, threads, isa, precision: what the rounding of a sum depends on."""
    here = {
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "precision": precision,
        "threads": str(torch.get_num_threads()),
        "isa": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        here["cuda"] = str(torch.version.cuda)
    if torch.are_deterministic_algorithms_enabled():
        here["deterministic"] = "yes"
    return here
