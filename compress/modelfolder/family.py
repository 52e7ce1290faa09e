"""What a model family is: the translation between our encoder and one `model_type` of the ecosystem, both ways.

A family is a file in `families/` with a class `Family`; the file's name is its `model_type`, with _ for -.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from compress import registry
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.low_rank import is_low_rank
from compress.encoder.config.sharing import Sharing
from compress.encoder.config.sparsity import dense
from compress.errors import UserError, printable
from compress.modelfolder.fields import Fields

NATIVE = "compress-encoder"
"""The model_type that older versions gave to what no stock class expresses: our own config and parameter names."""

_SHORT, _ALIKE = 5, 0.85
"""Letters of a name that may be mistyped; `difflib`'s ratio of two names of which one is the other mistyped."""

QUANTIZED = "its matrices are quantized, and a stock class would compute with the float weights behind them"
OLDER = "its config.json was written by an older version of compress; save it again"

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Description:
    """A checkpoint, understood: what to build, and where each tensor lies.

    names: our parameter name → stored name.  copies: stored name → stored name of which it must be an equal copy
    (a tied matrix that was written twice).  ignored: stored buffers that carry nothing.
    fused: stored name → our parameter names of which it is the concatenation along the first dimension.
    split: the opposite, our parameter name → stored names of equal parts whose concatenation it is.
    zeros: our parameter names that are stored nowhere because they are zero.
    first_rows: our name of a table → stored table whose first row is added to each of its rows.
    swapped: our parameter names whose halves are stored in the other order.
    """

    encoder: EncoderConfig
    heads: dict[str, HeadConfig]
    names: dict[str, str]
    copies: dict[str, str] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    fused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    split: dict[str, tuple[str, ...]] = field(default_factory=dict)
    zeros: frozenset[str] = frozenset()
    first_rows: dict[str, str] = field(default_factory=dict)
    swapped: frozenset[str] = frozenset()

    @property
    def stored(self) -> list[str]:
        """The names of all tensors that must be stored."""
        parts = [name for names in self.split.values() for name in names]
        return [*self.names.values(), *self.fused, *parts, *self.first_rows.values()]

    @property
    def parameters(self) -> set[str]:
        """Our names of all tensors of the model."""
        joined = {name for names in self.fused.values() for name in names}
        return {*self.names, *joined, *self.split, *self.zeros}


class Family(ABC):
    """One model_type. `fields` is the checked config.json, `shapes` the stored tensors by canonical name."""

    model_type: str
    alias: bool = False
    """Whether another family is the same encoder under another name, to be preferred where nothing else decides."""
    body: str = ""
    """What its tensors' names begin with in a class with a head."""

    @property
    def architectures(self) -> Mapping[str, frozenset[str]]:
        """Stock class → names of its heads."""
        return {}

    def canonical(self, name: str) -> str:
        """The present-day stock name of a stored tensor (old spellings, missing prefix)."""
        return name

    @abstractmethod
    def describe(self, fields: Fields, shapes: Shapes) -> Description:
        """What the checkpoint holds. Raises UserError for anything the encoder cannot express, by name."""

    @abstractmethod
    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        """Why no stock class of this family computes this model, or None when one does."""

    @abstractmethod
    def config_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        """The config.json of a model without objection, apart from label names."""

    @abstractmethod
    def names(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, str]:
        """Our parameter name → stored name, of every tensor that is stored on its own."""

    @abstractmethod
    def adapt(self, head: HeadConfig, fields: Fields) -> HeadConfig:
        """`head` as the classes of this family with this config have it, so that the result stays a stock folder."""

    def adapt_encoder(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> EncoderConfig:
        """`config` as the class of this family that has these heads runs it."""
        return config

    def embedding_values(self, head: HeadConfig) -> dict[str, Any]:
        """What the config.json of a model with this embedding head says of it; the rest is in files beside it."""
        return {}

    def list_fused_tensors(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, tuple[str, ...]]:
        """Stored name → our parameter names, of every tensor that is stored as the concatenation of several of ours."""
        return {}

    def list_split_tensors(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, tuple[str, ...]]:
        """Our parameter name → stored names, of every tensor of ours that is stored as several equal parts."""
        return {}

    def list_swapped_tensors(self, config: EncoderConfig) -> frozenset[str]:
        """Our parameter names of every tensor that is stored with its halves in the other order."""
        return frozenset()


DROPS_TOKENS = "it drops tokens between its layers"


@cache
def load_families() -> dict[str, Family]:
    """model_type → family, one for each file of `families/`."""
    package = "compress.modelfolder.families"
    found = [registry.create(package, kind) for kind in registry.parts(package)]
    return {family.model_type: family for family in found}


def of_config(values: Mapping[str, Any], where: str, tensors: Callable[[], Iterable[str]]) -> tuple[Family, list[str]]:
    """The family that a config.json asks for, and remarks worth saying. tensors: names of what is stored.

    Checkpoints of 2019 name no model_type: then the class that the config names decides, or how the stored tensors are
    called. Raises UserError, listing the families, when it is none of ours.
    """
    model_type = values.get("model_type")
    if model_type is None and (found := _guessed(values, tensors())) is not None:
        return found, [f"config.json names no model_type: read as {found.model_type}"]
    if not isinstance(model_type, str):
        raise UserError(
            "model_type is missing" if model_type is None else "model_type is not a name",
            where=where,
            why=f"known: {', '.join(load_families())}",
            do='add it, for example "model_type": "bert"',
        )
    family = load_families().get(model_type)
    if family is None:
        near = _intended(model_type, load_families())
        raise UserError(
            f"unknown model_type '{printable(model_type, 60)}'",
            where=where,
            why="known: " + ", ".join(load_families()),
            do=None if near is None else f"did you mean '{near}'?",
        )
    return family, []


def _intended(name: str, known: Iterable[str]) -> str | None:
    """The family whose name was mistyped; None for a name that may be another family's: those often differ little."""

    def plain(text: str) -> str:
        return "".join(c for c in text.casefold() if c.isalnum())

    for one in known:
        letters, others = plain(name), plain(one)
        ratio = difflib.SequenceMatcher(None, letters, others).ratio()
        inside = letters.startswith(others) or letters.endswith(others)
        if letters == others or (len(letters) > _SHORT and ratio > _ALIKE and not inside):
            return one
    return None


def _guessed(values: Mapping[str, Any], tensors: Iterable[str]) -> Family | None:
    """The family that has the config's class, or else the stored tensors' names; of aliases the plain one."""
    classes: Any = values.get("architectures")
    first: Any = classes[0] if isinstance(classes, list) and classes else None
    named, stored = first if isinstance(first, str) else "", list(tensors)
    plain = sorted(load_families().values(), key=lambda family: family.alias)
    for family in plain:
        if named in family.architectures:
            return family
    for family in plain:
        if family.body and has_prefix(stored, family.body):
            return family
    return None


def stock_heads(heads: Mapping[str, HeadConfig]) -> dict[str, HeadConfig]:
    """The heads that a stock class may have. How a text becomes a vector is in files beside it."""
    return {name: head for name, head in heads.items() if head.kind != "embedding"}


def choose(
    config: EncoderConfig, heads: Mapping[str, HeadConfig], preferred: str | None = None
) -> tuple[Family, str | None]:
    """The family to save a model in, and, where no stock class computes it, why that family's does not.

    The preferred family wins where it fits, then any stock family, aliases last. Where none fits it is the family that
    is nearest, whose config.json then tells other programs what they need of an ONNX file. That matrices are quantized
    is no objection: a class computes with the floats behind them.
    """
    heads = stock_heads(heads)
    nearest = load_families()[_nearest(config, preferred)]
    if config.kept_tokens is not None:
        return nearest, DROPS_TOKENS
    stock = [family for name, family in load_families().items() if name != NATIVE]
    for family in sorted(stock, key=lambda one: (one.model_type != preferred, one.alias)):
        if family.objection(config, heads) is None:
            return family, None
    return nearest, nearest.objection(config, heads)


def _nearest(config: EncoderConfig, preferred: str | None) -> str:
    """The stock family whose tokens and positions are read as those of a model that no stock class computes."""
    if config.is_static:
        return "model2vec"
    if config.positions == "rotary":
        return "gte" if not config.gate_bias else "nomic_bert" if config.segments else "modernbert"
    if config.disentangled is not None:
        return "deberta-v2"
    if preferred in load_families() and preferred not in (NATIVE, "gte", "modernbert", "nomic_bert"):
        assert preferred is not None
        has_segments = preferred != "distilbert"
        if has_segments or not config.segments:
            return preferred
    if config.position_offset:
        return "roberta"
    return "bert" if config.segments else "distilbert"


def describe_unsupported(config: EncoderConfig, expresses: Collection[str] = ()) -> str | None:
    """What hinders a stock family: shapes and wiring for which its config has no words.

    expresses: what this family has words for all the same: "groups" (layers that share parameters), "embedding"
    (tables of another width than the hidden size), "offset" (positions that do not start at row 0), "windows" (layers
    whose tokens see a part of their sequence), "pre" (norms before each block), "rotary" (positions), "gated" (feed-
    forward parts), "no_bias", "no_linear_bias" (matrices of layers without one, norms with one), "no_gate_bias"
    (gated feed-forward parts whose first matrix alone has none), "head_width" (heads that do not add up to the hidden
    size), "relative_bias" (a bias of the scores by distance), "disentangled" (attention).
    """
    if config.is_static:
        return "it has no layers"
    shape = config.layers[0]
    if is_low_rank(config):
        return "its layers have low-rank factors"
    if any(dense(other) != dense(shape) for other in config.layers):
        return "its layers differ in shape"
    if "head_width" not in expresses and shape.attention_width != config.hidden:
        return f"its heads ({shape.heads} of width {shape.head_width}) do not add up to the hidden size {config.hidden}"
    if "groups" not in expresses and config.groups != tuple(range(config.depth)):
        return "its layers share parameters"
    if config.sharing is not None:
        return "its layers share matrices but have " + _own(config.sharing)
    if "embedding" not in expresses and config.width != config.hidden:
        return f"its embedding width {config.width} differs from its hidden size {config.hidden}"
    if config.project_first:
        return "its embeddings are normalised after their projection"
    if "pre" not in expresses and config.norm != "post":
        return "it has pre-layer normalization"
    if "rotary" not in expresses and config.positions == "rotary":
        return "its positions are rotary, not a learned table"
    if "relative_bias" not in expresses and config.relative_bias is not None:
        return "it has a relative position bias"
    if "disentangled" not in expresses and config.disentangled is not None:
        return "it has disentangled attention"
    if "gated" not in expresses and config.gated:
        return "its feed-forward layers are gated"
    if "no_bias" not in expresses and not config.bias:
        return "its linear layers and norms have no bias"
    if "no_linear_bias" not in expresses and not config.linear_bias:
        return "the matrices of its layers have no bias"
    if "no_gate_bias" not in expresses and not config.gate_bias:
        return "its gated feed-forward layers have no bias in their first matrix"
    if "offset" not in expresses and config.position_offset:
        return f"its positions start at row {config.position_offset}"
    if "windows" not in expresses and config.windows is not None:
        return "it has sliding-window attention"
    return None


def _own(sharing: Sharing) -> str:
    own = ["separate norms and biases"] if sharing.own_vectors else []
    own += [f"residuals of rank {sharing.residual_rank}"] if sharing.residual_rank else []
    if sharing.attention != sharing.feed_forward:
        return "different groups for attention and feed-forward" + "".join(f", {kind}" for kind in own)
    return " and ".join(own)


def expand_layers(table: Mapping[str, str], depth: int, parts: Sequence[str] = ("weight", "bias")) -> dict[str, str]:
    """`table` with {i} replaced by every layer number, and each module name by its weight and bias."""
    return {
        f"{ours.format(i=i)}.{part}": f"{theirs.format(i=i)}.{part}"
        for i in range(depth)
        for ours, theirs in table.items()
        for part in parts
    }


def expand_weights_and_biases(table: Mapping[str, str]) -> dict[str, str]:
    """`table` of module names as a table of their weights and biases."""
    return expand_layers(table, 1)


def list_decoder_copies(head: str, body: str) -> dict[str, str]:
    """Stored name → stored name of which it is a copy: the last matrix of a masked-LM head is the word table, and both
    spellings of its bias are one. head, body: prefixes of stored names."""
    words = f"{body}embeddings.word_embeddings.weight"
    return {f"{head}decoder.weight": words, f"{head}decoder.bias": f"{head}bias"}


def has_prefix(names: Iterable[str], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in names)
