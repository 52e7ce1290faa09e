"""Whether what answers in a model's place answers as the model does: both on the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from compress.contracts import Batch, Needs
from compress.encoder.model import Model
from compress.export.session import FileSession

ROWS = 256
TOLERANCE = 1e-4  # of the largest number that the model gives; two fp32 runtimes differ by a tenth of it
BF16_TOLERANCE = 5e-2  # a bf16 number has 8 binary digits, and a deep model adds up what they leave out

Answer = Callable[[Batch], np.ndarray]
"""A packed batch → what a head answers: (B, C), (T, C) of every token, (T, D) of the bare encoder."""


@dataclass(frozen=True)
class Check:
    """What was found. difference, mean: largest and mean absolute difference.  largest: number that the model gave.
    agreement: share of answers with the same largest entry.  tolerance: of a difference, as a share of `largest`."""

    rows: int
    what: str
    difference: float
    mean: float
    largest: float
    agreement: float
    tolerance: float = TOLERANCE

    @property
    def complaint(self) -> str | None:
        """What is wrong, None where nothing is."""
        allowed = self.tolerance * max(1.0, self.largest)
        if self.difference <= allowed:
            return None
        return f"{self.difference:.1e} away from the model, at most {allowed:.1e} is allowed"

    def sentence(self) -> str:
        return (
            f"checked on {self.rows} rows of {self.what}: largest difference {self.difference:.1e}, "
            f"agreement {100 * self.agreement:.1f} %"
        )


def compare(expected: Answer, found: Answer, batches: Sequence[Batch], what: str, tolerance: float) -> Check:
    """Both asked for the same rows. what: these are, for people."""
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
    return Check(rows, what, difference, total / numbers, largest, same / count, tolerance)


def model_answer(model: Model, head: str | None) -> Answer:
    """The model itself on packed tokens. head: whose answer; None: the last hidden states."""
    needs = Needs(
        logits=head == "task", pair_logits=head == "pair", replaced=head == "rtd", mlm="all" if head == "mlm" else None
    )

    device = model.encoder.embeddings.word.weight.device

    def answer(batch: Batch) -> np.ndarray:
        with torch.inference_mode():
            output = model(batch.to(device), needs)
            vocabulary = None if output.vocabulary is None else output.vocabulary.logits()
        wanted = {"task": output.logits, "pair": output.pair_logits, "rtd": output.replaced, "mlm": vocabulary}
        found = output.last_hidden if head is None else wanted[head]
        assert found is not None
        return found.cpu().numpy()

    return answer


def file_answer(session: FileSession) -> Answer:
    """An exported file, whatever head it answers for."""

    def answer(batch: Batch) -> np.ndarray:
        found = session.run(batch)
        if "start_logits" in found:
            return np.stack([found["start_logits"], found["end_logits"]], axis=-1)
        return found["logits"] if "logits" in found else found["last_hidden_state"]

    return answer
