"""Whether what answers in a model's place answers as the model does: both on the same rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from compress.contracts import Batch
from compress.encoder.answers import answer_of, needs_of
from compress.encoder.model import Model
from compress.encoder.quantized import quantized_modules, set_mode
from compress.errors import ExitCode, UserError
from compress.export.session import FileSession

ROWS = 256
TOLERANCE = 1e-4  # of the largest number that the model gives; two fp32 runtimes differ by a tenth of it
BF16_TOLERANCE = 5e-2  # a bf16 number has 8 binary digits, and a deep model adds up what they leave out

AGREEMENT = 0.995
ERROR_SHARE = 0.5
RARE = 0.05
MANY = 10_000  # answers of which a share says enough by itself

Answer = Callable[[Batch], np.ndarray]
"""A packed batch → what a head answers: (B, C), (T, C) of every token, (T, D) of the bare encoder."""


@dataclass(frozen=True)
class Check:
    """What was found. difference, mean: largest and mean absolute difference.  largest: number that the model gave.
    agreement: share of answers with the same largest entry, of so many `answers`.  tolerance: of a difference, as a
    share of `largest`.  error: of a quantized model, its mean difference from itself in float; None: it is float."""

    rows: int
    what: str
    difference: float
    mean: float
    largest: float
    agreement: float
    tolerance: float = TOLERANCE
    error: float | None = None
    answers: int = 0

    @property
    def complaint(self) -> str | None:
        """What is wrong, None where nothing is.

        Rounding in fp32 moves a number over the middle between two codes now and then, and deep models carry that on:
        of a quantized model it is enough that 99.5 % of answers are the same, or not measurably fewer, and the mean
        difference below half of what quantizing itself costs.
        """
        allowed = self.tolerance * max(1.0, self.largest)
        if self.difference <= allowed:
            return None
        if self.error is not None:
            if not self._disagrees and self.mean < ERROR_SHARE * self.error:
                return None
            return (
                f"{self.mean:.1e} away from the quantized model on average, with the same answer to "
                f"{100 * self.agreement:.1f} %; allowed are {ERROR_SHARE * self.error:.1e} and {100 * AGREEMENT:.1f} %"
            )
        return f"{self.difference:.1e} away from the model, at most {allowed:.1e} is allowed"

    @property
    def _disagrees(self) -> bool:
        """Whether so many other answers would come up in fewer than 5 of 100 checks of a file that gives 99.5 % alike:
        of 256 answers four or more do, where two are 99.2 %."""
        if self.agreement >= AGREEMENT or not 0 < self.answers <= MANY:
            return self.agreement < AGREEMENT
        n, changed = self.answers, round((1 - self.agreement) * self.answers)
        one, other = math.log(AGREEMENT), math.log(1 - AGREEMENT)
        # Binomial, by logarithms: the numbers of ways are too large for floats.
        ways = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(changed))
        fewer = sum(math.exp(way + k * other + (n - k) * one) for k, way in enumerate(ways))
        return 1 - fewer < RARE

    def require(self, what: str, where: str, *, why: str | None = "nothing was written", do: str | None = None) -> None:
        """Raise UserError where something is wrong. what: answers in the model's place.  where: the model is."""
        if self.complaint is not None:
            raise UserError(f"{what} is {self.complaint}", where=where, why=why, do=do, code=ExitCode.DATA)

    @property
    def figures(self) -> str:
        return f"largest difference {self.difference:.1e}, agreement {100 * self.agreement:.1f} %"

    def sentence(self) -> str:
        return f"checked on {self.rows} rows of {self.what}: {self.figures}"


def compare(
    expected: Answer,
    found: Answer,
    batches: Sequence[Batch],
    what: str,
    tolerance: float = TOLERANCE,
    error: float | None = None,
) -> Check:
    """Both asked for the same rows. what: these are, for people.  error: see `Check`."""
    difference = largest = total = 0.0
    same = count = rows = numbers = 0
    for batch in batches:
        left, right = found(batch), expected(batch)
        apart = np.abs(left - right)
        difference = float(np.maximum(difference, apart.max()))  # Python's max would forget a NaN
        largest = float(np.maximum(largest, np.abs(right).max()))
        total, numbers = total + float(apart.sum(dtype=np.float64)), numbers + apart.size
        if right.ndim == 1 or right.shape[-1] == 1:
            left, right = np.stack([left, -left], -1), np.stack([right, -right], -1)
        same += int((left.argmax(-1) == right.argmax(-1)).sum())
        count += right[..., 0].size
        rows += batch.rows
    return Check(rows, what, difference, total / numbers, largest, same / count, tolerance, error, count)


def held_to(
    model: Model,
    head: str | None,
    found: Answer,
    batches: Sequence[Batch],
    what: str,
    tolerance: float = TOLERANCE,
) -> Check:
    """What answers in a model's place, held to the model's own answers; of a quantized one by what quantizing costs."""
    error = quantization_error(model, head, batches)
    return compare(model_answer(model, head), found, batches, what, tolerance, error)


def quantization_error(model: Model, head: str | None, batches: Sequence[Batch]) -> float | None:
    """Mean difference between a quantized model's answers and its own in float; None for a float model."""
    if not quantized_modules(model):
        return None
    answer = model_answer(model, head)
    rounded = [answer(batch) for batch in batches]
    set_mode(model, "float")
    try:
        apart = [np.abs(answer(batch) - r) for batch, r in zip(batches, rounded, strict=True)]
    finally:
        set_mode(model, "quantized")
    return float(sum(a.sum(dtype=np.float64) for a in apart) / sum(a.size for a in apart))


def remembered(answer: Answer, batches: Sequence[Batch]) -> Answer:
    """The same answers to `batches`, computed once for several comparisons."""
    known = {id(batch): answer(batch) for batch in batches}
    return lambda batch: known[id(batch)]


def model_answer(model: Model, head: str | None) -> Answer:
    """The model itself on packed tokens. head: whose answer; None: the last hidden states."""
    needs = needs_of([] if head is None else [head])
    device = model.encoder.embeddings.word.weight.device

    def answer(batch: Batch) -> np.ndarray:
        with torch.inference_mode():
            return answer_of(model(batch.to(device), needs), head).cpu().numpy()

    return answer


def file_answer(session: FileSession) -> Answer:
    """An exported file, whatever head it answers for."""

    def answer(batch: Batch) -> np.ndarray:
        found = session.run(batch)
        if "start_logits" in found:
            return np.stack([found["start_logits"], found["end_logits"]], axis=-1)
        return found["logits"] if "logits" in found else found["last_hidden_state"]

    return answer
