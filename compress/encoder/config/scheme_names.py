"""Names of the quantization schemes of `schemes.py`. Imports nothing, since `--help` lists them."""

from typing import Literal

SchemeName = Literal[
    "per-token", "static", "static-ema", "static-percentile", "static-mse", "static-kl", "lsq", "lsq-plus", "q8bert",
    "int4", "int4-tables", "int4-rows", "int3", "int3-rows", "int2", "int2-rows",
]  # fmt: skip
