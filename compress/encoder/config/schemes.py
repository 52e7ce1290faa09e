"""Which module gets which quantizer: rules of a recipe, and schemes, which are rules with a name. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from compress.contracts import Frozen, ListOf
from compress.encoder.config.quantization import PACKAGE
from compress.registry import RowOf

SchemeName = Literal[
    "per-token", "static", "static-ema", "static-percentile", "static-mse", "static-kl", "lsq", "lsq-plus", "q8bert",
    "int4", "int4-tables",
]  # fmt: skip


class Rule(Frozen):
    """Quantizers for the modules that a pattern matches."""

    pattern: str = Field(min_length=1)
    """Of names of matrices and tables in the model: * is any run of characters, dots too. encoder.layers.3.* is a
    layer, *.feed_forward.down one matrix of every layer, encoder.embeddings.word the word table."""
    weight: Annotated[Any, RowOf(PACKAGE)] | None = None
    """Of the matrix or table: a file of compress/quantizers; null: it stays float."""
    input: Annotated[Any, RowOf(PACKAGE)] | None = None
    """Of what the matrix is multiplied with; null: it stays float."""

    @model_validator(mode="after")
    def _both(self) -> Rule:
        if self.input is not None and self.weight is None:
            raise ValueError("an input is quantized where its weight is; give weight as well")
        return self


class QuantizationSpec(Frozen):
    """What of a model is quantized, how, and on which rows ranges are observed."""

    scheme: SchemeName | None = "per-token"
    """A named set of rules, before those of `rules`; null: those of `rules` alone."""
    rules: ListOf[Rule] = ()
    """Pattern → quantizers. Of all rules that match a module the last one counts."""
    rows: int = Field(default=512, ge=1, le=10_000_000)
    """Training texts, spread over the split, whose activations are observed."""

    @model_validator(mode="after")
    def _something(self) -> QuantizationSpec:
        if self.scheme is None and not any(rule.weight is not None for rule in self.rules):
            raise ValueError("nothing is quantized; name a scheme, or give rules with a weight")
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
