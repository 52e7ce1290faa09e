"""The vectors that a model folder gives texts, by which passages of a pool are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from compress.contracts import Watch, unwatched
from compress.data.reading.pool import TextVectors
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.sentence_files import identity
from compress.predict.embedder import Embedder


def make_text_vectors(
    folder: Path, device: str = "cpu", watch: Watch = unwatched, stop: Callable[[], None] = lambda: None
) -> TextVectors:
    """Of the model in `folder`, in fp32; the weights are read when the first text is. Raises UserError for a folder
    without a model.

    watch, stop: as of `TextVectors`."""
    loaded: list[Embedder] = []

    def embed(texts: Sequence[str]) -> np.ndarray:
        if not loaded:
            loaded.append(Embedder(folder, device=device))
        return loaded[0](texts)

    mark = f"{identity(folder)} {modelfolder.inspect(folder).meta.max_length}"
    return TextVectors(embed, (mark, device), watch, stop)
