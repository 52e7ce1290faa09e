"""Puts tensors into a model that was built without memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def assign_tensors(model: nn.Module, state: Mapping[str, Tensor], *, partly: bool = False) -> None:
    """Make the tensors of `state` those of `model`, by their names in its state.

    partly: what has no tensor there stays. `load_state_dict(state, assign=True)` does the same at four times the price,
    which is an eighth of the time of opening a small model. Raises ValueError for a tensor of another shape, for one
    that the model lacks and, unless `partly`, for one that `state` lacks.
    """
    left = dict(state)
    missing = []
    held: dict[str, Any]
    for prefix, module in model.named_modules():
        for held in (module._parameters, module._buffers):
            for name, old in held.items():
                if old is None or name in module._non_persistent_buffers_set:
                    continue
                full = f"{prefix}.{name}" if prefix else name
                if (new := left.pop(full, None)) is None:
                    missing.append(full)
                    continue
                if new.shape != old.shape:
                    raise ValueError(f"{full} has shape {tuple(new.shape)}, and the model's has {tuple(old.shape)}")
                held[name] = nn.Parameter(new, requires_grad=old.requires_grad) if held is module._parameters else new
    if left:
        raise ValueError(f"the model has no {', '.join(left)}")
    if missing and not partly:
        raise ValueError(f"there is no tensor for {', '.join(missing)}")
