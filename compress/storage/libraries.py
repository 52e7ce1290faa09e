"""Objects of other libraries that only know how to write themselves into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class SavableModel(Protocol):
    """A model or a tokenizer of transformers."""

    def save_pretrained(self, folder: str, /) -> object: ...


class SavableDataset(Protocol):
    """A `Dataset` or a `DatasetDict` of datasets."""

    def save_to_disk(self, folder: str, /) -> None: ...


def write_pretrained(folder: Path, *objects: SavableModel) -> None:
    """Write each into `folder`, which is there. Give a temporary folder that becomes final as a whole."""
    for one in objects:
        one.save_pretrained(str(folder))


def write_dataset(folder: Path, dataset: SavableDataset) -> None:
    """Write `dataset` into `folder`, which is there. Give a temporary folder that becomes final as a whole."""
    dataset.save_to_disk(str(folder))
