"""Modules that compute with integers in mind: float weights, rounded to codes and back wherever they are used.

A linear layer multiplies its rounded input with its rounded matrix; a table gives rounded rows. Bias, residual, norm,
softmax, activation and the products of attention stay fp32. The float weights are kept: training goes on from them
(straight-through), and what is deployed are the codes of `integers()`.

What a writer of deployed files reads, of each module of `list_quantized_modules(model)`:

    integers()        the matrix or table as `contracts.QuantizedTensor`
    bias              fp32 or None, of the two linear kinds
    input_quantizer   None: the input is float.  `scheme.dynamic`: a scale for each token, max|x| / highest, zero point
                      0.  else: `scale_and_zero_point()`, scalars that do not change
    rank, residual()  of a QuantizedSharedLinear: low rank that reads the float input and is added in fp32

`compute_weight(module)` is the fp32 matrix that any linear layer or table computes with, quantized or not: the
masked-LM head multiplies with `compute_weight(embeddings.word)`, its input is float.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compress import registry
from compress.contracts import PartRow, QuantizedTensor, Quantizer
from compress.encoder.config.quantization import PACKAGE, PartQuantization, Quantization
from compress.encoder.modules.tied import SharedLinear
from compress.errors import UserError

Mode = Literal["quantized", "observing", "float"]
"""observing: computes in float, and shows the input to its quantizer."""


class QuantizedLinear(nn.Linear):
    """fq(x) fq(W)ᵀ + b."""

    weight_quantizer: Any
    input_quantizer: Any
    mode: Mode

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(_read(self, input), _weight(self), self.bias)

    def integers(self) -> QuantizedTensor:
        """The matrix (out, in)."""
        return self.weight_quantizer.export(self.weight.detach())


class QuantizedSharedLinear(SharedLinear):
    """fq(x) fq(W)ᵀ + b + (x Dᵀ) Uᵀ: W may be another layer's, and has that layer's codes; the residual stays float."""

    weight_quantizer: Any
    input_quantizer: Any
    mode: Mode

    def forward(self, x: Tensor) -> Tensor:
        made = F.linear(_read(self, x), _weight(self), self.bias)
        return made if self.rank == 0 else made + self.residual(x)

    def integers(self) -> QuantizedTensor:
        """The matrix (out, in), without the residual."""
        return self.weight_quantizer.export(self.weight.detach())


class QuantizedEmbedding(nn.Embedding):
    """Rounded rows of a table."""

    weight_quantizer: Any
    mode: Mode

    def forward(self, input: Tensor) -> Tensor:
        rows = F.embedding(input, self.weight)
        return self.weight_quantizer(rows, of=self.weight) if _rounds(self) else rows

    def integers(self) -> QuantizedTensor:
        """The table (rows, E)."""
        return self.weight_quantizer.export(self.weight.detach())


Quantized = QuantizedLinear | QuantizedSharedLinear | QuantizedEmbedding
KINDS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: QuantizedLinear,
    SharedLinear: QuantizedSharedLinear,
    nn.Embedding: QuantizedEmbedding,
}
"""What can be quantized, and what it becomes."""


FOLDED = "folded"
"""The buffer of a shared matrix that was rounded for good."""


def _rounds(module: Quantized) -> bool:
    return module.mode == "quantized" and module.weight_quantizer is not None


def _weight(module: Any) -> Tensor:
    if _rounds(module):
        return module.weight_quantizer(module.weight)
    folded = module._buffers.get(FOLDED)
    return module.weight if folded is None else folded


def _read(module: QuantizedLinear | QuantizedSharedLinear, x: Tensor) -> Tensor:
    if module.input_quantizer is None or module.mode == "float":
        return x
    if module.mode == "observing":
        module.input_quantizer.observe(x.detach())
        return x
    return module.input_quantizer(x)


def compute_weight(module: nn.Module) -> Tensor:
    """The matrix (out, in) or table (rows, E) that a linear layer or an embedding computes with, residuals apart."""
    return _weight(module) if isinstance(module, Quantized) else module.weight  # pyright: ignore[reportReturnType]


# --- a whole model ----------------------------------------------------------------------------------------------


def quantizable(model: nn.Module) -> dict[str, nn.Module]:
    """Name → module, of all that can be quantized, or is; a module that several layers use once."""
    kinds = (*KINDS, *KINDS.values())
    return {name: module for name, module in model.named_modules() if type(module) in kinds}


def list_quantized_modules(model: nn.Module) -> dict[str, Quantized]:
    """Name → module, of all that are quantized."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Quantized)}


def use(module: nn.Module) -> str:
    """What a module's own matrix is for a quantizer: "weight" or "table"."""
    return "table" if isinstance(module, nn.Embedding) else "weight"


def attach(model: nn.Module, quantization: Quantization | None) -> None:
    """Make the modules that `quantization` names quantized ones, in place: they stay the objects that others read.

    Heads that the model has not are passed over. Raises UserError for a module that is not there or takes no quantizer.
    """
    if quantization is None:
        return
    known = quantizable(model)
    heads = tuple(f"heads.{name}." for name in getattr(model, "heads", {}))
    for name, part in quantization.modules:
        if name.startswith("heads.") and not name.startswith(heads):
            continue
        if name not in known:
            raise UserError(
                f"'{name}' cannot be quantized", where="encoder.quantization", why="no such matrix or table"
            )
        _attach(known[name], part, name)


def _attach(module: Any, part: PartQuantization, name: str) -> None:
    shape = (module.num_embeddings, module.embedding_dim) if use(module) == "table" else _shape(module)
    weight = _built(part.weight, shape, use(module), name)
    given = None if part.input is None else _built(part.input, None, "input", name)
    if use(module) == "table" and given is not None:
        raise UserError("an embedding table has no input to quantize", where=name)
    module.__class__ = KINDS[type(module)]
    module.weight_quantizer, module.mode = weight, "quantized"
    if use(module) == "weight":
        module.input_quantizer = given


def _shape(module: Any) -> tuple[int, int]:
    return module.out_features, module.in_features


def _built(row: PartRow, shape: tuple[int, int] | None, on: str, name: str) -> Quantizer:
    fits = registry.load(PACKAGE, row.kind).fits
    if on not in fits:
        legal = [kind for kind in registry.parts(PACKAGE) if on in registry.load(PACKAGE, kind).fits]
        raise UserError(f"{row.kind} is not a quantizer for a {on}", where=name, why=f"known: {', '.join(legal)}")
    return registry.build(PACKAGE, row, shape)


def set_mode(model: nn.Module, mode: Mode | Callable[[str], Mode]) -> None:
    """Of every quantized module; a function is given its name."""
    for name, module in list_quantized_modules(model).items():
        module.mode = mode(name) if callable(mode) else mode


def integer_megabytes(model: nn.Module) -> float:
    """10^6 bytes of all that a deployed file must hold: codes of their bits, scales and zero points, fp32 for the rest.

    What several layers share counts once. Reads shapes alone, of a model on any device.
    """
    modules, total, seen = list_quantized_modules(model).values(), 0.0, set[int]()
    for module in modules:
        if id(module.weight) in seen:
            continue
        seen.add(id(module.weight))
        scheme, rows, numbers = module.weight_quantizer.scheme, module.weight.shape[0], module.weight.numel()
        scales = {"tensor": 1, "row": rows, "group": rows * -(-module.weight.shape[1] // (scheme.group or 1))}
        total += numbers * scheme.bits / 8 + scheme.scale_bits / 8 * scales[scheme.per]
        given = getattr(module, "input_quantizer", None)
        total += 0 if given is None or given.scheme.dynamic else 5  # a scale and an 8-bit zero point
    own = {id(p) for m in modules for part in m.children() for p in (*part.parameters(), *part.buffers())}
    rest = {id(t): t for t in model.state_dict(keep_vars=True).values() if id(t) not in seen | own}
    return (total + sum(4 * tensor.numel() for tensor in rest.values())) / 1e6


@torch.no_grad()
def fold(model: nn.Module) -> None:
    """Round every weight for good, in place, of a copy that is only asked: its quantizers of weights are gone then."""
    for module in list_quantized_modules(model).values():
        rounded = _weight(module)
        if isinstance(module, QuantizedSharedLinear):
            module.register_buffer(FOLDED, rounded, persistent=False)  # another layer may read the float one
        else:
            module.weight = nn.Parameter(rounded, requires_grad=False)
        module.weight_quantizer = None
