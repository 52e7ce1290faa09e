"""The Python API: what people import from `compress`, one file per idea. Heavy imports wait for their first use."""

from __future__ import annotations

from typing import Any

from compress.import_paths import use_installed_evaluation

TENSORS = (
    "Scheme", "affine_scheme", "factorize_linear", "fake_quantize", "keep_word_rows", "share_layers",
    "symmetric_scheme", "take_heads_and_neurons", "take_layers",
)  # fmt: skip
"""Names in `tensors`, which imports torch."""
MODEL_COMMANDS = (
    "Analysis",
    "WrittenModel",
    "analyze",
    "calibrate",
    "cascade",
    "convert",
    "extend",
    "promote",
    "verify",
)
"""Names in `model_commands`."""
ERRORS = ("Stopped", "UserError")


def public(name: str) -> Any:
    """The function or class that `compress` shows under `name`."""
    if name not in ERRORS:
        use_installed_evaluation()
    if name in TENSORS:
        from compress.api import tensors as home
    elif name in ("Model", "load"):
        from compress.api import model as home
    elif name == "Result":
        from compress.api import result as home
    elif name in MODEL_COMMANDS:
        from compress.api import model_commands as home
    elif name in ERRORS:
        from compress import errors as home
    else:
        from compress.api import verbs as home
    return getattr(home, name)
