"""Our own description of models that no stock class computes: uneven layers, windows on a BERT, pre-norm with biases.

It holds the encoder's and heads' own description; tensors are stored under our parameter names, a tensor that several
layers share once. Today it lies in a file of its own (`private`); folders of older versions have it as config.json,
with a model_type that no other program knows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.sharing import NORMS, PARTS
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder import family, private
from compress.modelfolder.family import Description, Shapes
from compress.modelfolder.fields import Fields


def list_tied_copies(config: EncoderConfig) -> dict[str, str]:
    """Name that a shared tensor would have in a layer that reads it → its name in the layer that holds it.

    Files of ours never hold the first kind; one that another tool wrote may, and must agree with the second.
    """
    sharing, found = config.sharing, {}
    for layer in range(config.depth if sharing is not None else 0):
        assert sharing is not None
        for part, matrices in PARTS.items():
            owner = sharing.owner(part, layer)
            if owner in (None, layer):
                continue
            names = [f"{part}.{name}.weight" for name in matrices]
            if not sharing.own_vectors:
                names += [f"{part}.{name}.bias" for name in matrices if config.layer_bias]
                names += [f"{NORMS[part]}.{end}" for end in ("weight", "bias")[: 1 + config.bias]]
            found |= {f"encoder.layers.{layer}.{name}": f"encoder.layers.{owner}.{name}" for name in names}
    return found


class Family(family.Family):
    model_type = family.NATIVE

    def describe(self, fields: Fields, shapes: Shapes) -> Description:
        private.require_version(fields)
        encoder: Any = fields.values.get("encoder")
        heads: Any = fields.values.get("heads")
        rows = [encoder, heads, *(heads.values() if isinstance(heads, Mapping) else [])]
        if not all(isinstance(row, Mapping) for row in rows):
            raise UserError("encoder, heads and each head must be objects", where=fields.where)
        config = EncoderConfig.from_dict(encoder)
        built = {name: HeadConfig.from_dict(values) for name, values in heads.items()}
        return Description(config, built, self.names(config, built), list_tied_copies(config))

    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        return None

    def config_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        return {
            "model_type": self.model_type,
            "architectures": ["compress.encoder.modules.model.Model"],
            **private.values_of(config, heads, fits=False),
            "dtype": "float32",
        }

    def adapt(self, head: HeadConfig, fields: Fields) -> HeadConfig:
        """In the style of the family that the encoder comes from, as far as its wiring tells."""
        config = EncoderConfig.from_dict(fields.values["encoder"])
        if config.positions == "rotary":
            return dataclasses.replace(head, style="modernbert")
        if config.position_offset:
            return dataclasses.replace(head, style="roberta")
        return dataclasses.replace(head, style="bert" if config.pooler or config.segments else "distilbert")

    def names(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, str]:
        return {name: name for name in _list_parameters(config, tuple(heads.items()))}


@lru_cache(maxsize=64)  # a run opens the same few folders again and again
def _list_parameters(config: EncoderConfig, heads: tuple[tuple[str, HeadConfig], ...]) -> tuple[str, ...]:
    """Names of the tensors of a model of this shape."""
    with torch.device("meta"):  # shapes without memory
        return tuple(Model(config, dict(heads)).state_dict())
