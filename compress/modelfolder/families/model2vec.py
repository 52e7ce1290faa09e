"""A static model: one vector for each token, and a text is the mean of its tokens' vectors.

The folder is one of model2vec (`StaticModel`), and with modules.json one of sentence-transformers (`StaticEmbedding`).
Both read no special tokens, and neither cuts a text where `max_length` is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.errors import UserError
from compress.modelfolder import family
from compress.modelfolder.family import Description, Shapes
from compress.modelfolder.fields import MAX_POSITIONS, Fields

TABLE = "embeddings"
_OTHER = "embedding.weight"  # as sentence-transformers calls it
_CLUSTERS = ("mapping", "weights")


class Family(family.Family):
    model_type = "model2vec"

    @property
    def architectures(self) -> Mapping[str, frozenset[str]]:
        """The class of model2vec."""
        return {"StaticModel": frozenset()}

    def canonical(self, name: str) -> str:
        return TABLE if name == _OTHER else name

    def describe(self, fields: Fields, shapes: Shapes) -> Description:
        if any(name in shapes for name in _CLUSTERS):
            raise UserError("a vocabulary in clusters is not supported", where=fields.where,
                            do="save the model without vocabulary_quantization")  # fmt: skip
        if len(shape := shapes.get(TABLE, ())) != 2:
            raise UserError(f"no matrix '{TABLE}' in the weights", where=fields.where, do="check model.safetensors")
        vocabulary, hidden = shape
        positions = fields.integer("max_length", most=MAX_POSITIONS, default=MAX_POSITIONS)
        config = make_static_config(vocabulary, hidden, max_positions=positions)
        return Description(config, {}, self.names(config, {}))

    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        if not config.is_static:
            return "it has layers"
        return "it has a head" if heads else None

    def config_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        longest = None if config.max_positions == MAX_POSITIONS else config.max_positions
        return {
            "model_type": self.model_type,
            "architectures": ["StaticModel"],
            "vocab_size": config.vocabulary,
            "hidden_dim": config.hidden,
            "max_length": longest,
        }

    def embedding_values(self, head: HeadConfig) -> dict[str, Any]:
        return {"normalize": head.normalize}

    def names(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, str]:
        return {"encoder.embeddings.word.weight": TABLE}

    def adapt(self, head: HeadConfig, fields: Fields) -> HeadConfig:
        return head


def make_static_config(vocabulary: int, hidden: int, *, max_positions: int = MAX_POSITIONS) -> EncoderConfig:
    """The encoder of a static model: its word table. max_positions: the longest text in tokens."""
    return EncoderConfig(
        vocabulary=vocabulary, hidden=hidden, layers=(), norm="none", positions="none", segments=0, pooler=False,
        max_positions=max_positions, dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
