"""The way of a row through the models of a cascade: from the fastest on, until one of them is sure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from compress.contracts import Batch, EncoderOutput, Needs
from compress.data.batches.examples import TEXTS, TextSource, collate, take_rows
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.cascade import Stage
from evaluation.cascade import compute_confidence

Answer = Callable[[Batch], torch.Tensor]


@dataclass(frozen=True)
class Route:
    """How rows pass through the models. stages: of each, its temperature and threshold.  tokenizers: of each; None
    where it reads the tokens of the first one."""

    stages: Sequence[Stage]
    tokenizers: Sequence[Tokenizer | None]

    def follow(self, batch: Batch, answers: Sequence[Answer]) -> tuple[torch.Tensor, np.ndarray]:
        """((B, C) fp32 logits on the CPU, each row's divided by the temperature of the model that answers it; (B,) the
        place of that model). answers: what computes the logits of each model."""
        logits, places = torch.empty(0), np.zeros(batch.rows, dtype=np.int64)
        left = np.arange(batch.rows)
        for place, (stage, answer) in enumerate(zip(self.stages, answers, strict=True)):
            found = answer(batch if place == 0 else self._select(batch, left, place)).detach().float().cpu()
            found = found / stage.temperature
            if place == 0:
                logits = found
            else:
                logits[torch.from_numpy(left)] = found
                places[left] = place
            if stage.threshold is None:
                break
            left = left[compute_confidence(found.numpy()) <= stage.threshold]
            if not len(left):
                break
        return logits, places

    def _select(self, batch: Batch, rows: np.ndarray, place: int) -> Batch:
        tokenizer = self.tokenizers[place]
        if tokenizer is None:
            return take_rows(batch.on_host, rows)
        texts: TextSource | None = batch.extra.get(TEXTS)
        if texts is None:
            raise UserError(
                "the models of this cascade have different tokenizers, so that it reads texts, not random tokens",
                where=self.stages[place].name, do="give --data instead of --length",
            )  # fmt: skip
        return collate(texts.take(rows).encoded(tokenizer), np.arange(len(rows)))


class CascadeModel(nn.Module):
    """The networks of a cascade as one, so that parameters and operations are counted as of any: rows take their
    route, so that operations are those of real rows."""

    def __init__(self, route: Route, models: Sequence[Model]) -> None:
        super().__init__()
        self.members = nn.ModuleList(models)
        self._route = route

    def embedding_parameter_names(self) -> list[str]:
        """Of all networks."""
        models = [m for m in self.members if isinstance(m, Model)]
        return [f"members.{i}.{name}" for i, m in enumerate(models) for name in m.embedding_parameter_names()]

    def forward(self, batch: Batch, needs: Needs) -> EncoderOutput:
        """The logits alone."""
        device = next(self.parameters()).device
        answers: list[Answer] = [lambda b, m=m: m(b.to(device), Needs(logits=True)).logits for m in self.members]
        return EncoderOutput(last_hidden=torch.empty(0), logits=self._route.follow(batch, answers)[0])
