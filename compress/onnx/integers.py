"""Quantized matrices and tables as ONNX: integer products with the numbers of the fake-quantized model.

    y = ((x codes - zero point) · (W codes)) * scale of x * scale of W

The sum is one of integers, exact in 32 bits, where the model adds fp32 numbers: the two differ by rounding alone.
Every processor computes that sum: codes of a matrix whose products may exceed 16 bits, which kernels for processors
without VNNI clip (see `quantizers._saturation`), are stored as unsigned bytes with a zero point of 128. Kernels for two
unsigned operands do not clip, and are slower there.
Codes of 9 to 16 bits are stored two bytes each, of 5 to 8 bits one a byte; of 2 to 4 bits two a byte, unpacked by
arithmetic that any runtime has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from compress.contracts import QuantizedTensor, Scheme
from compress.encoder.integers.fake_quantized import QuantizedEmbedding, QuantizedLinear, QuantizedSharedLinear
from compress.errors import UserError
from compress.onnx.graph import FLOAT, MICROSOFT, Graph, Value
from compress.quantizers._saturation import MIDDLE, can_overflow

SMALLEST = 1e-30  # of the range of a token's vector, as the quantizer has it
BYTE = 8  # bits
NIBBLE = 16  # codes that half a byte tells apart


class Integers:
    """Writes into `graph`. portable: integer products of standard operators alone, else of onnxruntime's fused one."""

    def __init__(self, graph: Graph, portable: bool) -> None:
        self.graph, self.portable = graph, portable
        self._read: dict[tuple[Any, ...], tuple[Value, ...]] = {}

    def product(self, x: Value, part: QuantizedLinear | QuantizedSharedLinear, name: str) -> Value:
        """x (.., in) → fq(x) fq(W)ᵀ (.., out), without bias and residual.

        Raises UserError for codes that no integer product takes.
        """
        self._account(part, part.input_quantizer)
        weight, quantizer = part.integers(), part.input_quantizer
        require_symmetric(weight, name)
        if quantizer is None:
            return self.graph.op("MatMul", x, self.matrix(weight, name, transposed=True))
        scheme: Scheme = quantizer.scheme
        if weight.scheme.bits > BYTE:  # no kernel multiplies such codes
            return self.graph.op("MatMul", self.fake_quantize(x, quantizer), self.matrix(weight, name, transposed=True))
        if weight.scheme.per == "group":  # a sum over groups of different scales is none of integers
            return self.graph.op("MatMul", self.fake_quantize(x, quantizer), self.matrix(weight, name, transposed=True))
        top = scheme.highest + (MIDDLE if scheme.signed else 0)
        if scheme.dynamic:
            codes, scale = self.per_token(x, scheme)
            return self.graph.op("Mul", self._integer_product(codes, weight, name, top), scale)
        return self.graph.op("MatMul", self.fake_quantize(x, quantizer), self._dequantized(weight, name, top))

    def _integer_product(self, codes: Value, weight: QuantizedTensor, name: str, top: int) -> Value:
        """(codes - MIDDLE) · codes of W * scales of W. top: the largest of the codes."""
        g, middle = self.graph, self.graph.constant(MIDDLE, np.uint8)
        matrix, zero = self._codes(weight, name, top)
        scale = self._scale(weight, name)
        zeros = [] if zero is None else [g.constant(zero, np.uint8)]
        if self.portable:
            total = g.op("Cast", g.op("MatMulInteger", codes, matrix, middle, *zeros), to=FLOAT)
            return g.op("Mul", total, scale)
        one = g.constant(1.0)
        return g.op("MatMulIntegerToFloat", codes, matrix, one, scale, middle, *zeros, domain=MICROSOFT)

    def per_token(self, x: Value, scheme: Scheme) -> tuple[Value, Value]:
        """uint8 codes of x, MIDDLE for 0, and the scale (.., 1) of each token; once for all that read x."""
        key = (x, scheme)
        if key not in self._read:
            g = self.graph
            size = g.op("Abs", x)
            most = (
                g.op("ReduceMax", size, g.integers(-1), keepdims=1)
                if g.opset >= 18
                else g.op("ReduceMax", size, axes=[-1], keepdims=1)
            )
            scale = g.op("Div", g.op("Max", most, g.constant(SMALLEST)), g.constant(float(scheme.highest)))
            zero = g.constant(MIDDLE, np.uint8)
            codes = g.op("QuantizeLinear", g.op("Div", x, scale), g.constant(1.0), zero)
            self._read[key] = codes, scale
        codes, scale = self._read[key]
        return codes, scale

    def fake_quantize(self, x: Value, quantizer: Any) -> Value:
        """x as its codes have it, fp32; once for all that read x alike."""
        g, scheme = self.graph, quantizer.scheme
        if scheme.dynamic:
            codes, scale = self.per_token(x, scheme)
            whole = g.op("DequantizeLinear", codes, g.constant(1.0), g.constant(MIDDLE, np.uint8))
            return g.op("Mul", whole, scale)
        found, zero = (float(v.detach()) for v in quantizer.scale_and_zero_point())
        key = (x, scheme, found, zero)
        if key not in self._read:
            # Codes with a sign are moved up, so that both kinds are unsigned, which products are fastest with.
            shift = MIDDLE if scheme.signed else 0
            low, high, point = scheme.lowest + shift, scheme.highest + shift, round(zero) + shift
            read = x
            if (low, high) != (0, 255):  # fewer codes than a byte has: cut here what would be rounded beyond them
                bounds = [np.float32(found) * np.float32(code - point) for code in (low, high)]
                read = g.op("Clip", x, *(g.constant(bound) for bound in bounds))
            scale, middle = g.constant(found), g.constant(point, np.uint8)
            codes = g.op("QuantizeLinear", read, scale, middle)
            self._read[key] = (g.op("DequantizeLinear", codes, scale, middle),)
        return self._read[key][0]

    def rows(self, part: QuantizedEmbedding, name: str, pick: Any) -> Value:
        """Rows of a table, fp32. pick: a table (rows, ..) → some of its rows."""
        self._account(part)
        table = part.integers()
        require_symmetric(table, name)
        g, scheme, width = self.graph, table.scheme, table.codes.shape[-1]
        codes = table.codes.cpu().numpy()
        if scheme.bits > 4:
            whole = g.op("Cast", pick(g.constant(codes, codes.dtype.type, name)), to=FLOAT)
        else:
            packed = pick(g.constant(_packed(codes), np.uint8, name))
            whole = self._unpacked(packed, width)
        scale = table.scale.cpu().numpy()
        if scheme.per == "tensor":
            return g.op("Mul", whole, g.constant(scale))
        if scheme.per == "row":
            return g.op("Mul", whole, pick(g.constant(scale[:, None], np.float32, name + "_scale")))
        groups = pick(g.constant(scale, np.float32, name + "_scale"))
        return g.op("Mul", whole, self._widened(groups, scheme.group or width, width))

    def matrix(self, tensor: QuantizedTensor, name: str, *, transposed: bool) -> Value:
        """All of a matrix or table, fp32. A runtime computes it once, when it reads the file."""
        g, scheme = self.graph, tensor.scheme
        require_symmetric(tensor, name)
        codes, scale = tensor.codes.cpu().numpy(), tensor.scale.cpu().numpy()
        width = codes.shape[1]
        if scheme.bits > 4:
            whole = g.op("Cast", g.constant(codes, codes.dtype.type, name), to=FLOAT)
        else:
            whole = self._unpacked(g.constant(_packed(codes), np.uint8, name), width)
        if scheme.per == "group":
            groups = g.constant(scale, np.float32, name + "_scale")
            whole = g.op("Mul", whole, self._widened(groups, scheme.group or width, width))
        else:
            whole = g.op("Mul", whole, g.constant(scale.reshape(-1, 1) if scheme.per == "row" else scale))
        return g.op("Transpose", whole, perm=[1, 0]) if transposed else whole

    def _dequantized(self, weight: QuantizedTensor, name: str, top: int) -> Value:
        """W (in, out) as runtimes look for it before they put an integer product in place of a float one."""
        by_row = weight.scheme.per == "row"
        codes, zero = self._codes(weight, name, top)
        zeros = [] if zero is None else [np.full(len(weight.codes), zero) if by_row else zero]
        given = [codes, self._scale(weight, name), *(self.graph.constant(value, np.uint8) for value in zeros)]
        return self.graph.op("DequantizeLinear", *given, **({"axis": 1} if by_row else {}))

    def _codes(self, weight: QuantizedTensor, name: str, top: int) -> tuple[Value, int | None]:
        """(codes (in, out), their zero point): int8 and None where no product with inputs up to `top` can overflow.

        Layers that share a matrix have the same codes, which are stored once.
        """
        codes = weight.codes.cpu()
        if can_overflow(codes, top):
            return self.graph.constant(codes.numpy().T.astype(np.int16) + MIDDLE, np.uint8, name), MIDDLE
        return self.graph.constant(codes.numpy().T, np.int8, name), None

    def _scale(self, weight: QuantizedTensor, name: str) -> Value:
        return self.graph.constant(weight.scale.cpu().numpy(), np.float32, name + "_scale")

    def _unpacked(self, packed: Value, width: int) -> Value:
        """Bytes of two codes each, (.., ⌈width / 2⌉), → fp32 codes (.., width): the low halves, then the high ones."""
        g = self.graph
        both = g.op("Cast", packed, to=FLOAT)
        high = g.op("Floor", g.op("Mul", both, g.constant(1 / NIBBLE)))
        low = g.op("Sub", both, g.op("Mul", high, g.constant(float(NIBBLE))))
        codes = g.op("Concat", low, high, axis=-1)
        if width % 2:
            codes = g.op("Slice", codes, g.integers(0), g.integers(width), g.integers(-1))
        return g.op("Sub", codes, g.constant(float(NIBBLE // 2)))

    def _widened(self, scale: Value, group: int, width: int) -> Value:
        """(.., groups) → (.., width): each as often as its group has numbers."""
        g = self.graph
        groups = -(-width // group)
        index = g.constant(np.arange(groups * group)[:width] // group, np.int64)
        return g.op("Gather", scale, index, axis=-1)

    def _account(self, *modules: nn.Module | None) -> None:
        """Note the tensors of quantized modules and their quantizers as written: their codes are."""
        for module in modules:
            if module is not None:
                self.graph.stored.update(t.data_ptr() for t in _tensors(module))


def _tensors(module: nn.Module) -> list[Tensor]:
    """The matrix, and what its quantizers know; not the bias, nor a residual."""
    if not isinstance(module, QuantizedLinear | QuantizedSharedLinear | QuantizedEmbedding):
        return [*module.parameters(), *module.buffers()]
    weight: Any = module.weight
    return [weight, *module.weight_quantizer.parameters(), *module.weight_quantizer.buffers()]


def _packed(codes: np.ndarray) -> np.ndarray:
    """Codes -8..7 → bytes: the low halves hold the first half of the columns, the high ones the second."""
    above = (codes.astype(np.int16) + NIBBLE // 2).astype(np.uint8)
    width = codes.shape[-1]
    half = -(-width // 2)
    high = np.zeros((*codes.shape[:-1], half), np.uint8)
    high[..., : width - half] = above[..., half:]
    return above[..., :half] | (high << 4)


def require_symmetric(tensor: QuantizedTensor, name: str) -> None:
    """Raise UserError for weights whose codes have another zero than 0."""
    if not tensor.scheme.signed or bool(tensor.zero_point.any()):
        raise UserError(
            "the ONNX writer does not support weights with a zero point", where=name, why="nothing was written"
        )
