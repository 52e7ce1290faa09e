"""Whether torch can compute on this machine's GPU, and why not."""

from __future__ import annotations

import re
import warnings

import torch

from compress.errors import ExitCode, UserError

_KERNELS = re.compile(r"(sm|compute)_(\d+)(\d)")


class NoGpuError(UserError):
    """is_fixable: there is a GPU, and another driver or torch would use it."""

    is_fixable = False


def find_obstacle() -> NoGpuError | None:
    """What keeps torch from computing on the first GPU; None where nothing does."""
    with warnings.catch_warnings(action="ignore"):  # of torch, about what is said here in one line
        available = torch.cuda.is_available()
        if available:
            return _check_kernels(torch.cuda.get_device_capability(0), torch.cuda.get_arch_list())
        if torch.version.cuda is None:
            return _obstacle("this torch is built without CUDA", "use --device cpu")
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            said = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
            if "too old" in said:
                return _obstacle(said, "update the driver, install a torch for it, or use --device cpu", fixable=True)
            if "No CUDA GPUs" not in said and "no NVIDIA driver" not in said:
                return _obstacle(said, "use --device cpu", fixable=True)
    return _obstacle("torch finds no GPU", "use --device cpu")


def _check_kernels(capability: tuple[int, int], built: list[str]) -> NoGpuError | None:
    """built: such as sm_90 (code for 9.x from 9.0 on) and compute_90 (compiled for any later GPU when it is loaded)."""
    found = [(kind[1], (int(kind[2]), int(kind[3]))) for one in built if (kind := _KERNELS.fullmatch(one))]
    for kind, least in found:
        if capability >= least and (kind == "compute" or capability[0] == least[0]):
            return None
    if not found:
        return None
    name = ".".join(map(str, capability))
    return _obstacle(
        f"torch {torch.__version__} has no kernels for capability {name} of {torch.cuda.get_device_name(0)}",
        "install a torch built for this GPU, or use --device cpu",
        fixable=True,
    )


def _obstacle(why: str, do: str, *, fixable: bool = False) -> NoGpuError:
    made = NoGpuError("CUDA is not available", where="--device cuda", why=why, do=do, code=ExitCode.ENVIRONMENT)
    made.is_fixable = fixable
    return made
