"""Make a static model, one vector for each token, from an embedding model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compress.cli._flags import model_command, run_table
from compress.stages.make_static.flags import TABLE

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@model_command(TABLE)
def command(options: RunOptions, model: str | None, given: dict[str, Any]) -> None:
    """Make a static model from the embedding model MODEL: one vector for each token, no attention.

    \b
      compress make-static EMBEDDER --data TEXTS --dimensions 128

    MODEL is a sentence-transformers folder, TEXTS are texts without labels of the kind that you will embed. Each token
    is embedded alone, reduced by PCA and weighted by its frequency in TEXTS; training then distils MODEL's similarities
    into the token vectors. The model is measured after both steps.

    \b
      compress make-static EMBEDDER --data TEXTS --dimensions 128 --no-recover

    The folder loads as sentence-transformers' StaticEmbedding (SentenceTransformer(folder)) and in model2vec
    (StaticModel.from_pretrained(folder)). It is hundreds of times faster than MODEL and much less accurate: word order
    is lost. Commands that change layers do not apply to it.
    """
    run_table(TABLE, model, given, options)
