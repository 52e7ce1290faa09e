"""A model compiled by torch.compile, its matrices as they are or quantized by torchao: for GPUs first, CPUs too.

A layer is one compiled piece on a GPU, whose kernel for attention reads sequences of any lengths. Elsewhere attention
runs outside, on the sequences as they are packed: how many there are and how long is different in every batch, and must
not be compiled anew each time. Layers of one shape share one compilation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from compress.console import silence_output
from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.infer.prepare import DTYPES, Precision, PreparedModel, copy_in_dtype, join_projections
from compress.encoder.integers.fake_quantized import QuantizedLinear, fold
from compress.encoder.modules.layers import Attention, EncoderLayer, LayerTrace, Position
from compress.encoder.modules.layout import Layout, PackedLayout
from compress.encoder.modules.model import NOTHING, Model
from compress.encoder.modules.pattern import FULL, AttentionPattern
from compress.encoder.modules.varlen import attend_varlen
from compress.errors import ExitCode, UserError, printable

Products = Literal["float", "int8", "fp8"]
"""Of the layers' matrices: as they are; int8 by output channel times int8 by token; fp8 by row times fp8 by row."""
SHAPES = 64
"""Compilations of one layer's code: torch gives up after 8, and a model cut unevenly has a shape for every layer."""
FP8_CAPABILITY = (8, 9)
BACKEND = "inductor"


class CompiledModel(PreparedModel):
    """A frozen twin whose layers are compiled at the first batch, which takes from seconds to a minute."""

    def __call__(self, batch: Batch, needs: Needs = NOTHING) -> EncoderOutput:
        """What `Model.forward` gives, in this precision."""
        import torch._dynamo

        # torchao's tensors cannot be made in inference mode, nor compiled in it.
        with (
            torch.no_grad(),
            torch.autocast(batch.input_ids.device.type, enabled=False),
            warnings.catch_warnings(action="ignore"),
            torch._dynamo.config.patch(recompile_limit=SHAPES),
        ):
            return self.model(batch, needs)


def prepare_compiled(model: Model, precision: Precision = "fp32", products: Products = "float") -> CompiledModel:
    """A compiled, frozen copy of `model` on its device; the model itself is neither changed nor shared.

    products: "int8" and "fp8" quantize the layers' matrices anew, and each token as it is seen; of a quantized model
    int8 takes its rounded matrices. What layers share with residuals beside it, and what is not a plain matrix, stays
    as the model computes it. A quantized model has fp32 beside its products, fp8 always bf16.
    Raises UserError without a working compiler, and what `quantize_products` raises.
    """
    where = f"--runtime {'torch-compile' if products == 'float' else f'torchao-{products}'}"
    require_compiler(model.encoder.embeddings.word.weight.device, where)
    if model.config.quantization is not None:
        precision = "fp32"
    elif products == "fp8":
        precision = "bf16"
    twin = copy_in_dtype(model, DTYPES[precision]).eval()
    if products != "float":
        quantize_products(twin, products, where)
    fold(twin)
    if products == "float" and twin.encoder.embeddings.word.weight.is_cuda:
        join_projections(twin)
    for group, layer in enumerate(twin.encoder.layers):
        assert isinstance(layer, EncoderLayer)
        twin.encoder.layers[group] = _CompiledLayer(layer)
    return CompiledModel(twin.requires_grad_(False), precision)


@cache
def require_compiler(device: torch.device, where: str) -> None:
    """Raises UserError where torch.compile does not work: it needs a C++ compiler on a CPU, triton on a GPU."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of the compiler about its own parts
            torch.compile(nn.functional.gelu, backend=BACKEND)(torch.zeros(8, device=device))
    except Exception as error:  # whatever the compiler, its cache or its toolchain raise
        raise UserError(
            "torch.compile does not work on this machine",
            where=where,
            why=printable(str(error).strip().partition("\n")[0], 160),
            do="install a C++ compiler" if device.type == "cpu" else "install the triton version of this torch",
            code=ExitCode.ENVIRONMENT,
        ) from error


def quantize_products(twin: Model, products: Products, where: str) -> None:
    """Let torchao compute the products of the layers' plain matrices, in place.

    Raises UserError without torchao, for fp8 on a device that has none, and for a quantized model that does not mean
    what would be computed: int8 codes with a scale for each output channel, and for each token.
    """
    try:
        ao = _torchao()
    except ImportError as error:
        raise UserError(
            "torchao is not installed",
            where=where,
            do="pip install 'compress-bert[torchao]'",
            code=ExitCode.ENVIRONMENT,
        ) from error
    device = twin.encoder.embeddings.word.weight.device
    if products == "fp8":
        _require_fp8(twin, device, where)
        config: Any = ao.Float8DynamicActivationFloat8WeightConfig(granularity=ao.PerRow())
    else:
        config = ao.Int8DynamicActivationInt8WeightConfig()
    _plain_matrices(twin, where)
    with torch.no_grad():
        ao.quantize_(twin.encoder.layers, config, lambda part, name: type(part) is nn.Linear)


def _torchao() -> Any:
    """Imported without what it says of kernels for other devices."""
    with silence_output():
        import torchao.quantization as ao  # type: ignore[import-not-found]
    return ao


def _require_fp8(twin: Model, device: torch.device, where: str) -> None:
    if twin.config.quantization is not None:
        raise UserError("the model is quantized to integers", where=where, do="use its parent model")
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        found = f"capability {torch.cuda.get_device_capability(device)}" if device.type == "cuda" else "a CPU"
        raise UserError(
            "this device does not support fp8 matrix products",
            where=where,
            why=f"they need CUDA capability 8.9 or more, this is {found}",
            do="use torchao-int8 or torch-compile",
            code=ExitCode.ENVIRONMENT,
        )


def _plain_matrices(twin: Model, where: str) -> None:
    """Put a plain linear layer with the rounded matrix in the place of every quantized one."""
    for layer in twin.encoder.layers:
        for module in list(layer.modules()):
            for name, child in list(module.named_children()):
                if not isinstance(child, QuantizedLinear):
                    continue
                matrix, read = child.weight_quantizer.scheme, child.input_quantizer
                if not (matrix.per == "row" and matrix.bits == 8 and read is not None and read.scheme.dynamic):
                    raise UserError(
                        "torchao does not support the quantization scheme of this model",
                        where=where,
                        why="supported: int8 with one scale per output channel and per token",
                        do="use --runtime torch-compile, which simulates the integers, or the ONNX file",
                    )
                plain = nn.Linear(child.in_features, child.out_features, child.bias is not None, device="meta")
                plain.weight = nn.Parameter(child.weight_quantizer(child.weight.detach()), requires_grad=False)
                plain.bias = child.bias
                setattr(module, name, plain)


class _CompiledLayer(nn.Module):
    """A layer, compiled: whole, or but for its attention."""

    def __init__(self, layer: EncoderLayer) -> None:
        super().__init__()
        self.layer = layer
        self._in_parts: Callable[..., Tensor] = torch.compile(self._run_in_parts, dynamic=True, backend=BACKEND)
        self._whole: Callable[..., Tensor] = torch.compile(self._run_whole, dynamic=True, backend=BACKEND)

    @property
    def attention(self) -> Attention:
        """The layer's own, whose table of position biases the encoder reads."""
        return self.layer.attention

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        trace: LayerTrace,
        pattern: AttentionPattern = FULL,
        position: Position | None = None,
        between: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        if trace.wants_maps or trace.wants_projections:
            return self.layer(x, layout, trace, pattern, position, between)
        bounds = self._find_bounds(x, layout, pattern, position)
        if bounds is None:
            return self._in_parts(x, layout, pattern, position)
        assert isinstance(layout, PackedLayout)
        return self._whole(x, bounds, layout.max_length, pattern, position)

    def _find_bounds(
        self, x: Tensor, layout: Layout, pattern: AttentionPattern, position: Position | None
    ) -> Tensor | None:
        attention, has_bias = self.layer.attention, position is not None and not isinstance(position, tuple)
        if has_bias or attention.globals is not None or not isinstance(layout, PackedLayout):
            return None
        return layout.find_bounds(x.dtype, attention.head_width, pattern)

    def _run_in_parts(self, x: Tensor, layout: Layout, pattern: AttentionPattern, position: Position | None) -> Tensor:
        return self.layer(x, _Outside(layout), LayerTrace(), pattern, position)

    def _run_whole(
        self, x: Tensor, bounds: Tensor, max_length: int, pattern: AttentionPattern, position: Position | None
    ) -> Tensor:
        return self.layer(x, _Inside(bounds, max_length), LayerTrace(), pattern, position)


class _Inside:
    """A layout whose attention the compiler calls as one kernel."""

    def __init__(self, bounds: Tensor, max_length: int) -> None:
        self.bounds, self.max_length = bounds, max_length

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, dropout: float, pattern: AttentionPattern, scores: None
    ) -> Tensor:
        return attend_varlen(q, k, v, self.bounds, self.max_length, dropout, pattern)


class _Outside:
    """A layout whose attention the compiler does not look into."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.call = layout, _uncompiled()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        return self.call(self.layout, q, k, v, how)

    def __getattr__(self, name: str) -> Any:
        return torch.compiler.disable(getattr(self.layout, name))


@cache
def _uncompiled() -> Callable[..., Tensor]:
    def attend(layout: Layout, q: Tensor, k: Tensor, v: Tensor, how: dict[str, Any]) -> Tensor:
        return layout.attend(q, k, v, **how)

    disabled: Any = torch.compiler.disable(attend)
    return disabled
