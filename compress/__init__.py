"""compress: a workbench that makes BERT-family encoders smaller and faster, and measures what that costs.

    import compress

    model = compress.load("my-model")
    small = compress.fit(model, data, max_mb=12, max_ms=5).model

Every function has the name and the options of its command. Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from compress.cpus import prepare_threads, read_cpus

if TYPE_CHECKING:
    from compress.api.model import Model, load
    from compress.api.model_commands import (
        Analysis,
        WrittenModel,
        analyze,
        calibrate,
        cascade,
        convert,
        extend,
        promote,
        verify,
    )
    from compress.api.result import Result
    from compress.api.tensors import (
        Scheme,
        affine_scheme,
        factorize_linear,
        fake_quantize,
        keep_word_rows,
        share_layers,
        symmetric_scheme,
        take_heads_and_neurons,
        take_layers,
    )
    from compress.api.verbs import (
        RunResult,
        compare,
        distill,
        drop_tokens,
        factorize,
        finetune,
        fit,
        make_static,
        pretrain,
        prune_layers,
        prune_vocab,
        prune_width,
        quantize,
        reduce_dimensions,
        run,
        share,
        sparsify,
        tokenizer,
    )
    from compress.errors import Stopped, UserError

__version__ = "0.1.0"

__all__ = [
    "Analysis",
    "Model",
    "Result",
    "RunResult",
    "Scheme",
    "Stopped",
    "UserError",
    "WrittenModel",
    "affine_scheme",
    "analyze",
    "calibrate",
    "cascade",
    "compare",
    "convert",
    "distill",
    "drop_tokens",
    "extend",
    "factorize",
    "factorize_linear",
    "fake_quantize",
    "finetune",
    "fit",
    "keep_word_rows",
    "load",
    "make_static",
    "pretrain",
    "promote",
    "prune_layers",
    "prune_vocab",
    "prune_width",
    "quantize",
    "reduce_dimensions",
    "run",
    "share",
    "share_layers",
    "sparsify",
    "symmetric_scheme",
    "take_heads_and_neurons",
    "take_layers",
    "tokenizer",
    "verify",
]

METHODS = ("benchmark", "evaluate", "export", "push")
"""Commands that are methods of `Model`, and no package of ours."""

# Nobody asked to be counted: telemetry of the libraries below us is off unless the user turned it on.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# The fast tokenizers use threads of their own; after a fork they would print a warning and fall back anyway.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# oneDNN, and torch's layer above it, keep the code of a product for each shape that they meet, 1024 of each by default:
# rows of all lengths fill 400 MB with it. So few are made again as fast as the others are found.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
os.environ.setdefault("LRU_CACHE_CAPACITY", "64")
# Before the libraries below us are loaded, which read it once.
prepare_threads(os.environ, read_cpus())


def __getattr__(name: str) -> Any:
    if name not in __all__:
        do = f": use the method of a model, compress.load(FOLDER).{name}(…)" if name in METHODS else ""
        raise AttributeError(f"module 'compress' has no attribute '{name}'{do}")
    from compress import api

    return api.public(name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


class _Verb(ModuleType):
    """A package that is also the function of its name: `compress.fit(...)` and `compress.fit.run`."""

    def __call__(self, *args: Any, **values: Any) -> Any:
        return self.__wrapped__(*args, **values)

    @property
    def __wrapped__(self) -> Any:  # what `inspect.signature` and help look for
        from compress import api

        return api.public(self.__name__.rpartition(".")[2])


class _Compress(ModuleType):
    """This module. When a package below it is imported, Python stores it here under its name, which some functions
    have too."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in __all__ and isinstance(value, ModuleType):
            value.__class__ = _Verb
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Compress
