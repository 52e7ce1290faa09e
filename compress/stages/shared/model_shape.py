"""What is known of a model before it exists: `plan_shape` of a stage makes one of the one before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compress.encoder.config.encoder import EncoderConfig
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder


@dataclass(frozen=True)
class ModelShape:
    """What is known of a model before it exists. depth: layers, at most so many where not `depth_known`.  vocabulary:
    equal for equal tokenizers, None while it is unknown.  masked_lm: whether it can tell hidden pieces.  config: its
    whole shape, None while it is unknown.  embeds: whether its task is the vector of a text."""

    depth: int
    positions: int
    vocabulary: str | None = None
    masked_lm: bool = True
    config: EncoderConfig | None = None
    embeds: bool = False
    depth_known: bool = True


def make_no_vectors_error(kind: str) -> UserError:
    """Of a stage of this kind whose model has another task than embeddings."""
    return UserError(
        f"{kind.replace('_', '-')} needs a model for sentence embeddings", where="MODEL",
        why="this one answers a task", do="give a sentence-transformers folder",
    )  # fmt: skip


def make_vector_objective_error(objective: str, *, ranks: bool) -> UserError:
    """Of an objective on sentence embeddings whose model has another task. ranks: that of a reranker."""
    what, own, recipe = "answers a task", "soft_targets and hard_labels", "distilbert-task"
    if ranks:
        what, own, recipe = "is a reranker", "margin_mse and listwise_kl", "rerank-distil"
    return UserError(
        f"objective {objective} compares sentence embeddings, and the model {what}", where="objectives",
        do=f"give a sentence-transformers folder, or use {own}, as in recipe {recipe}",
    )  # fmt: skip


def read_shape(folder: Path) -> ModelShape:
    """The outline of a model that is there."""
    info = modelfolder.inspect(folder)
    digest = modelfolder.vocabulary_digest(folder)
    embeds = "embedding" in {head.kind for head in info.heads.values()}
    return ModelShape(info.config.depth, info.config.max_positions, digest, "mlm" in info.heads, info.config, embeds)
