"""Whether what answers in a model's place answers as the model does: both on the same rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from compress.contracts import QUERIES, Batch
from compress.data.batches.examples import take_rows
from compress.encoder.integers.fake_quantized import list_quantized_modules, set_mode
from compress.encoder.modules.answers import answer_of, needs_of
from compress.encoder.modules.model import Model
from compress.errors import ExitCode, UserError
from compress.onnx.session import FileSession, answer_in

ROWS = 256
TOLERANCE = 1e-4  # of the largest number that the model gives; two fp32 runtimes differ by a tenth of it
BF16_TOLERANCE = 5e-2  # a bf16 number has 8 binary digits, and a deep model adds up what they leave out

AGREEMENT = 0.995
ERROR_SHARE = 0.5
NEAR = 1.2
"""Times the error of quantizing: how far from the float model what is found may be."""
CLOSE, CLOSE_SHARE = 1e-3, 1e-4
"""To the threshold of an early exit, and between the attention that two tokens receive of which one is dropped: what
comes so near is for rounding to decide, and another runtime may decide otherwise."""
RARE = 0.05
MANY = 10_000  # answers of which a share says enough by itself

Answer = Callable[[Batch], np.ndarray]
"""A packed batch → what a head answers: (B, C), (T, C) of every token, (T, D) of the bare encoder."""


@dataclass(frozen=True)
class Check:
    """What was found. difference, mean: largest and mean absolute difference.  largest: number that the model gave.
    agreement: share of answers with the same largest entry, of so many `answers`.  tolerance: of a difference, as a
    share of `largest`.  Of a quantized model: error, its mean difference from itself in float; distance, that of what
    was found from it in float; kept, the share of its answers that are the same in float.  None: it is float.
    cosine: the smallest between two vectors that stand for the same text or token; None: the answers are no vectors.
    unit: what is answered one by one, for people."""

    rows: int
    what: str
    difference: float
    mean: float
    largest: float
    agreement: float
    tolerance: float = TOLERANCE
    error: float | None = None
    answers: int = 0
    distance: float | None = None
    kept: float | None = None
    cosine: float | None = None
    unit: str = "rows"

    @property
    def complaint(self) -> str | None:
        """What is wrong, None where nothing is.

        Rounding in fp32 moves a number over the middle between two codes now and then, and deep models carry that on,
        until their last layers round almost independently. Of a quantized model it is enough that 99.5 % of answers are
        the same, or not measurably fewer, and the mean difference below half of what quantizing itself costs; or that
        what was found is as near to the float model as the quantized model is, and differs from it no more often than
        two independent roundings do.
        """
        allowed = self.tolerance * max(1.0, self.largest)
        if self.difference <= allowed:
            return None
        if self.error is not None:
            if self.mean < ERROR_SHARE * self.error and not self._disagrees(AGREEMENT):
                return None
            if (
                self.distance is not None
                and self.kept is not None
                and self.distance <= NEAR * self.error
                and not self._disagrees(min(AGREEMENT, 2 * self.kept - 1))
            ):
                return None
            return (
                f"its outputs differ from the quantized model's by {self.mean:.1e} on average, and "
                f"{100 * self.agreement:.1f} % of its predictions agree; allowed: at most "
                f"{ERROR_SHARE * self.error:.1e} and at least {100 * AGREEMENT:.1f} %"
            )
        return f"its outputs differ from the model's by {self.difference:.1e}, allowed: at most {allowed:.1e}"

    def _disagrees(self, least: float) -> bool:
        """Whether so many other answers would come up in fewer than 5 of 100 checks of a file that gives `least` of
        them alike: at 99.5 % of 256 answers four or more do, where two are 99.2 %."""
        if self.agreement >= least or not 0 < self.answers <= MANY:
            return self.agreement < least
        if least <= 0:
            return False
        n, changed = self.answers, round((1 - self.agreement) * self.answers)
        one, other = math.log(least), math.log(1 - least)
        # Binomial, by logarithms: the numbers of ways are too large for floats.
        ways = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(changed))
        fewer = sum(math.exp(way + k * other + (n - k) * one) for k, way in enumerate(ways))
        return 1 - fewer < RARE

    def require(self, what: str, where: str, *, why: str | None = "nothing was written", do: str | None = None) -> None:
        """Raise UserError where something is wrong. what: answers in the model's place.  where: the model is."""
        if self.complaint is not None:
            found = f"{self.complaint}; {why}" if why else self.complaint
            raise UserError(f"{what} does not match the model", where=where, why=found, do=do, code=ExitCode.DATA)

    @property
    def figures(self) -> str:
        same = f"agreement {100 * self.agreement:.1f} %"
        if self.cosine is not None:
            same = f"smallest cosine {self.cosine:.6f}"
        return f"largest difference {self.difference:.1e}, {same}"

    def sentence(self) -> str:
        return f"checked on {self.rows} {self.unit} of {self.what}: {self.figures}"


@dataclass(frozen=True)
class ReferenceOutputs:
    """A model's own answers to `batches`, computed once for all that answers in its place.

    what: the rows are, for people.  unrounded: the answers of a quantized model in float, None of a float one.
    vectors: whether the answers are vectors, of which no entry stands for a class.
    """

    batches: Sequence[Batch]
    answers: Sequence[np.ndarray]
    what: str
    unrounded: Sequence[np.ndarray] | None = None
    vectors: bool = False

    def check(self, found: Answer, tolerance: float = TOLERANCE) -> Check:
        """How far `found` is from the model on the same rows."""
        answers = [found(batch) for batch in self.batches]
        apart = [np.abs(left - right) for left, right in zip(answers, self.answers, strict=True)]
        floats = self.unrounded
        return Check(
            rows=sum(batch.rows for batch in self.batches),
            what=self.what,
            difference=float(np.max([each.max() for each in apart])),  # Python's max would forget a NaN
            mean=_mean(apart),
            largest=float(np.max([np.abs(each).max() for each in self.answers])),
            agreement=_agreement(answers, self.answers),
            tolerance=tolerance,
            error=None if floats is None else _distance(self.answers, floats),
            answers=sum(each[..., 0].size for each in self.answers),
            distance=None if floats is None else _distance(answers, floats),
            kept=None if floats is None else _agreement(self.answers, floats),
            cosine=_smallest_cosine(answers, self.answers) if self.vectors else None,
            unit="pairs" if any(QUERIES in batch.extra for batch in self.batches) else "rows",
        )


def compute_reference(model: Model, head: str | None, batches: Sequence[Batch], what: str) -> ReferenceOutputs:
    """The answers of a model, and of a quantized one also those of its floats. Of a model with early exits or
    dropped tokens, rows that rounding decides about are left out."""
    if head == "task" and (model.exits or model.config.kept_tokens):
        batches = _drop_close_rows(model, batches)
    answer = model_answer(model, head)
    answers = [answer(batch) for batch in batches]
    vectors = head is None or model.head_configs[head].kind == "embedding"
    if not list_quantized_modules(model):
        return ReferenceOutputs(batches, answers, what, vectors=vectors)
    set_mode(model, "float")
    try:
        return ReferenceOutputs(batches, answers, what, [answer(batch) for batch in batches], vectors)
    finally:
        set_mode(model, "quantized")


def _drop_close_rows(model: Model, batches: Sequence[Batch]) -> Sequence[Batch]:
    """All rows where none would be left."""
    device, kept = model.encoder.embeddings.word.weight.device, []
    with torch.inference_mode():
        for batch in batches:
            there = batch.to(device)
            clear = (
                model.answer_early(there).margins > CLOSE
                if model.exits
                else model.keep_tokens(there).find_margins() > CLOSE_SHARE
            )
            rows = np.flatnonzero(clear.cpu().numpy())
            kept += [take_rows(batch.on_host, rows)] if len(rows) else []
    return kept or batches


def _distance(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float:
    return _mean([np.abs(one - other) for one, other in zip(left, right, strict=True)])


def _mean(parts: Sequence[np.ndarray]) -> float:
    return float(sum(part.sum(dtype=np.float64) for part in parts) / sum(part.size for part in parts))


def _agreement(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float:
    """Share of answers with the same largest entry; of single scores with the same sign."""
    same = [_choices(one) == _choices(other) for one, other in zip(left, right, strict=True)]
    return float(sum(int(each.sum()) for each in same) / sum(each.size for each in same))


def _smallest_cosine(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float:
    """Between vectors in the same place; 1 of two without a direction."""
    smallest = 1.0
    for one, other in zip(left, right, strict=True):
        lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
        products = (one * other).sum(-1)
        smallest = min(smallest, float((products[lengths > 0] / lengths[lengths > 0]).min(initial=1.0)))
    return smallest


def _choices(answers: np.ndarray) -> np.ndarray:
    if answers.ndim == 1 or answers.shape[-1] == 1:
        answers = np.stack([answers, -answers], -1)
    return answers.argmax(-1)


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

    return lambda batch: answer_in(session.run(batch))
