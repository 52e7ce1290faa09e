"""What quantizing would do to a float model's matrices: ranges of their inputs, outlier dimensions, error of products.

Two passes over the texts, batch by batch: the first for ranges, mean and deviation, the second for what is measured
against them. What is kept does not grow with the texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compress import registry
from compress.contracts import Batch, Needs
from compress.encoder.config.quantization import PACKAGE
from compress.encoder.config.schemes import TOKEN8, QuantizationSpec
from compress.encoder.integers.convert import plan_quantization, quantize_model
from compress.encoder.integers.fake_quantized import QuantizedEmbedding, list_quantized_modules, set_mode
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.quantizers._histogram import Histogram
from compress.quantizers._static import require_range

SIGMAS = 6
"""A number so many standard deviations from the mean of its tensor is an outlier (2109.12948 §3)."""
PERCENT = 99.99
WAYS = ("weights", "per-token", "static")
"""int8 matrices alone; with inputs that have a scale for each token; with inputs of one range, least to greatest."""


@dataclass
class Input:
    """What one or several matrices are multiplied with: q, k and v read the same. K: its width.

    widest, outlying: (K,) of each dimension, the largest |x| and in how many tokens it is an outlier.
    """

    readers: list[str]
    seen: Histogram = field(default_factory=Histogram)
    numbers: int = 0
    total: float = 0.0
    squares: float = 0.0
    tokens: int = 0
    widest: Tensor | None = None
    outlying: Tensor | None = None

    def add(self, x: Tensor) -> None:
        """First pass: x (T, K)."""
        self.seen.add(x)
        self.numbers += x.numel()
        self.tokens += len(x)
        self.total += float(x.sum(dtype=torch.float64))
        self.squares += float(x.double().square().sum())
        widest = x.abs().amax(0)
        self.widest = widest if self.widest is None else torch.maximum(self.widest, widest)

    def count(self, x: Tensor) -> None:
        """Second pass: x (T, K)."""
        far = ((x - self.mean).abs() > SIGMAS * self.deviation).sum(0)
        self.outlying = far if self.outlying is None else self.outlying + far

    @property
    def mean(self) -> float:
        """Of all its numbers."""
        return self.total / self.numbers

    @property
    def deviation(self) -> float:
        """Standard deviation of all its numbers."""
        return math.sqrt(max(0.0, self.squares / self.numbers - self.mean**2))

    def outliers(self) -> list[tuple[int, float, float]]:
        """(dimension, share of tokens in which it is an outlier, largest |x| in standard deviations), most tokens
        first."""
        assert self.outlying is not None
        assert self.widest is not None
        shares, widest = self.outlying.double() / self.tokens, self.widest.double() / (self.deviation or 1.0)
        found = [(d, float(shares[d]), float(widest[d])) for d in self.outlying.nonzero().flatten().tolist()]
        return sorted(found, key=lambda one: (-one[1], -one[2]))


@dataclass
class Product:
    """Of one matrix. noise: way → summed squared error of x Wᵀ.  sqnr: of the matrix, decibels."""

    sqnr: float
    power: float = 0.0
    noise: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WAYS, 0.0))

    def error(self, way: str) -> float:
        """‖rounded product - product‖ / ‖product‖ over all tokens."""
        return math.sqrt(self.noise[way] / self.power) if self.power else 0.0


@dataclass(frozen=True)
class Rounding:
    """inputs: in the order of the model.  products: module → what rounding does to it alone, given float input."""

    inputs: list[Input]
    products: dict[str, Product]

    def worst(self, way: str) -> tuple[str, float]:
        """The module whose product is furthest off, and its error."""
        name = max(self.products, key=lambda n: self.products[n].error(way))
        return name, self.products[name].error(way)


def measure_rounding(model: Model, batches: Callable[[], Iterable[Batch]], where: str) -> Rounding:
    """Look at every matrix of the encoder's layers. batches: the same ones at each call.

    Raises UserError for a model that is quantized already, and names a module whose input is constant or not finite.
    """
    made = quantize_model(model, plan_quantization(QuantizationSpec(scheme="static"), model), where).eval()
    set_mode(made, "float")
    modules: dict[str, Any] = {
        n: m for n, m in list_quantized_modules(made).items() if not isinstance(m, QuantizedEmbedding)
    }
    found = _ranges(made, modules, batches())
    products = _errors(made, modules, found, batches())
    inputs = list({id(given): given for given in found.values()}.values())
    return Rounding(inputs, products)


def _ranges(model: Model, modules: dict[str, Any], batches: Iterable[Batch]) -> dict[str, Input]:
    """Module → its input, one object for modules that are given the very same tensor."""
    found: dict[str, Input] = {}
    last: list[tuple[Tensor, Input]] = []

    def look(name: str, x: Tensor) -> None:
        if last and last[0][0] is x:
            given = found.setdefault(name, last[0][1])
            if name not in given.readers:
                given.readers.append(name)
            return
        given = found.setdefault(name, Input([name]))
        given.add(x.flatten(0, -2).float())
        last[:] = [(x, given)]

    _run(model, modules, batches, look)
    for name, module in modules.items():
        try:
            seen = require_range(found[name].seen if name in found else None)
        except UserError as error:
            raise UserError(error.what, where=name, why=error.why, do=error.do, code=error.code) from None
        module.input_quantizer.settle(seen.low, seen.high)
    return found


def _errors(
    model: Model, modules: dict[str, Any], inputs: dict[str, Input], batches: Iterable[Batch]
) -> dict[str, Product]:
    row: Any = registry.schema(PACKAGE, TOKEN8["kind"]).model_validate(dict(TOKEN8))
    per_token = registry.build(PACKAGE, row, None)
    weights = {name: (m.weight.detach(), m.weight_quantizer(m.weight).detach()) for name, m in modules.items()}
    products = {name: Product(_decibels(plain, rounded)) for name, (plain, rounded) in weights.items()}

    def look(name: str, x: Tensor) -> None:
        plain, rounded = weights[name]
        x = x.flatten(0, -2).float()
        if inputs[name].readers[0] == name:
            inputs[name].count(x)
        made = products[name]
        wanted = F.linear(x, plain)
        made.power += _square(wanted)
        for way, given in zip(WAYS, (x, per_token(x), modules[name].input_quantizer(x)), strict=True):
            made.noise[way] += _square(F.linear(given, rounded) - wanted)

    _run(model, modules, batches, look)
    return products


def _run(
    model: Model, modules: dict[str, nn.Module], batches: Iterable[Batch], look: Callable[[str, Tensor], None]
) -> None:
    """Show `look` what every module is given, batch by batch; of each nothing is kept."""
    device = model.encoder.embeddings.word.weight.device

    def shows(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, given: look(name, given[0])

    hooks = [module.register_forward_pre_hook(shows(name)) for name, module in modules.items()]
    try:
        with torch.inference_mode():
            for batch in batches:
                model(batch.to(device), Needs())
    finally:
        for hook in hooks:
            hook.remove()


def _square(x: Tensor) -> float:
    return float(x.double().square().sum())


def _decibels(plain: Tensor, rounded: Tensor) -> float:
    """Signal to quantization noise; infinite where nothing is rounded."""
    noise = _square(rounded - plain)
    return 10 * math.log10(_square(plain) / noise) if noise else math.inf
