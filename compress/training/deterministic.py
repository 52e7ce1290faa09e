"""`--deterministic`: a GPU adds in the same order each time, so that a training repeats bit for bit."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

import torch

from compress.errors import ExitCode, UserError

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
REPEATABLE = (":4096:8", ":16:8")
"""Settings with which cuBLAS repeats its results; the first is used where nothing is set."""
_MISSING = "does not have a deterministic implementation"

_requested = False


def set_deterministic(requested: bool, environ: MutableMapping[str, str] | None = None) -> None:
    """Let torch compute with deterministic algorithms alone from now on; False ends what an earlier True began.

    Must come before the first product on the GPU. environ: of the process. Raises UserError for a workspace of cuBLAS
    that does not repeat.
    """
    global _requested
    if not requested:
        if _requested:
            torch.use_deterministic_algorithms(False)
        _requested = False
        return
    found = (os.environ if environ is None else environ).setdefault(WORKSPACE, REPEATABLE[0])
    if found not in REPEATABLE:
        raise UserError(
            f"cuBLAS does not repeat its results with {WORKSPACE}={found}",
            where="--deterministic",
            do=f"unset {WORKSPACE}, or set it to {REPEATABLE[0]}",
            code=ExitCode.ENVIRONMENT,
        )
    torch.use_deterministic_algorithms(True)
    # For debugging; nothing here reads such memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    _requested = True


@contextmanager
def report_nondeterministic() -> Iterator[None]:
    """Inside this block, an operator without a deterministic implementation leaves as a UserError."""
    try:
        yield
    except RuntimeError as error:
        said = str(error)
        if _MISSING not in said:
            raise
        raise UserError(
            f"{said.partition(_MISSING)[0].strip()} has no deterministic implementation on this device",
            where="--deterministic",
            do="remove --deterministic",
            code=ExitCode.ENVIRONMENT,
        ) from error
