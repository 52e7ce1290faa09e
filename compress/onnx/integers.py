"""Quantized matrices and tables as ONNX: integer products with the numbers of the fake-quantized model.

    y = ((x codes - zero point) · (W codes)) * scale of x * scale of W

The sum is one of integers, exact in 32 bits, where the model adds fp32 numbers: the two differ by rounding alone.
Every processor computes that sum: codes of a matrix whose products may exceed 16 bits, which kernels for processors
without VNNI clip (see `quantizers._saturation`), are stored as unsigned bytes with a zero point of 128. Kernels for two
unsigned operands do not clip, and are slower there.
Codes of 9 to 16 bits are stored two bytes each, of 5 to 8 bits one a byte. Codes of 2 to 4 bits are packed and
unpacked by arithmetic that any runtime has: of a matrix when it reads the file, of a table from the rows that are
looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

from compress.contracts import QuantizedTensor, Scheme
from compress.encoder.integers.fake_quantized import QuantizedEmbedding, QuantizedLinear, QuantizedSharedLinear
from compress.errors import UserError
from compress.onnx.graph import FLOAT, INT8, MICROSOFT, Graph, Value
from compress.quantizers._saturation import MIDDLE, can_overflow

SMALLEST = 1e-30  # of the range of a token's vector, as the quantizer has it
BYTE, HALF = 8, 16  # bits
PLANES = {2: (2,), 3: (2, 1), 4: (4,)}
"""Bits of a packed code → how they are stored, the lowest ones first: in bytes of 4, 2 and 8 codes."""


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
            most = g.largest(size, keep=True)
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
        whole = self._whole(table, name, pick)
        if scheme.per == "tensor":
            return g.op("Mul", whole, self._scale(table, name))
        scale = self._scale(table, name, pick)
        return g.op("Mul", whole, scale if scheme.per == "row" else self._widened(scale, scheme.group or width, width))

    def matrix(self, tensor: QuantizedTensor, name: str, *, transposed: bool) -> Value:
        """All of a matrix or table, fp32. A runtime computes it once, when it reads the file."""
        g, scheme, width = self.graph, tensor.scheme, tensor.codes.shape[1]
        require_symmetric(tensor, name)
        whole, scale = self._whole(tensor, name), self._scale(tensor, name, lambda table: table)
        whole = g.op(
            "Mul", whole, self._widened(scale, scheme.group or width, width) if scheme.per == "group" else scale
        )
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
        g, codes = self.graph, weight.codes.cpu()
        if weight.scheme.bits in PLANES:  # too small to overflow
            return g.op("Transpose", g.op("Cast", self._whole(weight, name), to=INT8), perm=[1, 0]), None
        if can_overflow(codes, top):
            return g.constant(codes.numpy().T.astype(np.int16) + MIDDLE, np.uint8, name), MIDDLE
        return g.constant(codes.numpy().T, np.int8, name), None

    def _scale(self, weight: QuantizedTensor, name: str, pick: Callable[[Value], Value] | None = None) -> Value:
        """fp32; pick: of the rows of a table, (.., 1) or (.., groups)."""
        g, scale = self.graph, weight.scale.cpu().numpy()
        kind = np.float16 if weight.scheme.scale_bits == HALF else np.float32
        if pick is None or weight.scheme.per == "tensor":
            stored = g.constant(scale, kind, name + "_scale")
        else:
            stored = pick(g.constant(scale.reshape(len(weight.codes), -1), kind, name + "_scale"))
        return stored if kind is np.float32 else g.op("Cast", stored, to=FLOAT)

    def _whole(self, tensor: QuantizedTensor, name: str, pick: Callable[[Value], Value] = lambda table: table) -> Value:
        """fp32 codes (.., K) of all rows, or of those that `pick` takes."""
        g, scheme = self.graph, tensor.scheme
        codes, width = tensor.codes.cpu().numpy(), tensor.codes.shape[-1]
        if scheme.bits not in PLANES:
            return g.op("Cast", pick(g.constant(codes, codes.dtype.type, name)), to=FLOAT)
        numbers, whole, below = (codes.astype(np.int16) - scheme.lowest) // scheme.step, None, 0
        for bits in PLANES[scheme.bits]:
            plane = _packed((numbers >> below) & (2**bits - 1), bits)
            suffix = "" if below == 0 else f"_bit{below}"
            found = self._unpacked(pick(g.constant(plane, np.uint8, name + suffix)), bits, width)
            scaled = g.op("Mul", found, g.constant(float(scheme.step << below))) if scheme.step << below > 1 else found
            whole, below = scaled if whole is None else g.op("Add", whole, scaled), below + bits
        assert whole is not None
        return g.op("Add", whole, g.constant(float(scheme.lowest)))

    def _unpacked(self, packed: Value, bits: int, width: int) -> Value:
        """Bytes of `_packed` (.., ⌈width bits / 8⌉) → fp32 numbers of `bits` bits (.., width): halves of a byte, halves
        of these, and so on, the low ones before the high ones."""
        g, held, count = self.graph, BYTE, -(-width * bits // BYTE)
        found = g.op("Cast", packed, to=FLOAT)
        while held > bits:
            held, count = held // 2, 2 * count
            high = g.op("Floor", g.op("Mul", found, g.constant(2.0**-held)))
            low = g.op("Sub", found, g.op("Mul", high, g.constant(2.0**held)))
            found = g.op("Concat", low, high, axis=-1)
        if count > width:
            found = g.op("Slice", found, g.integers(0), g.integers(width), g.integers(-1))
        return found

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


def _packed(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Numbers 0..2^bits - 1 (.., K), bits 1, 2 or 4 → bytes (.., ⌈K bits / 8⌉): the first half of the columns in the
    low half of the bits, and so on within each half, the last columns filled up with zeros."""
    found, held = numbers.astype(np.uint8), bits
    found = np.pad(found, [(0, 0)] * (found.ndim - 1) + [(0, -found.shape[-1] % (BYTE // bits))])
    while held < BYTE:
        low, high = np.split(found, 2, axis=-1)
        found, held = low | (high << held), 2 * held
    return found


def require_symmetric(tensor: QuantizedTensor, name: str) -> None:
    """Raise UserError for weights whose codes have another zero than 0."""
    if not tensor.scheme.signed or bool(tensor.zero_point.any()):
        raise UserError(
            "the ONNX writer does not support weights with a zero point", where=name, why="nothing was written"
        )
