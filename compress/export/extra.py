"""What is said when the extra `onnx` is not installed."""

from __future__ import annotations

from compress.errors import ExitCode, UserError


def missing(error: ImportError) -> UserError:
    """For a package of the extra that could not be imported."""
    return UserError(
        f"{error.name or 'a package'} is not installed",
        where="ONNX",
        do="pip install 'compress-bert[onnx]'",
        code=ExitCode.ENVIRONMENT,
    )
