"""Quantization-aware training: a fake-quantized student and its activation ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from compress.contracts import Batch
from compress.encoder.config.unsupported import refuse_quantized
from compress.encoder.integers.convert import calibrate, list_moving_ranges, plan_quantization, quantize_model
from compress.encoder.integers.fake_quantized import list_quantized_modules
from compress.encoder.modules.dropout import Dropout
from compress.encoder.modules.layers import Attention
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.stages.distill.spec import Spec
from compress.stages.shared.stage import StageContext
from compress.training import distributed

FREEZE = 0.8
"""Share of the steps after which ranges stand still where the recipe does not say."""


def add_quantizers(student: Model, spec: Spec, context: StageContext, batches: Callable[[], Iterable[Batch]]) -> Model:
    """The student with the quantizers that `spec.quantize` asks for, if any.

    batches: real input that its ranges start from. Raises UserError for a student that is quantized already, ranges
    that would be those of an untrained student, and training that would not round what is deployed.
    """
    if spec.quantize is not None:
        refuse_quantized(student.config, "quantizing it again", "the student")
        student = quantize_model(student, plan_quantization(spec.quantize, student, "quantize.rules"), "the student")
        if spec.student is not None:
            _refuse_fixed(student)
        read = calibrate(student, batches(), context.workshop.stop)
        observed = f", ranges initialized on {read:,} training texts" if read else ""
        count = len(list_quantized_modules(student))
        context.say(
            f"quantization-aware training: {count} of the student's matrices and tables are quantized{observed}"
        )
    if student.config.quantization is not None and context.precision != "fp32":
        raise UserError(
            f"a quantized student cannot be trained in {context.precision}",
            where="training.precision",
            why="the fake-quantized values would be rounded a second time, unlike the deployed model",
            do="use --precision fp32",
        )
    return student


def set_dropout(student: Model, p: float | None) -> Model:
    """The student itself, which drops this share while it trains; None: as it did. Its config stays what it was."""
    if p is not None:
        for module in student.modules():
            if isinstance(module, Dropout):
                module.p = p
            elif isinstance(module, Attention):
                module.dropout = p
    return student


def _refuse_fixed(student: Model) -> None:
    for name, module in list_quantized_modules(student).items():
        quantizer: Any = getattr(module, "input_quantizer", None)
        if quantizer is None or not quantizer.calibrated or quantizer.moves or any(quantizer.parameters()):
            continue
        raise UserError(
            "static activation ranges cannot be calibrated on an untrained student",
            where=f"quantize, {name}",
            why="its input range is observed once, before training",
            do="use scheme per-token, static-ema, lsq or lsq-plus, or quantize the trained student (recipe qat)",
        )


class Ranges:
    """Ranges that follow the batches, until they stand still. A `Regularizer` of the student's training.

    While they move, the weights chase them; the last share of the steps trains with those that are deployed
    (1712.05877 §3).
    """

    name: str | None = None

    def __init__(self, student: Model, spec: Spec) -> None:
        """Raises UserError where several processes train: each would follow its own rows."""
        modules: dict[str, Any] = dict(list_quantized_modules(student))
        names = list_moving_ranges(student)
        self.quantizers = [modules[name].input_quantizer for name in names]
        self.share = FREEZE if spec.freeze_ranges is None else spec.freeze_ranges
        if not names and spec.freeze_ranges is not None:
            raise UserError(
                "the student has no ranges updated by the batches (EMA)",
                where="freeze_ranges",
                do="use scheme static-ema or q8bert, or remove this key",
            )
        if names and distributed.current() is not None:
            raise UserError(
                "EMA activation ranges only work in a single process",
                where="torchrun",
                why=f"each process would observe different rows: {names[0]}",
                do="run it without torchrun, or use scheme per-token, static or lsq-plus",
            )

    def pace(self, done: int, total: int) -> None:
        for quantizer in self.quantizers:
            quantizer.still = done >= self.share * total

    def penalty(self) -> tuple[Tensor, float]:
        raise NotImplementedError("it has no term")
