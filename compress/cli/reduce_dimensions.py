"""Reduce the dimensions of an embedding model's vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compress.cli._flags import model_command, run_table
from compress.stages.reduce_dimensions.flags import TABLE

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@model_command(TABLE)
def command(options: RunOptions, model: str | None, given: dict[str, Any]) -> None:
    """Give the embedding model MODEL vectors of fewer dimensions, or dimensions that can be cut.

    \b
      compress reduce-dimensions EMBEDDER --data TEXTS --dimensions 128 --no-recover
      compress reduce-dimensions EMBEDDER --data TEXTS

    MODEL is a sentence-transformers folder, TEXTS are texts without labels of the kind that you will embed. PCA
    projects the vectors to their principal directions; without training (--no-recover) it is one more Dense module.
    Training then distils the similarities of MODEL into the vectors and into their first half, quarter and eighth
    (Matryoshka), so that programs can cut them: SentenceTransformer(folder, truncate_dim=128).

    What cut, int8 and binary vectors cost and lose: compress evaluate FOLDER --data DATA --vectors int8,binary.
    """
    run_table(TABLE, model, given, options)
