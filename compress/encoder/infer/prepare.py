"""A model made ready for inference: frozen, every matrix packed once into the order that oneDNN computes in.

On CPU torch reorders (or, in fp32, hands to a slower library) the weight of each `nn.Linear` at each call; packed once,
the same products run about twice as fast in fp32 and half as fast again in bf16. Where the operators are missing, or
on another device, the same copy runs with plain matrices; on a GPU, one of them makes queries, keys and values.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.integers.fake_quantized import Quantized, QuantizedLinear, fold
from compress.encoder.modules.layers import Attention, EncoderLayer, FeedForward, GlobalProjections
from compress.encoder.modules.model import NOTHING, Model
from compress.encoder.modules.operations import count_operations
from compress.encoder.modules.relative import BiasTable
from compress.encoder.modules.tensors import assign_tensors
from compress.encoder.modules.tied import SharedLinear

Precision = Literal["fp32", "bf16"]
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}

# What oneDNN can compute together with the product, exactly as the activation would: (attribute, algorithm).
FUSED = {"gelu": ("gelu", "none"), "gelu_new": ("gelu", "tanh"), "relu": ("relu", ""), "silu": ("swish", "")}


class PreparedModel:
    """A frozen twin of a model, called as `prepared(batch, needs)`: no gradient, no dropout. Is a `Teacher`."""

    def __init__(self, model: Model, precision: Precision) -> None:
        self.model = model
        self.precision = precision
        self.config = model.config

    def __call__(self, batch: Batch, needs: Needs = NOTHING) -> EncoderOutput:
        """What `Model.forward` gives, in this precision. Its own precision holds under any autocast."""
        device = batch.input_ids.device.type
        with torch.inference_mode(), torch.autocast(device, enabled=False):
            return self.model(batch, needs)

    def count_operations(self, batch: Batch, needs: Needs) -> int | None:
        """Of the products of a call; None where they are not known."""
        return count_operations(self.model, batch, needs)

    def find_exits(self, batch: Batch) -> Tensor:
        """(B,) int64: which early exit answers each row (`Model.answer_early`)."""
        with torch.inference_mode(), torch.autocast(batch.input_ids.device.type, enabled=False):
            return self.model.answer_early(batch).places


def prepare(model: Model, precision: Precision = "fp32") -> PreparedModel:
    """A frozen copy of `model` on its device; the model itself is neither changed nor shared.

    A quantized model computes in fp32 in any case: its rounded weights and inputs are what integers stand for.
    """
    if model.config.quantization is not None:
        precision = "fp32"
    twin = copy_in_dtype(model, DTYPES[precision])
    fold(twin)
    kind = twin.encoder.embeddings.word.weight.device.type
    if kind == "cuda":
        join_projections(twin)
    elif kind == "cpu" and can_pack(precision):
        pack(twin)
    return PreparedModel(twin.requires_grad_(False).eval(), precision)


def copy_in_dtype(model: Model, dtype: torch.dtype) -> Model:
    """A copy of `model` on its device, every tensor in `dtype`."""
    with torch.device("meta"):
        twin = Model(model.config, model.head_configs)
    state = {name: tensor.detach().to(dtype, copy=True) for name, tensor in model.state_dict().items()}
    assign_tensors(twin, state)
    return twin.requires_grad_(False)


@functools.cache
def can_pack(precision: Precision) -> bool:
    """True where this build and this CPU have the packed product in this precision, and it computes right."""
    if not torch.backends.mkldnn.is_available():
        return False
    dtype = DTYPES[precision]
    weight = torch.linspace(-1, 1, 32 * 16, dtype=torch.float32).view(32, 16).to(dtype)
    x = torch.linspace(-1, 1, 3 * 16, dtype=torch.float32).view(3, 16).to(dtype)
    try:
        with torch.inference_mode():
            got = PackedLinear(weight, weight[:, 0].contiguous(), FUSED["gelu"])(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    want = F.gelu(F.linear(x.double(), weight.double(), weight[:, 0].double()))
    return bool(torch.allclose(got.double(), want, atol=1e-5 if precision == "fp32" else 5e-2))


Packs = dict[tuple[int, ...], Tensor]
"""Addresses of plain matrices → what was packed of them: what layers share is packed once, and stays one tensor."""


class PackedLinear(nn.Module):
    """weight (out, in), bias (out,): packed on construction; forward fuses the activation into the product."""

    def __init__(self, weight: Tensor, bias: Tensor | None, fused: tuple[str, str] = ("none", "")) -> None:
        super().__init__()
        self._set(_pack_matrix(weight), bias, fused)

    @classmethod
    def of(cls, parts: Sequence[Any], packs: Packs, fused: tuple[str, str] = ("none", "")) -> PackedLinear:
        """Linear layers side by side as one, without their residuals."""
        key = tuple(part.weight.data_ptr() for part in parts)
        if key not in packs:
            packs[key] = _pack_matrix(torch.cat([part.weight for part in parts]))
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._set(packs[key], None if parts[0].bias is None else torch.cat([part.bias for part in parts]), fused)
        return made

    def _set(self, packed: Tensor, bias: Tensor | None, fused: tuple[str, str]) -> None:
        self.packed, self.bias = packed, bias
        self.attribute, self.algorithm = fused

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, self.attribute, [], self.algorithm)


def _pack_matrix(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)


class _PackedQuantized(nn.Module):
    """A quantized linear layer whose matrix was rounded for good."""

    def __init__(self, folded: QuantizedLinear) -> None:
        super().__init__()
        self.input_quantizer = folded.input_quantizer
        self.product = PackedLinear(folded.weight, folded.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x if self.input_quantizer is None else self.input_quantizer(x))


class _PackedShared(nn.Module):
    """The packed product that layers share, and beside it what this layer adds."""

    def __init__(self, plain: SharedLinear, packs: Packs) -> None:
        super().__init__()
        self.product, self.own = PackedLinear.of([plain], packs), (plain,)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x) + self.own[0].residual(x)


def _packed(plain: Any, packs: Packs, fused: tuple[str, str] = ("none", "")) -> nn.Module:
    return _PackedShared(plain, packs) if _has_residual(plain) else PackedLinear.of([plain], packs, fused)


def _has_residual(plain: object) -> bool:
    return isinstance(plain, SharedLinear) and plain.rank > 0


class JoinedAttention(Attention):
    """Queries, keys and values as one product."""

    def __init__(self, plain: Attention, projection: nn.Module, output: nn.Module) -> None:
        """projection: of all three; without what layers that share it add to it."""
        nn.Module.__init__(self)
        self.heads, self.head_width, self.dropout = plain.heads, plain.head_width, plain.dropout
        self.relative = plain.relative
        self.projection = projection
        self.own: tuple[Any, ...] = tuple(part for part in _projections(plain) if _has_residual(part))
        self.output, self.globals = output, plain.globals

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.projection(x).chunk(3, dim=-1)
        if self.own:
            q, k, v = (made + part.residual(x) for made, part in zip((q, k, v), self.own, strict=True))
        return q, k, v

    def project_distances(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.project(x)[:2]


def _projections(plain: Attention) -> tuple[Any, Any, Any]:
    return plain.query, plain.key, plain.value


class PackedFeedForward(FeedForward):
    """The activation fused into the first product, where nothing is added between them."""

    def __init__(self, plain: FeedForward, activation: str, packs: Packs) -> None:
        nn.Module.__init__(self)
        self.up = _packed(plain.up, packs, FUSED[activation])
        self.down = _packed(plain.down, packs)
        self.then = (plain.act if _has_residual(plain.up) else None,)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up(x)
        (then,) = self.then
        return self.down(inner if then is None else then(inner))


def _plain(part: nn.Module) -> bool:
    """Whether all matrices of a part are whole float ones that nobody replaced; others are packed one by one."""
    kinds = (nn.Linear, SharedLinear, BiasTable)
    parts = [child for child in part.children() if not isinstance(child, GlobalProjections)]
    return all(isinstance(child, kinds) and not isinstance(child, Quantized) for child in parts)


def join_projections(model: Model) -> None:
    """Let one product make queries, keys and values, in place: a GPU's host takes longer to launch three than the GPU
    to compute them."""
    joined: dict[tuple[int, ...], nn.Parameter] = {}  # layers that share their matrices go on sharing them
    for layer in model.encoder.layers:
        assert isinstance(layer, EncoderLayer)
        if _plain(layer.attention):
            projection = _join(_projections(layer.attention), joined)
            layer.attention = JoinedAttention(layer.attention, projection, layer.attention.output)


def _join(parts: Sequence[nn.Linear], joined: dict[tuple[int, ...], nn.Parameter]) -> nn.Linear:
    key = tuple(part.weight.data_ptr() for part in parts)
    if key not in joined:
        joined[key] = nn.Parameter(torch.cat([part.weight for part in parts]), requires_grad=False)
    made = nn.Linear(*reversed(joined[key].shape), bias=parts[0].bias is not None, device="meta")
    made.weight = joined[key]
    if parts[0].bias is not None:
        made.bias = nn.Parameter(torch.cat([part.bias for part in parts]), requires_grad=False)
    return made


def pack(model: Model) -> None:
    """Replace the parts of `model` by packed ones, in place, releasing the plain matrices as it goes."""
    packs: Packs = {}  # every plain matrix was there before the first was packed, so no two have one address
    for layer in model.encoder.layers:
        assert isinstance(layer, EncoderLayer)
        if _plain(layer.attention):
            projection = PackedLinear.of(_projections(layer.attention), packs)
            layer.attention = JoinedAttention(layer.attention, projection, _packed(layer.attention.output, packs))
        # A gate comes between the activation and the second product.
        if not model.config.gated and _plain(layer.feed_forward):
            layer.feed_forward = PackedFeedForward(layer.feed_forward, model.config.activation, packs)
    tied = any(head.tied_projection for head in model.head_configs.values())
    plain = model.encoder.embeddings.projection if tied else None  # whose matrix the masked-LM head reads
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if child is plain:
                continue
            if isinstance(child, QuantizedLinear):
                setattr(module, name, _PackedQuantized(child))
            elif isinstance(child, nn.Linear):
                setattr(module, name, PackedLinear(child.weight, child.bias))
