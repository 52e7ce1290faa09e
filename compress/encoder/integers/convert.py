"""A float model becomes a quantized one: modules matched by rules, ranges observed on real input."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn

from compress.contracts import Batch
from compress.encoder.config.quantization import PartQuantization, Quantization
from compress.encoder.config.schemes import QuantizationSpec, Rule, rules_of
from compress.encoder.config.unsupported import refuse_quantized
from compress.encoder.integers.fake_quantized import attach, list_quantized_modules, quantizable, set_mode, use
from compress.encoder.modules.answers import needs_of
from compress.encoder.modules.model import Model
from compress.errors import UserError, list_some, printable, suggest

MORE = 12
"""Modules that an error lists."""


def plan_quantization(spec: QuantizationSpec, model: nn.Module, where: str = "rules") -> Quantization:
    """What `spec` means for this model, module by module.

    Raises UserError for a rule that matches nothing, with the nearest names, and where nothing is left to quantize.
    """
    known = quantizable(model)
    chosen: dict[str, Rule] = {}
    for rule in () if spec.scheme is None else rules_of(spec.scheme):
        chosen.update(dict.fromkeys(_matched(rule, known), rule))
    for place, rule in enumerate(spec.rules):
        names = _matched(rule, known)
        if not names:
            raise _nothing(rule.pattern, known, f"{where}.{place}.pattern")
        if rule.input is not None and all(use(known[name]) == "table" for name in names):
            raise UserError(
                "an embedding table has no input to quantize",
                where=f"{where}.{place}.input",
                why=f"'{printable(rule.pattern, 60)}' matches only tables",
                do="remove input",
            )
        chosen.update(dict.fromkeys(names, rule))
    parts = tuple((name, _part(chosen[name], known[name])) for name in known if _quantizes(chosen.get(name)))
    if not parts:
        raise UserError("no module to quantize", where=where, do="quantize at least one of the model's matrices")
    return Quantization(parts)


def _matched(rule: Rule, known: Mapping[str, nn.Module]) -> list[str]:
    return [name for name in known if fnmatchcase(name, rule.pattern)]


def _quantizes(rule: Rule | None) -> bool:
    return rule is not None and rule.weight is not None


def _part(rule: Rule, module: nn.Module) -> PartQuantization:
    assert rule.weight is not None
    return PartQuantization(rule.weight, None if use(module) == "table" else rule.input)


def _nothing(pattern: str, known: Mapping[str, nn.Module], where: str) -> UserError:
    hint = suggest(pattern.replace("*", ""), known) or f"known: {list_some(list(known), MORE)}"
    return UserError(f"'{printable(pattern, 80)}' matches no matrix or table of the model", where=where, do=hint)


def quantize_model(model: Model, quantization: Quantization, where: str = "the model") -> Model:
    """A copy of a float model whose modules carry quantizers; those that must be calibrated are not yet.

    Raises UserError for a model that is quantized already.
    """
    refuse_quantized(model.config, "quantizing it again", where)
    made = copy.deepcopy(model)
    made.config = made.encoder.config = dataclasses.replace(model.config, quantization=quantization)
    attach(made, quantization)
    return made.to(model.encoder.embeddings.word.weight.device).train(model.training)


@torch.no_grad()
def calibrate(model: Model, batches: Iterable[Batch], stop: Callable[[], None] = lambda: None) -> int:
    """Observe the inputs of a quantized model's modules as the float model has them, and settle all ranges.

    batches: none is read where nothing must be calibrated.  stop: raises Stopped where a signal asked for it.
    Returns rows read. Raises UserError that names the module, for an empty or constant input and non-finite numbers.
    """
    modules = list_quantized_modules(model)
    rows = 0
    if any(q.calibrated for module in modules.values() if (q := getattr(module, "input_quantizer", None)) is not None):
        was = model.training
        set_mode(model, "observing")
        try:
            for batch in batches:
                stop()
                model.eval()(batch, needs_of(model.head_configs, pooled=model.config.pooler))
                rows += batch.rows
        finally:
            set_mode(model, "quantized")
            model.train(was)
    for name, module in modules.items():
        for quantizer, x in (
            (module.weight_quantizer, module.weight),
            (getattr(module, "input_quantizer", None), None),
        ):
            if quantizer is None or not quantizer.calibrated:
                continue
            if x is not None:
                quantizer.observe(x)
            try:
                quantizer.freeze()
            except UserError as error:
                raise UserError(error.what, where=name, why=error.why, do=error.do, code=error.code) from None
    return rows


def list_moving_ranges(model: nn.Module) -> Sequence[str]:
    """Names of modules whose input range follows the batches while training."""
    found = list_quantized_modules(model).items()
    return [name for name, module in found if getattr(getattr(module, "input_quantizer", None), "moves", False)]
