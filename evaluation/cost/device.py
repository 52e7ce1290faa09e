"""What a speed was measured on. A latency without these lines must not be compared with another."""

from __future__ import annotations

import torch

from evaluation.cost.cpu import cpu_flags, cpu_name


def describe(device: str = "cpu") -> dict[str, str]:
    """Device, threads and torch, as written beside every speed."""
    if device.startswith("cuda"):
        name = torch.cuda.get_device_name(device)
    else:
        name = cpu_name()
    return {
        "device": name,
        "device_kind": device.split(":")[0],
        "threads": str(torch.get_num_threads()),
        "cpu_flags": " ".join(cpu_flags()),
        "torch": torch.__version__,
        "isa": torch.backends.cpu.get_cpu_capability(),
    }
