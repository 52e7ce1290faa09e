"""What an encoder looks like: a frozen description from which it is built, counted and saved.

Shapes are given per layer, so that a pruned model is an ordinary one. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from compress.encoder.config import checks
from compress.encoder.config.heads import HEAD_NAMES, Activation, HeadConfig, HeadKind, HeadStyle, Problem
from compress.encoder.config.layer_shape import LayerShape, check_ranks, check_sparse
from compress.encoder.config.quantization import Quantization
from compress.encoder.config.relative import KINDS, Disentangled, RelativeBias, check_relative, read_relative
from compress.encoder.config.sharing import Sharing, check_sharing
from compress.encoder.config.token_dropping import check_kept_tokens, find_obstacle
from compress.encoder.config.wiring import check_first_norm, check_global_projections, check_groups, check_rotary
from compress.encoder.modules.pattern import AttentionPattern, check_windows
from compress.errors import UserError

Norm = Literal["post", "pre", "none"]
Positions = Literal["learned", "sinusoidal", "sinusoidal_start", "rotary", "none"]

MAX_PARAMETERS = 12_000_000_000
MAX_LAYERS = 512


FLAGS = (
    "pooler", "project_first", "first_norm", "bias", "linear_bias", "gated", "gate_bias", "global_projections",
)  # fmt: skip
NEWER = {"linear_bias": True, "gate_bias": True, "global_projections": False, "kept_tokens": None}
"""Fields that configs of older versions lack → what these mean by that."""


@dataclass(frozen=True)
class EncoderConfig:
    """A BERT-family encoder (1810.04805), with the shapes that compression gives it.

    vocabulary, hidden: sizes V and D.  layers: the shape of each layer, first to last.
    embedding: width E of the embedding tables where it is not `hidden`: a projection follows (ALBERT, 1909.11942).
    project_first: the projection comes before the embeddings' norm and dropout, as in a BERT whose tables were
        factorized, and not after them, as in ALBERT.
    layer_groups: for each layer, which group of parameters it uses, numbered 0.. in order of appearance; layers of one
        group are one module, stored once.  None: every layer has its own.
    sharing: layers that share matrices and keep something of their own; in place of layer_groups.
    norm: "post" as in BERT, or "pre" (2002.04745), which ends with one more norm; "none" of a static model: the vector
        of a token is its row of the word table, with no layers, norms, positions and segments.
    first_norm: of pre: false where the first layer's attention reads the embeddings as they are, since they were
        normalised just before (ModernBERT, 2412.13663).
    bias: whether linear layers and norms have one; last matrices of heads do in any case.
    linear_bias: of a config with bias: false where the matrices of the layers have none, though norms, the embeddings'
        projection and heads do (NomicBERT, 2402.01613).
    gated: the feed-forward part's activation is multiplied by a second product of its input (GeGLU, 2002.05202).
    gate_bias: of gated: false where these two products have no bias, though the other matrices do (GTE, 2407.19669).
    positions: "learned"; "sinusoidal" (fixed, 1706.03762); "sinusoidal_start" (learned, starting from sinusoids);
        "rotary" (2104.09864): queries and keys are turned by an angle that grows with the position; "none": only what
        `disentangled` says of distances.
    rotary_bases: of rotary, for each layer: the base θ of its angles, position · θ^(-2i/K).
    relative_bias: numbers that are added to attention scores by the distance between two tokens, beside `positions`.
    disentangled: attention scores of content and distance, beside `positions` or with "none".
    max_positions: longest sequence.  position_offset: first row of the position table in use (2 in RoBERTa).
    segments: number of segment kinds, 0 for none.  pooler: tanh layer on the first token.
    windows: for each layer, how many tokens on either side a token sees (local attention, 2004.05150), None for all;
        None as a whole: every layer sees everything.  ModernBERT's local_attention 128 is a window of 64.
    global_tokens: the first n tokens of each sequence, such as [CLS], see all others and are seen by all.
    global_projections: whether a global token's own attention has queries, keys and values of its own (Longformer,
        2004.05150 §3.1); with 0 global tokens they are kept, and not used.
    dropout, attention_dropout: probabilities.  pad_id: row of the word table that starts at zero.
    quantization: the matrices and tables that are rounded to integers wherever they are used; None: all are floats.
    kept_tokens: for each layer, the percentage of a text's tokens that go on after its attention, those that receive
        most of it and the first one (PoWER-BERT, 2001.08950), where the task head answers; None: all of them.
    """

    vocabulary: int
    hidden: int
    layers: tuple[LayerShape, ...]
    embedding: int | None = None
    project_first: bool = False
    layer_groups: tuple[int, ...] | None = None
    sharing: Sharing | None = None
    norm: Norm = "post"
    first_norm: bool = True
    norm_eps: float = 1e-12
    bias: bool = True
    linear_bias: bool = True
    gated: bool = False
    gate_bias: bool = True
    activation: Activation = "gelu"
    positions: Positions = "learned"
    rotary_bases: tuple[float, ...] | None = None
    max_positions: int = 512
    position_offset: int = 0
    segments: int = 2
    pooler: bool = True
    windows: tuple[int | None, ...] | None = None
    global_tokens: int = 0
    global_projections: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.1
    pad_id: int = 0
    initializer_range: float = 0.02
    quantization: Quantization | None = None
    relative_bias: RelativeBias | None = None
    disentangled: Disentangled | None = None
    kept_tokens: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        # One spelling for one encoder, so that equal encoders have equal configs and `dataclasses.replace` is safe.
        if self.embedding == self.hidden:
            object.__setattr__(self, "embedding", None)
        if self.embedding is None:
            object.__setattr__(self, "project_first", False)
        if not self.bias:
            object.__setattr__(self, "linear_bias", True)
        if not self.gated or not self.layer_bias:
            object.__setattr__(self, "gate_bias", True)
        if self.layer_groups is not None:
            groups = tuple(self.layer_groups)
            object.__setattr__(self, "layer_groups", None if groups == tuple(range(self.depth)) else groups)
        if self.windows is not None:
            windows = tuple(self.windows)
            object.__setattr__(self, "windows", None if all(window is None for window in windows) else windows)
        if self.rotary_bases is not None and checks.is_list(self.rotary_bases):
            object.__setattr__(self, "rotary_bases", tuple(self.rotary_bases))
        _check_sizes(self)
        _check_choices(self)
        if self.sharing is not None:
            if self.layer_groups is not None:
                where = "encoder.sharing"
                raise UserError(
                    "sharing and layer_groups cannot be used together", where=where, do="remove one of them"
                )
            check_sharing(self.sharing, self.layers, self.hidden, first_norm=self.first_norm)
        if self.sharing is not None and not self.sharing.shares:
            object.__setattr__(self, "sharing", None)
        elif self.sharing is not None and self.sharing.whole_layers:
            object.__setattr__(self, "layer_groups", self.sharing.attention)
            object.__setattr__(self, "sharing", None)
        check_first_norm(self.norm, self.groups, first_norm=self.first_norm)
        check_rotary(self.rotary_bases, self.positions, self.layers)
        relative = {name: getattr(self, name) for name in KINDS}
        if not self.is_static:
            check_relative(relative, self.positions, windowed=self.windows is not None)
        if self.relative_bias is not None:
            heads = [shape.heads for shape in self.layers]
            object.__setattr__(self, "relative_bias", self.relative_bias.split(heads))
        if self.layer_groups is not None:
            check_groups(self.layer_groups, self.layers)
        check_windows(self.windows, self.global_tokens, self.depth, self.max_positions)
        kept = check_kept_tokens(self.kept_tokens, self.depth, self.dropping_obstacle)
        object.__setattr__(self, "kept_tokens", kept)
        if self.global_projections:
            check_global_projections(self.windows, self.global_tokens, self.positions, shared=self.sharing is not None)
        total = self.count_parameters()
        if total > MAX_PARAMETERS:
            raise UserError(
                f"the encoder is too large: {total:,} parameters",
                where="encoder",
                why=f"at most {MAX_PARAMETERS:,} are allowed",
                do="check vocabulary, hidden and layers",
            )

    @classmethod
    def uniform(
        cls, *, vocabulary: int, hidden: int, layers: int, heads: int, feed_forward: int, **other: Any
    ) -> EncoderConfig:
        """An encoder whose layers are all alike, head width = hidden / heads.

        Raises UserError when hidden is not divisible by heads.
        """
        for name, value in (("hidden", hidden), ("heads", heads)):
            checks.positive(name, value)
        checks.positive("layers", layers, most=MAX_LAYERS)
        if hidden % heads:
            near = sorted({max(heads, hidden // heads * heads), (hidden // heads + 1) * heads})
            raise UserError(
                f"hidden {hidden} is not divisible by heads {heads}",
                where="encoder.hidden",
                do=f"use hidden {' or '.join(map(str, near))}, or another number of heads",
            )
        shape = LayerShape(heads, hidden // heads, feed_forward)
        return cls(vocabulary=vocabulary, hidden=hidden, layers=(shape,) * layers, **other)

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def is_static(self) -> bool:
        """Whether a token's vector does not depend on the tokens around it: there is no attention."""
        return self.norm == "none"

    @property
    def width(self) -> int:
        """Width E of the embedding tables."""
        return self.hidden if self.embedding is None else self.embedding

    @property
    def layer_bias(self) -> bool:
        """Whether the matrices of the layers have a bias."""
        return self.bias and self.linear_bias

    @property
    def up_bias(self) -> bool:
        """Whether the first matrix of the feed-forward parts has a bias."""
        return self.layer_bias and self.gate_bias

    @property
    def layer_traits(self) -> dict[str, bool]:
        """What decides how many numbers a layer of some shape has (`LayerShape.count_parameters`)."""
        return {"norm_bias": self.bias, "bias": self.layer_bias, "up_bias": self.up_bias, "gated": self.gated}

    @property
    def dropping_obstacle(self) -> str | None:
        """Why no tokens can be dropped between its layers; None: they can."""
        if self.is_static:
            return "it has no layers"
        return find_obstacle(self.positions, self.windows, (self.relative_bias, self.disentangled))

    @property
    def groups(self) -> tuple[int, ...]:
        """The group of parameters that each layer uses."""
        return tuple(range(self.depth)) if self.layer_groups is None else self.layer_groups

    @property
    def patterns(self) -> tuple[AttentionPattern, ...]:
        """What the tokens of each layer see."""
        windows = self.windows or (None,) * self.depth
        return tuple(AttentionPattern(w, 0 if w is None else self.global_tokens) for w in windows)

    @property
    def group_shapes(self) -> tuple[LayerShape, ...]:
        """The shape of each group of parameters."""
        return tuple(self.layers[self.groups.index(g)] for g in range(max(self.groups, default=-1) + 1))

    @property
    def position_rows(self) -> int:
        return self.max_positions + self.position_offset

    def count_embeddings(self) -> int:
        """Parameters of the word, position and segment tables (fixed sinusoids are none)."""
        rows = self.vocabulary + self.segments
        if self.positions not in ("sinusoidal", "rotary", "none"):
            rows += self.position_rows
        return rows * self.width

    def count_parameters(self) -> int:
        """Parameters of the encoder with its pooler, without heads; a shared group counts once."""
        norm = 2 if self.bias else 1  # numbers for each dimension
        total = self.count_embeddings()
        if not self.is_static:
            total += norm * (self.hidden if self.project_first else self.width)
        if self.width != self.hidden:
            total += self.width * self.hidden + (self.hidden if self.bias else 0)
        total += self._count_layers() + self._count_relative()
        if self.norm == "pre":
            total += norm * self.hidden * (1 if self.first_norm else 0)  # the last norm, less the first layer's
        if self.pooler:
            total += self.hidden * self.hidden + self.hidden
        return total

    def _count_layers(self) -> int:
        """Parameters of all layers, a shared tensor once."""
        if self.sharing is not None:
            return self.sharing.count_parameters(self.layers, self.hidden, **self.layer_traits)
        total = sum(shape.count_parameters(self.hidden, **self.layer_traits) for shape in self.group_shapes)
        if self.global_projections:
            columns = self.hidden + (1 if self.layer_bias else 0)
            total += sum(3 * shape.attention_width * columns for shape in self.group_shapes)
        return total

    def _count_relative(self) -> int:
        """Parameters of the tables of relative positions; a table that layers share counts once."""
        if self.disentangled is not None:
            return self.disentangled.count_parameters(self.hidden, bias=self.bias)
        if self.relative_bias is None:
            return 0
        shapes = self.layers if self.sharing is not None else self.group_shapes
        return self.relative_bias.count_parameters([shape.heads for shape in shapes])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same config back."""
        values = dataclasses.asdict(dataclasses.replace(self, quantization=None))
        for shape in values["layers"]:
            for name in ("ranks", "sparse"):
                if not shape[name]:
                    del shape[name]  # as before there were any
        for name in KINDS:
            if values[name] is None:
                del values[name]  # as before there were any
        for name, default in NEWER.items():
            if values[name] == default:
                del values[name]  # likewise
        quantization = None if self.quantization is None else self.quantization.to_dict()
        return {**values, "quantization": quantization}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EncoderConfig:
        """The inverse of `to_dict`. Raises UserError on unknown or missing keys and on illegal values."""
        checks.check_keys(cls, values, "encoder")
        rows = values["layers"]
        if not checks.is_list(rows) or not all(isinstance(row, Mapping) for row in rows):
            raise UserError("layers must be a list of layer shapes", where="encoder.layers")
        for index, row in enumerate(rows):
            checks.check_keys(LayerShape, row, f"encoder.layers.{index}")
        groups = values.get("layer_groups")
        if groups is not None and not checks.is_list(groups):
            raise UserError("layer_groups must be a list of integers", where="encoder.layer_groups")
        windows = values.get("windows")
        if windows is not None and not checks.is_list(windows):
            raise UserError("windows must be a list of integers and nulls", where="encoder.windows")
        sharing = values.get("sharing")
        if sharing is not None:
            if not isinstance(sharing, Mapping):
                raise UserError("sharing must be an object", where="encoder.sharing")
            checks.check_keys(Sharing, sharing, "encoder.sharing")
            sharing = Sharing(**sharing)
        quantization = values.get("quantization")
        if quantization is not None:
            quantization = Quantization.from_dict(quantization)
        layers = tuple(LayerShape(**row) for row in rows)
        return cls(**{**read_relative(values), "sharing": sharing, "quantization": quantization, "layers": layers})


# --- checks of the whole: each raises UserError, naming the key, what was found and what is allowed --------------


def _check_sizes(config: EncoderConfig) -> None:
    for name in ("vocabulary", "hidden"):
        checks.positive(name, getattr(config, name))
    checks.positive("max_positions", config.max_positions, most=checks.MAX_POSITIONS)
    if config.embedding is not None:
        checks.positive("embedding", config.embedding)
    for name in ("segments", "pad_id"):
        checks.integer(name, getattr(config, name), least=0)
    checks.integer("position_offset", config.position_offset, least=0, most=config.vocabulary)  # the padding id plus 1
    if config.pad_id >= config.vocabulary:
        raise UserError(
            f"pad_id {config.pad_id} is outside the vocabulary",
            where="encoder.pad_id",
            why=f"allowed: 0..{config.vocabulary - 1}",
        )
    if config.is_static:
        _check_static(config)
    elif not config.layers:
        raise UserError("an encoder needs at least one layer", where="encoder.layers")
    if config.depth > MAX_LAYERS:
        raise UserError(f"{config.depth} layers", where="encoder.layers", why=f"at most {MAX_LAYERS} are allowed")
    for index, shape in enumerate(config.layers):
        if not isinstance(shape, LayerShape):
            raise UserError(f"not a layer shape: {shape!r}", where=f"encoder.layers.{index}")
        where, shared = f"encoder.layers.{index}", config.sharing is not None
        for name in ("heads", "head_width", "feed_forward"):
            checks.positive(name, getattr(shape, name), where=where)
        for check in (check_ranks, check_sparse):
            check(shape, config.hidden, where, gated=config.gated, shared=shared)


def _check_static(config: EncoderConfig) -> None:
    """A static model is its word table."""
    other = {
        "layers": config.layers, "embedding": config.embedding, "segments": config.segments, "pooler": config.pooler,
        "positions": "" if config.positions == "none" else config.positions,
    }  # fmt: skip
    for name, value in other.items():
        if value:
            raise UserError(f"a static model has no {name}, found {value!r}", where=f"encoder.{name}")


def _check_choices(config: EncoderConfig) -> None:
    checks.choice("norm", config.norm, get_args(Norm))
    checks.choice("activation", config.activation, get_args(Activation))
    checks.choice("positions", config.positions, get_args(Positions))
    for name in ("dropout", "attention_dropout"):
        checks.probability(name, getattr(config, name))
    checks.epsilon("norm_eps", config.norm_eps)
    checks.epsilon("initializer_range", config.initializer_range)
    for name in FLAGS:
        checks.flag(name, getattr(config, name))


__all__ = [
    "HEAD_NAMES",
    "MAX_LAYERS",
    "MAX_PARAMETERS",
    "Activation",
    "EncoderConfig",
    "HeadConfig",
    "HeadKind",
    "HeadStyle",
    "LayerShape",
    "Norm",
    "Positions",
    "Problem",
]
