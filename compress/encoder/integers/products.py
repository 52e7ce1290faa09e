"""A quantized model that computes with integers in torch, on the CPU: codes of inputs times codes of matrices.

    y = ((x codes + shift - zero point) · (W codes)) * scale of x * scale of W

by oneDNN's product of unsigned with signed bytes, which sums in 32 bits. It takes one scale for all of x, so where each
token has its own, the product is made with 1 and its rows are multiplied afterwards; what is summed are whole numbers
in any case. Codes with a sign are moved up by 128, since the product of two signed bytes has no fast kernel. On a
processor without VNNI that product clips sums of two neighbours to 16 bits: a matrix that could reach the limit is
multiplied as the sum of two matrices that cannot. Tables stay codes in memory. Residual, norm, softmax, activation and
attention are fp32, as in the model that simulates this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compress.contracts import QuantizedTensor, Scheme
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.infer.prepare import FUSED, PreparedModel, can_pack, copy_in_dtype, pack
from compress.encoder.integers.fake_quantized import (
    Quantized,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedSharedLinear,
    fold,
    list_quantized_modules,
)
from compress.encoder.modules.layers import Attention, EncoderLayer, FeedForward
from compress.encoder.modules.model import Model
from compress.errors import ExitCode, UserError
from compress.quantizers._rounding import SMALLEST, dequantize, numbers_of
from compress.quantizers._saturation import MIDDLE, PAIR_LIMIT, TOP, can_overflow

WHERE = "--runtime torch-int8"

Packs = dict[tuple[Any, ...], "PackedMatrix"]
"""Largest input code, addresses of float matrices, and how they are quantized → what is multiplied: layers that share
share."""


def prepare_integers(model: Model) -> PreparedModel:
    """A frozen copy of a quantized model on the CPU that computes with integers; the model itself is not changed.

    What has no integer product computes as the model does: matrices with a scale for each group of numbers, and those
    whose input is float. `products` counts those that have one.
    Raises UserError for a float model, one without any matrix that has an integer product, a device that is not the
    CPU, and a torch without oneDNN's product.
    """
    if model.config.quantization is None:
        raise UserError("the model is not quantized", where=WHERE, do="quantize it first: compress quantize")
    if model.encoder.embeddings.word.weight.device.type != "cpu":
        raise UserError("torch's integer products only run on the CPU", where=WHERE, do="use --device cpu")
    able, total = products(model)
    if not able:
        raise UserError(
            "torch does not support integer products for any matrix of this model",
            where=WHERE,
            why="the matrices have one scale per group, or float inputs" if total else "only its tables are quantized",
            do="use --runtime torch",
        )
    _require_kernel()
    twin = copy_in_dtype(model, torch.float32)
    with torch.inference_mode():
        _replace(twin)
        fold(twin)
        if can_pack("fp32"):
            pack(twin)
    return PreparedModel(twin.requires_grad_(False).eval(), "fp32")


def products(model: nn.Module) -> tuple[int, int]:
    """Matrices that have an integer product, of all quantized ones."""
    matrices = [m for m in list_quantized_modules(model).values() if not isinstance(m, QuantizedEmbedding)]
    return sum(map(_has_product, matrices)), len(matrices)


def _has_product(part: object) -> bool:
    if not isinstance(part, QuantizedLinear | QuantizedSharedLinear) or part.input_quantizer is None:
        return False
    scheme: Scheme = part.weight_quantizer.scheme
    return scheme.per != "group" and scheme.signed and scheme.bits <= 8


def _require_kernel() -> None:
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.onednn, "qlinear_pointwise"):
        raise UserError(
            "this torch does not support integer products on this processor",
            where=WHERE,
            why=f"torch {torch.__version__} without oneDNN's integer products",
            do="use --runtime torch",
            code=ExitCode.ENVIRONMENT,
        )


# --- what is multiplied -----------------------------------------------------------------------------------------


class Reader:
    """Numbers → unsigned codes. dynamic: a scale for each token; else `scale` and `zero`, the shift included."""

    def __init__(self, quantizer: Any) -> None:
        scheme: Scheme = quantizer.scheme
        self.dynamic, shift = scheme.dynamic, MIDDLE if scheme.signed else 0
        self.low, self.high, self.highest = scheme.lowest + shift, scheme.highest + shift, scheme.highest
        self.scale, self.zero = 1.0, shift
        if not scheme.dynamic:
            scale, zero = quantizer.scale_and_zero_point()
            self.scale, self.zero = float(scale), round(float(zero)) + shift
            self._divisor = scale.detach().clone()

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x (.., K) fp32 → codes (.., K) uint8, and of a dynamic one the scale (.., 1) of each token.

        Rounded as `_rounding.codes_of` does: by division, half to even.
        """
        if self.dynamic:
            scale = x.abs().amax(-1, keepdim=True).clamp_min_(SMALLEST).div_(self.highest)
            return (x / scale).round_().add_(self.zero).to(torch.uint8), scale
        codes = (x / self._divisor).round_().add_(self.zero).clamp_(self.low, self.high)
        return codes.to(torch.uint8), None

    @property
    def reads_as(self) -> tuple[object, ...]:
        """Equal for readers that make the same codes of anything."""
        return self.dynamic, self.low, self.high, self.scale, self.zero


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix as the kernel wants it. codes: one matrix (in, out), or two that add up to it.  scale: (out,) fp32."""

    codes: tuple[Tensor, ...]
    scale: Tensor


class IntegerLinear(nn.Module):
    """Quantized linear layers that read alike, side by side as one, without their residuals.

    fused: an activation computed with the product, as `inference.FUSED` has it; only where the input's scale is static.
    activation: the same as a function, for a product that is a sum of two.
    """

    def __init__(
        self,
        parts: Sequence[Any],
        packs: Packs,
        fused: tuple[str, str] = ("none", ""),
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.read = Reader(parts[0].input_quantizer)
        key = (self.read.high, *((part.weight.data_ptr(), part.weight_quantizer.scheme) for part in parts))
        if key not in packs:
            packs[key] = _packed([part.integers() for part in parts], self.read)
        self.codes, self.scale = packs[key].codes, packs[key].scale
        self.zero_points = torch.zeros(len(self.scale), dtype=torch.int32)
        self.bias = None if parts[0].bias is None else torch.cat([part.bias.detach() for part in parts])
        self.fused = fused if len(self.codes) == 1 else ("none", "")
        self.activation = None if self.fused == fused else activation

    def forward(self, x: Tensor) -> Tensor:
        """(.., in) → (.., out)."""
        flat = x.reshape(-1, x.shape[-1])
        if not len(flat):
            return x.new_zeros(*x.shape[:-1], len(self.scale))
        codes, scale = self.read(flat)
        read = (codes, self.read.scale, self.read.zero)
        first, *rest = self.codes
        if scale is None:
            made = _multiply(*read, first, self.scale, self.zero_points, self.bias, *self.fused)
        else:
            made = _multiply(*read, first, self.scale, self.zero_points)
        for other in rest:
            made += _multiply(*read, other, self.scale, self.zero_points)
        if scale is not None:
            made = made.mul_(scale) if self.bias is None else torch.addcmul(self.bias, made, scale)
        if self.activation is not None:
            made = self.activation(made)
        return made.view(*x.shape[:-1], made.shape[-1])


def _multiply(
    x: Tensor, scale: float, zero: int, matrix: Tensor, scales: Tensor, zeros: Tensor,
    bias: Tensor | None = None, attribute: str = "none", algorithm: str = "",
) -> Tensor:  # fmt: skip
    """(x - zero) · matrix * scale * scales + bias, fp32, and what `attribute` names of that."""
    return torch.ops.onednn.qlinear_pointwise(
        x, scale, zero, matrix, scales, zeros, bias, 1.0, 0, torch.float32, attribute, [], algorithm
    )


def _packed(parts: Sequence[QuantizedTensor], reader: Reader) -> PackedMatrix:
    """Raises UserError where the product is not exact."""
    codes = torch.cat([part.codes for part in parts]).contiguous()
    scales = torch.cat([part.scale.float().expand(len(part.codes)) for part in parts]).contiguous()
    summands = _halves(codes) if can_overflow(codes, reader.high) and kernel_saturates() else (codes,)
    packed = []
    for part in summands:
        packed.append(torch.ops.onednn.qlinear_prepack(part, None))
        _require_exact(part, packed[-1], reader)
    return PackedMatrix(tuple(packed), scales)


def _halves(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Two int8 matrices that add up to the codes -128..127 and whose products fit in 16 bits."""
    half = PAIR_LIMIT // 2
    first = codes.clamp(-half, half)
    return first, codes - first


@functools.cache
def kernel_saturates() -> bool:
    """Whether oneDNN's product of unsigned with signed bytes clips sums of two neighbours to 16 bits here."""
    codes = torch.full((16, 64), 127, dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(codes, None)
    x = torch.full((2, 64), TOP, dtype=torch.uint8)
    found = _multiply(x, 1.0, 0, packed, torch.ones(16), torch.zeros(16, dtype=torch.int32))
    return bool((found != 64 * 127 * TOP).any())


def _require_exact(codes: Tensor, packed: Tensor, reader: Reader) -> None:
    """Multiply the matrix with the largest codes that there are, where an unknown kernel would err first."""
    width = codes.shape[1]
    draw = torch.randint(0, 2, (4, width), generator=torch.Generator().manual_seed(0))
    edge = torch.tensor([[reader.low], [reader.high]]).expand(2, width)
    x = torch.cat([edge, torch.where(draw > 0, reader.high, reader.low)]).to(torch.uint8)
    ones, zeros = torch.ones(len(codes)), torch.zeros(len(codes), dtype=torch.int32)
    found = _multiply(x, 1.0, reader.zero, packed, ones, zeros)
    wanted = (x.double() - reader.zero) @ codes.double().T
    if not torch.equal(found, wanted.float()):
        raise UserError(
            "torch's integer products are not exact on this processor",
            where=WHERE,
            do="use --runtime onnxruntime or --runtime torch",
            code=ExitCode.ENVIRONMENT,
        )


# --- a whole model ----------------------------------------------------------------------------------------------


class IntegerSharedLinear(nn.Module):
    """The product of codes that layers share, and beside it what this layer adds in fp32."""

    def __init__(self, plain: QuantizedSharedLinear, packs: Packs) -> None:
        super().__init__()
        self.product, self.residual = IntegerLinear([plain], packs), _Residual(plain)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x) + self.residual(x)


class _Residual(nn.Module):
    """What a layer adds to a matrix that it shares; does not keep the float matrix in memory, as the layer would."""

    def __init__(self, plain: QuantizedSharedLinear) -> None:
        super().__init__()
        self.down, self.up = plain.residual_down, plain.residual_up

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.down), self.up)


class IntegerEmbedding(nn.Module):
    """Rows of a table that is held as codes, one a byte."""

    def __init__(self, plain: QuantizedEmbedding) -> None:
        super().__init__()
        self.table = plain.integers()
        self.num_embeddings, self.embedding_dim = plain.num_embeddings, plain.embedding_dim

    @property
    def weight(self) -> Tensor:
        """All rows (rows, E), fp32."""
        return dequantize(self.table)

    def forward(self, ids: Tensor) -> Tensor:
        codes = F.embedding(ids, self.table.codes).float()
        scale, scheme = self.table.scale, self.table.scheme
        if scheme.per == "tensor":
            return codes * scale
        rows = scale[ids]
        return numbers_of(codes, rows, torch.zeros_like(rows), scheme)


class IntegerAttention(Attention):
    """Queries, keys and values as one product, where they are quantized alike."""

    def __init__(self, plain: Attention, packs: Packs) -> None:
        nn.Module.__init__(self)
        self.heads, self.head_width, self.dropout = plain.heads, plain.head_width, plain.dropout
        self.relative = plain.relative
        parts: tuple[Any, ...] = (plain.query, plain.key, plain.value)
        self.projection = IntegerLinear(parts, packs)
        self.own = nn.ModuleList(_Residual(part) for part in parts if _has_residual(part))
        self.output, self.globals = plain.output, plain.globals

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.projection(x).chunk(3, dim=-1)
        if len(self.own):
            q, k, v = (made + own(x) for made, own in zip((q, k, v), self.own, strict=True))
        return q, k, v

    def project_distances(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.project(x)[:2]


def _has_residual(part: object) -> bool:
    return isinstance(part, QuantizedSharedLinear) and part.rank > 0


def _replace(model: Model) -> None:
    """Put integer products and tables in the place of all that have them."""
    packs: Packs = {}
    before = list(list_quantized_modules(model).values())  # held until the last is packed, so no two have one address
    for layer in model.encoder.layers:
        assert isinstance(layer, EncoderLayer)
        if _read_alike([layer.attention.query, layer.attention.key, layer.attention.value]):
            layer.attention = IntegerAttention(layer.attention, packs)
        _fuse_activation(layer.feed_forward, model.config, packs)
    tied = any(head.tied_projection for head in model.head_configs.values())
    kept = model.encoder.embeddings.projection if tied else None  # whose matrix the masked-LM head reads
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Quantized) and child is not kept:
                setattr(module, name, _made(child, packs))
    del before


def _made(child: Quantized, packs: Packs) -> nn.Module:
    if isinstance(child, QuantizedEmbedding):
        return IntegerEmbedding(child)
    if not _has_product(child):
        return child
    return IntegerSharedLinear(child, packs) if _has_residual(child) else IntegerLinear([child], packs)  # type: ignore


def _read_alike(parts: Sequence[Any]) -> bool:
    """Whether all have an integer product of the same codes of what they read, and all or none a bias."""
    if not all(map(_has_product, parts)):
        return False
    return len({Reader(p.input_quantizer).reads_as for p in parts}) == len({p.bias is None for p in parts}) == 1


def _fuse_activation(part: FeedForward, config: EncoderConfig, packs: Packs) -> None:
    """Leave the activation to the first product, where that knows all scales and nothing comes between them."""
    up = part.up
    if config.gated or not _has_product(up) or _has_residual(up) or up.input_quantizer.scheme.dynamic:  # type: ignore
        return
    part.up = IntegerLinear([up], packs, FUSED[config.activation], part.act)  # type: ignore[assignment]
    part.act = _unchanged


def _unchanged(x: Tensor) -> Tensor:
    return x
