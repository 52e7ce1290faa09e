"""Statistics of a model's layers on calibration text, computed once and shared by all criteria."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.infer.layer_subsets import Layers, subset_outputs
from compress.encoder.infer.prepare import PreparedModel, prepare
from compress.encoder.modules.gates import freeze_weights
from compress.encoder.modules.model import Model
from compress.encoder.reshape.students import take_layers
from compress.errors import ExitCode, UserError
from compress.objectives.hard_labels import Objective as HardLabels
from compress.stages.prune_layers.gates import row_gradients
from evaluation.representation.angles import LayerAngles
from evaluation.representation.cka import LEAST_BLOCKS, MINIBATCH, LayerCKA
from evaluation.representation.hsic import LEAST_ROWS, NonFiniteError, UndefinedError
from evaluation.representation.rows import Taken, rows_of

BLOCKS_WANTED = 4 * LEAST_BLOCKS  # minibatches of CKA, where there is little text


class LayerStudy:
    """What criteria may ask of a model and its text.

    batches: encoded text, with labels where there are any.  steps: the same rows, a few at a time and in random order,
    for what is trained; None: the batches.  seed: of what is drawn.  name: of the model, for messages.  stop: called
    between passes; raises where a signal asked for it.
    """

    def __init__(
        self,
        model: Model,
        batches: Sequence[Batch],
        *,
        steps: Sequence[Batch] | None = None,
        seed: int = 0,
        name: str = "the model",
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        if not batches:
            raise UserError("no text to score layers on", where=name, do="give --data")
        self.model, self.batches, self.seed, self.name, self.stop = model, batches, seed, name, stop
        self.steps = batches if steps is None else steps
        self.depth = model.config.depth
        self._whole: PreparedModel | None = None
        self._hard = HardLabels()
        self._ckas: dict[tuple[object, ...], LayerCKA] = {}
        self._angles: LayerAngles | None = None
        self._losses: dict[Layers, float] = {}
        self._gradients: Tensor | None = None

    # --- representations --------------------------------------------------------------------------------------

    def cka(
        self,
        taken: Taken = "tokens",
        *,
        keep: Sequence[int] | None = None,
        kernel: str = "linear",
        bandwidth: float = 1.0,
    ) -> LayerCKA:
        """Of the embedding output and every layer's output with each other.

        keep: of the model that these layers make.  Raises UserError for a layer whose output is not finite, and for
        too little text.
        """
        kept = tuple(range(self.depth)) if keep is None else tuple(keep)
        key = (taken, kept, kernel, bandwidth)
        if key not in self._ckas:
            rows = sum(b.tokens if taken == "tokens" else b.rows for b in self.batches)
            if rows < LEAST_ROWS:
                raise UserError(
                    f"CKA needs at least {LEAST_ROWS} rows, found {rows}", where=self.name, do="give more text"
                )
            size = max(LEAST_ROWS, min(MINIBATCH, rows // BLOCKS_WANTED))
            found = LayerCKA(size, kernel="rbf" if kernel == "rbf" else "linear", bandwidth=bandwidth)
            for batch, states in self.states(kept):
                self._feed(lambda b=batch, s=states: found.update([rows_of(x, b.cu_seqlens, taken) for x in s]), kept)
            self._ckas[key] = found
        return self._ckas[key]

    def angles(self) -> LayerAngles:
        """Of the embedding output and every layer's output with each other, token by token."""
        if self._angles is None:
            found = LayerAngles()
            for _, states in self.states():
                self._feed(lambda s=states: found.update(s), range(self.depth))
            self._angles = found
        return self._angles

    def states(self, keep: Sequence[int] | None = None) -> Iterator[tuple[Batch, list[Tensor]]]:
        """Batch after batch, the embedding output and every layer's output (T, D), before any final norm."""
        whole = keep is None or len(keep) == self.depth
        prepared = self.whole if whole else prepare(take_layers(self.model, keep or ()))
        final: list[Tensor] = []
        norm = prepared.model.encoder.final_norm  # the last of the hidden states is normed, and no layer's output
        handle = None if norm is None else norm.register_forward_pre_hook(lambda _, given: final.append(given[0]))
        try:
            for batch in self.batches:
                self.stop()
                found = list(prepared(batch, Needs(hidden_states=True)).hidden_states or ())
                yield batch, found if norm is None else [*found[:-1], final.pop()]
        finally:
            if handle is not None:
                handle.remove()

    def _feed(self, update: Callable[[], None], layers: Iterable[int]) -> None:
        try:
            update()
        except NonFiniteError as error:
            at = error.layer or 0
            raise not_finite(list(layers)[at - 1] if at else -1, self.name) from None
        except UndefinedError as error:
            raise UserError(str(error), where=self.name, do="give more text") from None

    # --- losses -----------------------------------------------------------------------------------------------

    def loss(self, keep: Sequence[int]) -> float:
        """Mean loss on the labels of the model that these layers make; its weights are as they were."""
        return self.losses([keep])[tuple(keep)]

    def losses(self, sets: Iterable[Sequence[int]]) -> dict[Layers, float]:
        """The same of many sets of layers; what they have in common at their start is computed once."""
        wanted = [tuple(keep) for keep in sets]
        missing = [keep for keep in dict.fromkeys(wanted) if keep not in self._losses]
        if missing:
            totals, count = dict.fromkeys(missing, 0.0), 0
            for batch in self.batches:
                self.stop()
                for keep, output in subset_outputs(self.whole, batch, missing, Needs(logits=True)):
                    totals[keep] += float(self.summed_loss(output, batch))
                count += self.terms(batch)
            self._losses |= {keep: total / max(1, count) for keep, total in totals.items()}
        return {keep: self._losses[keep] for keep in wanted}

    @property
    def whole(self) -> PreparedModel:
        """The model with all its layers, ready for inference; made on first use."""
        if self._whole is None:
            self._whole = prepare(self.model)
        return self._whole

    def gradients(self) -> Tensor:
        """(layers, rows) derivative of each row's loss by the gate of each layer."""
        if self._gradients is None:
            parts = []
            with freeze_weights(self.model):
                for batch in self.batches:
                    self.stop()
                    parts.append(row_gradients(self.model, batch, self.summed_loss).cpu())
            self._gradients = torch.cat(parts, 1)
        return self._gradients

    def summed_loss(self, output: EncoderOutput, batch: Batch) -> Tensor:
        """On the batch's labels, summed over what has one."""
        return self._hard(output, None, batch) * self.terms(batch)

    def terms(self, batch: Batch) -> int:
        """How many labels a batch has."""
        return 0 if batch.labels is None else self._hard.count(batch)

    @property
    def labelled(self) -> bool:
        """Whether any row has a label."""
        return any(self.terms(batch) for batch in self.batches)


def not_finite(layer: int, where: str) -> UserError:
    """What is said of a layer, -1 the embeddings, that gave a NaN or an infinity."""
    what = "the embedding output" if layer < 0 else f"the output of layer {layer}"
    return UserError(f"{what} is not finite", where=where, do="its weights are damaged", code=ExitCode.DATA)


def neighbours(matrix: np.ndarray) -> list[float]:
    """CKA of each layer's output with the one before it, the embedding output before the first."""
    return [float(matrix[i, i + 1]) for i in range(len(matrix) - 1)]
