"""Which module gets which quantizer: rules of a recipe, and schemes, which are rules with a name. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from compress.contracts import Frozen, ListOf
from compress.encoder.config.quantization import PACKAGE
from compress.encoder.config.scheme_names import SchemeName
from compress.registry import RowOf


class Rule(Frozen):
    """Quantizers for the modules whose names match a pattern."""

    pattern: str = Field(min_length=1)
    """Pattern for names of matrices and embedding tables; * matches any characters, including dots. encoder.layers.3.*
    is one layer, *.feed_forward.down one matrix of every layer, encoder.embeddings.word the word embeddings."""
    weight: Annotated[Any, RowOf(PACKAGE)] | None = None
    """Quantizer of the matrix or table: a file of compress/quantizers. Default: not quantized."""
    input: Annotated[Any, RowOf(PACKAGE)] | None = None
    """Quantizer of the input of the matrix product. Default: not quantized."""

    @model_validator(mode="after")
    def _both(self) -> Rule:
        if self.input is not None and self.weight is None:
            raise ValueError("input needs a quantized weight; set weight as well")
        return self


class QuantizationSpec(Frozen):
    """Which modules are quantized and how, and on which rows ranges are calibrated."""

    scheme: SchemeName | None = "per-token"
    """Named set of rules, applied before `rules`. null: use `rules` only."""
    rules: ListOf[Rule] = ()
    """Quantization rules, pattern → quantizers. The last rule that matches a module applies."""
    rows: int = Field(default=512, ge=1, le=10_000_000)
    """Number of training texts for calibration, spread over the split."""

    @model_validator(mode="after")
    def _something(self) -> QuantizationSpec:
        if self.scheme is None and not any(rule.weight is not None for rule in self.rules):
            raise ValueError("nothing is quantized; set a scheme, or add rules with a weight")
        return self


MATRICES = ("encoder.layers.*", "encoder.embeddings.projection")
POOLER = "encoder.pooler.dense"
TABLES = ("encoder.embeddings.word", "encoder.embeddings.position")
ROW8: Mapping[str, Any] = {"kind": "per_channel", "bits": 8}
MATRIX8: Mapping[str, Any] = {**ROW8, "overflow_safe": True}
TOKEN8: Mapping[str, Any] = {"kind": "per_token", "bits": 8}
GROUP4: Mapping[str, Any] = {"kind": "per_group", "bits": 4, "group": 32, "scale_dtype": "fp16"}
TENSOR8: Mapping[str, Any] = {"kind": "per_tensor", "bits": 8}
SAFE_TENSOR8: Mapping[str, Any] = {**TENSOR8, "overflow_safe": True}


FEW: Mapping[str, tuple[int, bool]] = {
    "int4-rows": (4, True),
    "int3": (3, False),
    "int3-rows": (3, True),
    "int2": (2, False),
    "int2-rows": (2, True),
}
"""Scheme → (bits of matrices and tables, whether a row has one scale)."""


def few_bits(bits: int, *, by_row: bool, table: bool = False) -> dict[str, Any]:
    """The quantizer of a matrix, or of a table, whose scale is not learned, in 2 to 4 bits."""
    row: dict[str, Any] = {"bits": bits, "balanced": bits < 4, "scale_dtype": "fp16"}
    if not by_row:
        row["group"] = 32
    if table:
        return {"kind": "per_channel" if by_row else "per_group", "range": "mse", **row}
    return {"kind": "lsq", "per": "row" if by_row else "group", **row}


def _scheme(
    weight: Mapping[str, Any], given: Mapping[str, Any], table: Mapping[str, Any] = ROW8, more: tuple[str, ...] = ()
) -> tuple[Rule, ...]:
    """more: patterns of matrices beside those of the layers."""
    matrices = [{"pattern": p, "weight": weight, "input": given} for p in (*MATRICES, *more)]
    return tuple(Rule.model_validate(row) for row in (*matrices, *({"pattern": p, "weight": table} for p in TABLES)))


def rules_of(name: SchemeName) -> tuple[Rule, ...]:
    """The rules that a scheme stands for; some may match nothing in a model.

    per-token: int8 rows, inputs a scale for each token.  static…: int8 rows, inputs one range, observed.
    lsq, lsq-plus: steps are learned.  q8bert: one symmetric scale for each matrix, table and input, pooler and heads
    among them (1910.06188).  int4: groups of 32 numbers, inputs per token.  int4-tables: per-token with int4 tables.
    int3, int2: groups of 32, steps of matrices start from the least squared error and are learned, inputs per token.
    …-rows: the same with one step for each row, which integer products can use. They include the pooler.
    """
    static = {"static": "min_max", **{f"static-{kind}": kind for kind in ("ema", "percentile", "mse", "kl")}}
    if name in static:
        return _scheme(MATRIX8, {"kind": static[name], "bits": 8})
    if name in ("lsq", "lsq-plus"):
        return _scheme({"kind": "lsq", "bits": 8}, {"kind": name.replace("-", "_"), "bits": 8})
    if name == "q8bert":
        ema = {"kind": "ema", "bits": 8, "symmetric": True}
        return _scheme(SAFE_TENSOR8, ema, TENSOR8, (POOLER, "heads.*"))
    if name == "int4":
        return _scheme(GROUP4, TOKEN8, GROUP4)
    if name in FEW:
        bits, by_row = FEW[name]
        matrix, table = few_bits(bits, by_row=by_row), few_bits(bits, by_row=by_row, table=True)
        return _scheme(matrix, TOKEN8, table, (POOLER,))  # whose floats would be a tenth of the file
    return _scheme(MATRIX8, TOKEN8, GROUP4 if name == "int4-tables" else ROW8)
