"""Bytes on disk and parameters in memory, counted, not estimated."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from torch import nn

MB = 1_000_000


@dataclass(frozen=True)
class ParameterCount:
    """Distinct parameters (a shared or tied tensor counts once), with and without the embedding tables."""

    total: int
    embedding: int
    bytes: int

    @property
    def without_embedding(self) -> int:
        return self.total - self.embedding


def count_parameters(module: nn.Module, embedding_names: Collection[str] = ()) -> ParameterCount:
    """Count each distinct tensor once. embedding_names: parameter names that belong to embedding tables.

    Raises KeyError for an embedding name that the module does not have.
    """
    named = dict(module.named_parameters(remove_duplicate=True))
    missing = set(embedding_names) - set(dict(module.named_parameters(remove_duplicate=False)))
    if missing:
        raise KeyError(f"no such parameter: {sorted(missing)}")
    embedding = sum(p.numel() for name, p in named.items() if name in embedding_names)
    return ParameterCount(
        sum(p.numel() for p in named.values()),
        embedding,
        sum(p.numel() * p.element_size() for p in named.values()),
    )


def weights_bytes(path: Path) -> int:
    """Bytes of the weights: of a folder its safetensors files, else its ONNX file with its data; of a file its own.

    Raises FileNotFoundError when there is none.
    """
    if path.is_file():
        return path.stat().st_size
    for patterns in (("*.safetensors",), ("*.onnx", "*.onnx.data")):
        if files := [file for pattern in patterns for file in path.glob(pattern)]:
            return sum(file.stat().st_size for file in files)
    raise FileNotFoundError(f"no weights file in {path}")
