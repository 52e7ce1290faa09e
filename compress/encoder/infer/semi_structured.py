"""A model whose 2:4 matrices are multiplied without their zeros, in bf16, on GPUs that can.

torch keeps of every four weights the two that are not zero and where they were (`to_sparse_semi_structured`,
prototype), and multiplies by cuSPARSELt or CUTLASS. Everything else is what the model computes in bf16.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.config.layer_shape import PATTERN
from compress.encoder.config.sparsity import is_sparse
from compress.encoder.infer.prepare import DTYPES, PreparedModel, copy_in_dtype
from compress.encoder.modules.masks import require_pattern, sparse_parts
from compress.encoder.modules.model import NOTHING, Model
from compress.errors import ExitCode, UserError, printable

WHERE = "--runtime torch-sparse"
CAPABILITY = (8, 0)
TOKENS = 8
"""What the number of rows that are multiplied at once must be a multiple of; there are more of them, of zeros."""


class SparseModel(PreparedModel):
    """A frozen twin with sparse products. able, total: how many of its 2:4 matrices have one."""

    def __init__(self, model: Model, able: int, total: int) -> None:
        super().__init__(model, "bf16")
        self.able, self.total = able, total

    def __call__(self, batch: Batch, needs: Needs = NOTHING) -> EncoderOutput:
        """What `Model.forward` gives, in bf16."""
        # torch's sparse tensors are subclasses, which inference mode does not carry through every operator.
        with torch.no_grad(), torch.autocast(batch.input_ids.device.type, enabled=False):
            return self.model(batch, needs)


def skips_zeros(device: torch.device | str) -> bool:
    """Whether this device multiplies 2:4 matrices faster than others."""
    found = torch.device(device)
    return found.type == "cuda" and torch.cuda.get_device_capability(found) >= CAPABILITY


def prepare_sparse(model: Model) -> SparseModel:
    """A frozen bf16 copy of `model` on its device with sparse products; the model itself is not changed nor shared.

    A 2:4 matrix that the kernels of this torch do not take, by its shape, is multiplied as it is; `able` tells.
    Raises UserError for a model without 2:4 matrices, a quantized one, a device that skips no zeros, and where no
    matrix has a sparse product.
    """
    if not is_sparse(model.config):
        raise UserError(
            f"no matrix of the model is {PATTERN} sparse", where=WHERE, do="sparsify it first: compress sparsify"
        )
    if model.config.quantization is not None:
        raise UserError(
            "sparse matrix products do not support a quantized model",
            where=WHERE,
            do="use its ONNX file, or --runtime torch",
        )
    require_device(model.encoder.embeddings.word.weight.device)
    require_pattern(model, WHERE)
    twin = copy_in_dtype(model, DTYPES["bf16"])
    able, refused = 0, ""
    parts = sparse_parts(twin)
    for part in parts.values():
        try:
            replace(twin, part, SparseLinear(part.weight.detach(), part.bias))
            able += 1
        except (RuntimeError, NotImplementedError) as error:  # a shape that the kernels at hand do not take
            refused = refused or printable(str(error).strip().partition("\n")[0], 160)
    if not able:
        raise UserError(
            "this torch does not support sparse products for any matrix of this model", where=WHERE, why=refused,
            do="use --runtime torch", code=ExitCode.ENVIRONMENT,
        )  # fmt: skip
    return SparseModel(twin.requires_grad_(False).eval(), able, len(parts))


def require_device(device: torch.device) -> None:
    """Raise UserError for a device that skips no zeros."""
    if skips_zeros(device):
        return
    found = "a CPU" if device.type != "cuda" else f"capability {torch.cuda.get_device_capability(device)}"
    raise UserError(
        "this device does not support sparse matrix products",
        where=WHERE,
        why=f"they need CUDA capability 8.0 or more, this is {found}",
        do="use --runtime torch, which computes all weights as in a dense model",
        code=ExitCode.ENVIRONMENT,
    )


def pack_semi_structured(weight: Tensor) -> Any:
    """(out, in) 2:4, half precision → torch's sparse tensor. Raises RuntimeError for what no kernel takes."""
    with warnings.catch_warnings(action="ignore"):  # that it is a prototype
        return torch.sparse.to_sparse_semi_structured(weight.contiguous())


class SparseLinear(nn.Module):
    """x Wᵀ + b with W (out, in) packed."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(pack_semi_structured(weight), requires_grad=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        more = -len(rows) % TOKENS
        made = F.linear(F.pad(rows, (0, 0, 0, more)) if more else rows.contiguous(), self.weight, self.bias)
        return made[: len(rows)].unflatten(0, x.shape[:-1])


def replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever `old` is, in place."""
    for module in model.modules():
        for name, child in list(module.named_children()):
            if child is old:
                setattr(module, name, new)
