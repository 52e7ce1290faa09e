"""Encoders that an operation does not support: each check raises UserError that says why. Imports no torch."""

from __future__ import annotations

from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.layer_shape import PATTERN
from compress.encoder.config.low_rank import is_low_rank
from compress.encoder.config.sparsity import is_sparse
from compress.errors import UserError


def refuse_static(config: EncoderConfig, doing: str, where: str) -> None:
    """Raise UserError for a static model, by an operation on layers."""
    if config.is_static:
        raise UserError(
            f"{doing} needs layers, and a static model has none", where=where, do="start from a model with layers"
        )


def refuse_low_rank(config: EncoderConfig, doing: str, where: str, do: str = "") -> None:
    """Raise UserError for a model whose matrices are products, by an operation that reads whole ones."""
    if is_low_rank(config):
        raise UserError(
            f"the model has low-rank factors already, and {doing} needs full matrices",
            where=where,
            do=do or "start from its parent model, and factorize last",
        )


def refuse_sparse(config: EncoderConfig, doing: str, where: str, do: str = "") -> None:
    """Raise UserError for a model with 2:4 matrices, by an operation after which they would be no longer."""
    if is_sparse(config):
        raise UserError(
            f"the model's matrices are {PATTERN} sparse, and {doing} would break the pattern",
            where=where,
            do=do or "start from its parent model, and sparsify last",
        )


def refuse_quantized(config: EncoderConfig, doing: str, where: str) -> None:
    """Raise UserError for a quantized model, whose layers can be trained on but not taken apart."""
    if config.quantization is not None:
        raise UserError(
            f"the model is quantized already, and {doing} needs float weights",
            where=where,
            do="start from its float parent model, and quantize last",
        )


def refuse_apart(config: EncoderConfig, where: str, why: str, verb: str) -> None:
    """Raise UserError for layers that share matrices apart from each other, which an operation on matrices cannot take.
    verb: what the command of that operation does."""
    if config.sharing is not None:
        raise UserError(
            "this model's layers share matrices and also have their own parameters",
            where=where,
            why=why,
            do=f"{verb} the model before sharing its layers, or share whole layers (--share-norms-and-biases)",
        )


def refuse_global_projections(config: EncoderConfig, doing: str, where: str) -> None:
    """Raise UserError for a model whose global tokens have matrices of their own, which `doing` does not know."""
    if config.global_projections:
        raise UserError(
            "this model's global tokens have projections of their own, as in Longformer",
            where=where,
            why=f"{doing} is not supported for them",
        )


def refuse_dropped_tokens(config: EncoderConfig, doing: str, where: str) -> None:
    """Raise UserError for a model that drops tokens between its layers, by an operation on these layers."""
    if config.kept_tokens is not None:
        raise UserError(
            f"the model drops tokens between its layers, and {doing} would change which",
            where=where,
            do="start from its parent model, and drop tokens last",
        )
