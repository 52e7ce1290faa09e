"""A model over a part of its vocabulary: the rows of the word table that are left, and what goes with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from compress.encoder.config.unsupported import refuse_quantized
from compress.encoder.modules.model import Model, require_network
from compress.encoder.reshape.indices import row_numbers
from compress.errors import UserError

TABLE, BIAS = "encoder.embeddings.word.weight", "heads.mlm.bias"


def keep_rows(model: Model, rows: Tensor | Sequence[int], where: str = "the model") -> Model:
    """A model of the word rows at `rows` alone, in that order; nothing is shared with `model`.

    rows: (v,) int64, each once. The masked-LM head reads the same table, so its logits are those of these rows, with
    their entries of its bias. Every other weight is the same to the bit, and so is every number that is computed for
    the same rows. Raises UserError for what is no network or no list of whole numbers, for a quantized model, for rows
    that are not there or stand twice, and where the row of `pad_id` would be lost.
    """
    require_network(model)
    rows = row_numbers(rows, "rows")
    config = model.config
    refuse_quantized(config, "removing rows of its word embeddings", where)
    if not len(rows) or int(rows.min()) < 0 or int(rows.max()) >= config.vocabulary or len(rows.unique()) != len(rows):
        raise UserError(
            "these are not distinct rows of the word embeddings",
            where=where,
            why=f"the model has {config.vocabulary:,} rows",
        )
    pad = (rows == config.pad_id).nonzero()
    if not len(pad):
        raise UserError(f"row {config.pad_id} of the word embeddings is the padding token's", where=where, do="keep it")
    small = dataclasses.replace(config, vocabulary=len(rows), pad_id=int(pad))
    with torch.device("meta"):
        made = Model(small, model.head_configs)
    state: dict[str, Tensor] = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for name in (TABLE, BIAS):
        if name in state:
            state[name] = state[name][rows.to(state[name].device)]
    made.load_state_dict({name: state[name].clone() for name in made.state_dict()}, assign=True)
    return made.requires_grad_(True).train(model.training)
