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
TABLES = ("encoder.embeddings.word", "encoder.embeddings.position")
ROW8: Mapping[str, Any] = {"kind": "per_channel", "bits": 8}
MATRIX8: Mapping[str, Any] = {**ROW8, "overflow_safe": True}
TOKEN8: Mapping[str, Any] = {"kind": "per_token", "bits": 8}
GROUP4: Mapping[str, Any] = {"kind": "per_group", "bits": 4, "group": 32}
TENSOR8: Mapping[str, Any] = {"kind": "per_tensor", "bits": 8}
SAFE_TENSOR8: Mapping[str, Any] = {**TENSOR8, "overflow_safe": True}


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
    """
    static = {"static": "min_max", **{f"static-{kind}": kind for kind in ("ema", "percentile", "mse", "kl")}}
    if name in static:
        return _scheme(MATRIX8, {"kind": static[name], "bits": 8})
    if name in ("lsq", "lsq-plus"):
        return _scheme({"kind": "lsq", "bits": 8}, {"kind": name.replace("-", "_"), "bits": 8})
    if name == "q8bert":
        ema = {"kind": "ema", "bits": 8, "symmetric": True}
        return _scheme(SAFE_TENSOR8, ema, TENSOR8, ("encoder.pooler.dense", "heads.*"))
    if name == "int4":
        return _scheme(GROUP4, TOKEN8, GROUP4)
    return _scheme(MATRIX8, TOKEN8, GROUP4 if name == "int4-tables" else ROW8)
