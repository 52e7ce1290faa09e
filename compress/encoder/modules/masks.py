"""Which weights of a model's 2:4 matrices are kept, and that the others are zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.layer_shape import KEPT, OF, PATTERN
from compress.encoder.config.sparsity import SPARSITY
from compress.encoder.modules.model import Model
from compress.encoder.reshape.students import part_of_layer
from compress.errors import ExitCode, UserError


def mask_largest(scores: Tensor) -> Tensor:
    """(out, in) scores → bool mask of the two largest of every four neighbours in a row; of equals the first."""
    fours = scores.unflatten(-1, (-1, OF))
    order = fours.argsort(dim=-1, descending=True, stable=True)
    return torch.zeros_like(fours, dtype=torch.bool).scatter_(-1, order[..., :KEPT], True).flatten(-2)


def mask_of(weight: Tensor) -> Tensor:
    """(out, in) bool: the two of every four that are kept. A four with fewer numbers that are not zero is filled up."""
    return mask_largest(weight.detach().abs())


def is_semi_structured(weight: Tensor) -> bool:
    """Whether at most two of every four weights (out, in) are not zero."""
    return weight.shape[-1] % OF == 0 and int((weight.unflatten(-1, (-1, OF)) != 0).sum(-1).max()) <= KEPT


def sparse_parts(model: Model) -> dict[str, nn.Linear]:
    """`layer 0 attention.query` → the linear layer of every matrix that the config calls sparse, each once."""
    found: dict[str, Any] = {
        f"layer {layer} {name}": part_of_layer(model, layer, name.split("."))
        for layer, name in list_sparse(model.config)
    }
    return found


def list_sparse(config: EncoderConfig) -> list[tuple[int, str]]:
    """(layer, `attention.query`) of every matrix that a config calls sparse, each once."""
    groups = config.groups
    return [
        (layer, name)
        for layer, shape in enumerate(config.layers)
        if groups.index(groups[layer]) == layer
        for name in shape.sparse
    ]


def masks(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """(weight, mask (out, in) of its dtype and device) of every 2:4 matrix of every model in `module`."""
    models = [part for part in module.modules() if isinstance(part, Model)]
    parts = dict.fromkeys(part for model in models for part in sparse_parts(model).values())
    return [(part.weight, mask_of(part.weight).to(part.weight.dtype)) for part in parts]


def require_pattern(model: Model, where: str) -> None:
    """Raise UserError, naming the matrix, where a model that is called 2:4 sparse has more than two in four."""
    for name, part in sparse_parts(model).items():
        if not is_semi_structured(part.weight.detach()):
            raise UserError(
                f"{name} is not {PATTERN} sparse, but the model's config says so",
                where=where,
                why=f"some groups of four neighbouring weights have more than {KEPT} nonzero weights",
                do=f"sparsify it again (compress sparsify), or remove '{SPARSITY}' from compress_config.json",
                code=ExitCode.DATA,
            )
