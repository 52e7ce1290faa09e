"""LoRA (Hu et al. 2021, arXiv 2106.09685): a low-rank change of each matrix is trained, then added to it.

The model folder is an ordinary one: adapters are merged into the weights when training ends. Written for this encoder,
since peft wraps only torch's own linear layers, and layers here may share a matrix.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.unsupported import refuse_low_rank, refuse_quantized, refuse_sparse
from compress.encoder.modules.lora import attach_adapters, merge_adapters
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.stages.finetune.tunings._base import Base, freeze_encoder

Targets = Literal["all", "attention", "query_value"]
PARTS = {
    "all": ("attention.", "feed_forward.", "pooler."),
    "attention": ("attention.",),
    "query_value": ("attention.query", "attention.value"),
}
"""Targets → how the names of the linear layers begin, after the layer's own."""


class Tuning(Base):
    """Train an adapter of rank `rank` for every linear layer that `targets` names, and the task head.

    What an adapter adds is scaled by `alpha` / `rank`; null: twice the rank. `dropout`: of the adapters' inputs.
    `targets` is all (of the layers and the pooler), attention or query_value (as in the paper).
    """

    rate: ClassVar[float] = 10.0

    def __init__(
        self,
        *,
        rank: Annotated[int, Field(ge=1, le=65_536)] = 8,
        alpha: Annotated[float | None, Field(gt=0)] = None,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        targets: Targets = "all",
    ) -> None:
        self.rank, self.dropout, self.targets = rank, dropout, targets
        self.alpha = 2.0 * rank if alpha is None else alpha

    def check(self, config: EncoderConfig, where: str) -> None:
        """Raises UserError for a rank above the width, and for matrices into which nothing can be merged."""
        refuse_quantized(config, "LoRA", where)
        refuse_sparse(config, "LoRA", where)
        refuse_low_rank(config, "LoRA", where, "use --tune bitfit, last-N or all")
        sizes = [shape.sizes(config.hidden, gated=config.gated) for shape in config.layers]
        least = min(min(size) for matrices in sizes for name, size in matrices.items() if self._adapts(name))
        if self.rank > least:
            why = f"the narrowest matrix it adapts has width {least}"
            raise UserError(f"LoRA rank {self.rank} is too large", where=where, why=why, do=f"use 1 to {least}")

    def apply(self, model: Model, generator: torch.Generator, *, new_pooler: bool = False) -> None:
        """Freeze the encoder and give it adapters."""
        freeze_encoder(model, new_pooler)
        chosen = lambda name: self._takes(name) and not (new_pooler and name.startswith("pooler."))  # noqa: E731
        attach_adapters(
            model, chosen, rank=self.rank, alpha=self.alpha, dropout=self.dropout, generator=generator
        )  # fmt: skip

    def finish(self, model: Model) -> None:
        """Merge the adapters into the weights."""
        merge_adapters(model)

    def _takes(self, name: str) -> bool:
        """Whether a module of the encoder gets an adapter: `layers.0.attention.query`, `pooler.dense`."""
        return self._adapts(name.split(".", 2)[2] if name.startswith("layers.") else name)

    def _adapts(self, name: str) -> bool:
        return name.startswith(PARTS[self.targets])
