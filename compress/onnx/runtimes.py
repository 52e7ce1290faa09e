"""What can answer with a model, and which of it this machine has."""

from __future__ import annotations

from importlib import metadata, util
from typing import Literal, get_args

from compress.errors import ExitCode, UserError

Runtime = Literal[
    "torch", "torch-int8", "torch-sparse", "torch-graph", "torch-compile", "torchao-int8", "torchao-fp8", "onnxruntime",
    "openvino", "onnxruntime-cuda", "onnxruntime-tensorrt",
]  # fmt: skip
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
TORCHAO: frozenset[Runtime] = frozenset({"torchao-int8", "torchao-fp8"})
COMPILED: frozenset[Runtime] = frozenset({"torchao-int8", "torchao-fp8", "torch-compile"})
"""Compile at the first batch, and run on GPUs too."""
IN_TORCH: frozenset[Runtime] = frozenset({*COMPILED, "torch", "torch-int8", "torch-sparse", "torch-graph"})
"""Compute from a folder's weights; the others read its file."""
PROVIDERS: dict[Runtime, str] = {
    "onnxruntime-cuda": "CUDAExecutionProvider", "onnxruntime-tensorrt": "TensorrtExecutionProvider",
}  # fmt: skip
"""Compute from a folder's file on a GPU, by this provider of onnxruntime."""
ON_GPU = "onnxruntime-gpu"
"""The package of onnxruntime that has them. It stands in place of the other one, and is imported by the same name."""
EXTRAS: dict[str, str] = {
    "onnx": "onnx", "onnxruntime": "onnx", ON_GPU: ON_GPU, "openvino": "openvino", "torchao": "torchao",
}  # fmt: skip
"""Package → the extra that installs it; torch is always there."""


def versions() -> dict[Runtime, str | None]:
    """Every runtime and its version, None where it is not installed."""
    packages = {package(name) for name in RUNTIMES} | {"onnxruntime"}
    found = {name: _find_version(name) for name in packages}
    found["onnxruntime"] = found["onnxruntime"] or found[ON_GPU]
    return {name: found[package(name)] for name in RUNTIMES}


def _find_version(package: str) -> str | None:
    if util.find_spec("onnxruntime" if package == ON_GPU else package) is None:
        return None
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def package(runtime: Runtime) -> str:
    """What is installed for a runtime."""
    if runtime in TORCHAO:
        return "torchao"
    if runtime in PROVIDERS:
        return ON_GPU
    return "torch" if runtime in IN_TORCH else runtime


def make_missing_error(error: ImportError, package: str = "onnx") -> UserError:
    """For `package`, or something that it needs, which could not be imported."""
    return UserError(
        f"{error.name or package} is not installed",
        where="ONNX" if package == "onnx" else f"--runtime {package}",
        do=f"pip install 'compress-bert[{EXTRAS[package]}]'",
        code=ExitCode.ENVIRONMENT,
    )
