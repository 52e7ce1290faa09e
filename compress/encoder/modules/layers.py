"""The parts of an encoder. Every module works on (.., D): which dimensions lead is the layout's business.

A legend: T or (B, L) leading dimensions, D hidden, E embedding, H heads, K head width, F feed-forward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compress.encoder.config.encoder import Activation, EncoderConfig, LayerShape
from compress.encoder.integers.fake_quantized import Quantized, compute_weight
from compress.encoder.kernels import add_norm
from compress.encoder.modules.dropout import Dropout
from compress.encoder.modules.layout import AttentionMaps, Layout
from compress.encoder.modules.pattern import FULL, AttentionPattern
from compress.encoder.modules.relative import BiasTable, ScoreBias
from compress.encoder.modules.rotary import Rotation, rotate
from compress.errors import UserError
from compress.quantizers._base import Base

ModuleT = TypeVar("ModuleT", bound=nn.Module)
Position = Rotation | ScoreBias
"""What a layer's attention knows of positions: how queries and keys are turned, or what is added to their scores."""


def empty(kind: type[ModuleT], *args: Any, **kwargs: Any) -> ModuleT:
    """`kind(*args)` with its parameters left unset: `Model.initialize` or a checkpoint sets every one of them.

    Building costs no random numbers then, and does not disturb the global generator. `nn.utils.skip_init` does the same
    by way of the meta device, where filling a matrix takes 1 to 10 ms: most of the time of opening a small model.
    """
    module = _without_reset(kind)(*args, **kwargs)
    object.__setattr__(module, "__class__", kind)  # past what nn.Module does with an attribute
    return module


def copy_unset(module: ModuleT) -> ModuleT:
    """Another module like one that was just built, its parameters left unset too; at half the price of building it.

    Its plain attributes are the same objects, so they must not be changed, and it may be tied to no other module yet.
    """
    with torch._C.DisableTorchFunction():  # inside `torch.device(..)` each look at a tensor would go through Python
        return _copy_unset(module)


def _copy_unset(module: ModuleT) -> ModuleT:
    made = object.__new__(type(module))
    own = vars(made)
    own |= {name: value.copy() if isinstance(value, dict | set) else value for name, value in vars(module).items()}
    for name, tensor in module._parameters.items():
        if tensor is not None:  # `empty_like` takes ten times as long on the meta device
            tensor = nn.Parameter(torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device))
        own["_parameters"][name] = tensor
    for name, buffer in module._buffers.items():
        own["_buffers"][name] = None if buffer is None else buffer.clone()
    for name, child in module._modules.items():
        own["_modules"][name] = None if child is None else _copy_unset(child)
    return made


@functools.cache
def _without_reset(kind: type[nn.Module]) -> Any:
    return type(kind.__name__, (kind,), {"reset_parameters": lambda self: None})


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    return empty(nn.Linear, inputs, outputs, bias=bias)


class LowRankLinear(nn.Module):
    """U (V x) + b: a linear layer whose matrix (out, in) is the product of two thin ones.

    inner: V (r, in), without a bias.  outer: U (out, r) and b.
    """

    def __init__(self, inputs: int, outputs: int, rank: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features, self.rank = inputs, outputs, rank
        self.inner = linear(inputs, rank, False)
        self.outer = linear(rank, outputs, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x))


def product(inputs: int, outputs: int, bias: bool, rank: int | None) -> nn.Linear:
    """A linear layer, of rank `rank` where one is given; that is called as a linear layer is, and has no `weight`."""
    return linear(inputs, outputs, bias) if rank is None else cast(Any, LowRankLinear(inputs, outputs, rank, bias))


def layer_norm(width: int, eps: float, bias: bool = True) -> nn.LayerNorm:
    return empty(nn.LayerNorm, width, eps=eps, bias=bias)


def activation(name: Activation) -> Callable[[Tensor], Tensor]:
    """gelu is the exact one; gelu_new is its tanh approximation, as in the original BERT code."""
    return {"gelu": F.gelu, "gelu_new": _gelu_tanh, "relu": F.relu, "silu": F.silu}[name]


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def sinusoids(rows: int, width: int) -> Tensor:
    """(rows, width) fp32: sine on even columns, cosine on odd ones (1706.03762 §3.5)."""
    position = torch.arange(rows, dtype=torch.float64, device="cpu")[:, None]
    column = torch.arange(width, device="cpu")
    angle = position / torch.pow(10000.0, 2 * (column // 2).double() / width)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos()).float()


class FixedPositions(nn.Module):
    """A position table that never trains: saved under the same name as a learned one, but not a parameter."""

    weight: Tensor

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.register_buffer("weight", sinusoids(rows, width).to(torch.get_default_device(), torch.get_default_dtype()))

    def forward(self, position_ids: Tensor) -> Tensor:
        return F.embedding(position_ids, self.weight)


class Embeddings(nn.Module):
    """Word + position + segment → norm → dropout, and a projection when E ≠ D: after them as in ALBERT, or first."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        rows, width = config.position_rows, config.width
        self.position_offset = config.position_offset
        self.word = empty(nn.Embedding, config.vocabulary, width)
        if config.positions in ("rotary", "none"):
            self.position = None
        else:
            fixed = config.positions == "sinusoidal"
            self.position = FixedPositions(rows, width) if fixed else empty(nn.Embedding, rows, width)
        self.segment = empty(nn.Embedding, config.segments, width) if config.segments else None
        self.project_first = config.project_first
        normed = config.hidden if config.project_first else width
        self.norm = None if config.is_static else layer_norm(normed, config.norm_eps, config.bias)
        self.dropout = Dropout(config.dropout)
        self.projection = linear(width, config.hidden, config.bias) if width != config.hidden else None

    def forward(self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor | None) -> Tensor:
        """ids (..) int64 → (.., D). segment_ids None, or only one kind of them: all of the first kind."""
        x = self.word(input_ids)
        if self.position is not None:
            x = x + self.position(position_ids + self.position_offset if self.position_offset else position_ids)
        if self.segment is not None:
            alike = segment_ids is None or self.segment.num_embeddings == 1
            x = x + (compute_weight(self.segment)[0] if alike else self.segment(segment_ids))
        if self.norm is None:
            return x
        if self.projection is None:
            return self.dropout(self.norm(x))
        if self.project_first:
            return self.dropout(self.norm(self.projection(x)))
        return self.projection(self.dropout(self.norm(x)))


class Attention(nn.Module):
    """Multi-head self-attention with its output projection: (.., D) → (.., D)."""

    def __init__(self, config: EncoderConfig, shape: LayerShape) -> None:
        super().__init__()
        self.heads, self.head_width, self.dropout = shape.heads, shape.head_width, config.attention_dropout
        width, rank = shape.attention_width, dict(shape.ranks).get
        self.query = product(config.hidden, width, config.layer_bias, rank("attention.query"))
        self.key = product(config.hidden, width, config.layer_bias, rank("attention.key"))
        self.value = product(config.hidden, width, config.layer_bias, rank("attention.value"))
        self.output = product(width, config.hidden, config.layer_bias, rank("attention.output"))
        bias = config.relative_bias
        self.relative = None if bias is None or bias.shared else BiasTable(bias.buckets, shape.heads)
        self.globals = GlobalProjections(config, width) if config.global_projections else None

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (.., H·K)."""
        x = cast_for_autocast(x)
        return self.query(x), self.key(x), self.value(x)

    def project_distances(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys (R, H·K) of vectors (R, D) of distances; hooks on the matrices see tokens alone."""
        return self.query.forward(x), self.key.forward(x)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        trace: LayerTrace,
        pattern: AttentionPattern = FULL,
        position: Position | None = None,
    ) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, self.head_width)) for part in self.project(x))
        scores, asked = None, q
        if isinstance(position, tuple):
            q, k = rotate(q, position), rotate(k, position)
            asked = q
        elif position is not None:
            scores = position
            asked = q if scores.scale == 1 else q * scores.scale
        dropout = self.dropout if self.training else 0.0
        if trace.wants_maps:
            context, trace.maps = layout.attend_explicitly(asked, k, v, dropout=dropout, pattern=pattern, scores=scores)
        else:
            context = layout.attend(asked, k, v, dropout=dropout, pattern=pattern, scores=scores)
        if self.globals is not None and pattern.global_tokens:
            context = self._attend_globally(self.globals, x, context, layout, trace, dropout)
        if trace.wants_projections:
            trace.projections = (q, k, v)
        return self.output(context.flatten(-2))

    def _attend_globally(
        self, own: GlobalProjections, x: Tensor, context: Tensor, layout: Layout, trace: LayerTrace, dropout: float
    ) -> Tensor:
        """`context` with the first token's replaced: what it sees of all tokens by projections of its own."""
        if trace.wants_maps:
            raise UserError(
                "attention maps of this model are not available",
                why="its global tokens have projections of their own, as in Longformer",
                do="use logits, hidden states, queries, keys or values",
            )
        x = cast_for_autocast(x)
        shape = (self.heads, self.head_width)
        q = own.query(layout.first(x)).unflatten(-1, shape)
        k, v = (part(x).unflatten(-1, shape) for part in (own.key, own.value))
        return layout.replace_first(context, layout.attend_first(q, k, v, dropout=dropout))


class GlobalProjections(nn.Module):
    """Queries, keys and values of the global tokens (2004.05150 §3.1): (.., D) → (.., H·K) each."""

    def __init__(self, config: EncoderConfig, width: int) -> None:
        super().__init__()
        kind = nn.Linear if config.global_tokens else IdleLinear
        self.query, self.key, self.value = (
            empty(kind, config.hidden, width, bias=config.layer_bias) for _ in ("query", "key", "value")
        )


class IdleLinear(nn.Linear):
    """A linear layer that is kept and not used: quantizing it would change nothing."""


def cast_for_autocast(x: Tensor) -> Tensor:
    """x in autocast's precision: cast once, where autocast would cast it anew for each of several products."""
    if (narrow := add_norm.narrowed(x)) is not None:
        return narrow
    device = x.device.type
    if not torch.is_autocast_enabled(device) or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(device))


class FeedForward(nn.Module):
    """(.., D) → (.., F) → (.., D). Gated, `up` gives (.., 2F): what the activation acts on, and what multiplies it."""

    def __init__(self, config: EncoderConfig, shape: LayerShape) -> None:
        super().__init__()
        width, rank = shape.feed_forward, dict(shape.ranks).get
        self.gated = config.gated
        rows = 2 * width if config.gated else width
        self.up = product(config.hidden, rows, config.up_bias, rank("feed_forward.up"))
        self.down = product(width, config.hidden, config.layer_bias, rank("feed_forward.down"))
        self.act = activation(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        first = self.up.inner if isinstance(self.up, LowRankLinear) else self.up
        if not isinstance(first, Quantized):  # which rounds what it is given, in fp32
            x = x if (narrow := add_norm.narrowed(x)) is None else narrow
        if not self.gated:
            return self.down(self.act(self.up(x)))
        inner, gate = self.up(x).chunk(2, dim=-1)
        return self.down(self.act(inner) * gate)


class LayerTrace:
    """What one layer is asked to keep, and what it kept."""

    __slots__ = ("maps", "projections", "wants_maps", "wants_projections")

    def __init__(self, wants_maps: bool = False, wants_projections: bool = False) -> None:
        self.wants_maps, self.wants_projections = wants_maps, wants_projections
        self.maps: AttentionMaps | None = None
        self.projections: tuple[Tensor, Tensor, Tensor] | None = None


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each with a residual; the norm after (BERT) or before (2002.04745)."""

    def __init__(self, config: EncoderConfig, shape: LayerShape, attention_norm: bool = True) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention = Attention(config, shape)
        norm = layer_norm(config.hidden, config.norm_eps, config.bias) if attention_norm else nn.Identity()
        self.attention_norm = norm
        self.feed_forward = FeedForward(config, shape)
        self.output_norm = layer_norm(config.hidden, config.norm_eps, config.bias)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        trace: LayerTrace,
        pattern: AttentionPattern = FULL,
        position: Position | None = None,
        between: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """between: what becomes of the states after attention, before the feed-forward part reads them."""
        x = self.add_attention(x, self.attend(x, layout, trace, pattern, position))
        x = x if between is None else between(x)
        return self.add_feed_forward(x, self.feed(x))

    def attend(
        self, x: Tensor, layout: Layout, trace: LayerTrace, pattern: AttentionPattern, position: Position | None
    ) -> Tensor:
        """The output of the attention for the states x that the layer reads."""
        return self.attention(self.attention_norm(x) if self.pre_norm else x, layout, trace, pattern, position)

    def add_attention(self, x: Tensor, added: Tensor) -> Tensor:
        """The states between the halves. added: what `attend` gave."""
        return self._add(x, added, self.attention_norm)

    def feed(self, x: Tensor) -> Tensor:
        """The output of the feed-forward part for the states x between the halves."""
        return self.feed_forward(self.output_norm(x) if self.pre_norm else x)

    def add_feed_forward(self, x: Tensor, added: Tensor) -> Tensor:
        """The output of the layer. added: what `feed` gave."""
        return self._add(x, added, self.output_norm)

    def _add(self, x: Tensor, added: Tensor, norm: nn.Module) -> Tensor:
        """A residual, and the norm after it where it comes after."""
        if self.pre_norm:
            return x + self.dropout(added)
        if add_norm.support(x, added, norm):
            rate = self.dropout.p if self.dropout.training else 0.0
            return add_norm.add_norm(x, added, cast(nn.LayerNorm, norm), rate)
        return norm(x + self.dropout(added))


class Pooler(nn.Module):
    """Dense and tanh on the first token: (B, D) → (B, D)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.dense = linear(hidden, hidden)

    def forward(self, first: Tensor) -> Tensor:
        return torch.tanh(self.dense(first))


def fill(module: nn.Module, std: float, generator: torch.Generator) -> None:
    """Set every parameter as BERT does: matrices and tables normal(0, std), biases 0, norms 1 and 0.

    Depends on the generator's state alone: not on the device, the thread count or the global generator.
    """
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif not isinstance(part, Base):  # what a quantizer learns starts from what it observes
            for parameter in part.parameters(recurse=False):
                _fill(parameter, std, generator)


def _fill(parameter: nn.Parameter, std: float, generator: torch.Generator) -> None:
    with torch.no_grad():
        if parameter.dim() < 2:
            parameter.zero_()
        elif parameter.device.type == "cpu" and parameter.dtype == torch.float32:
            parameter.normal_(0.0, std, generator=generator)
        else:
            drawn = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
            parameter.copy_(drawn.normal_(0.0, std, generator=generator))
