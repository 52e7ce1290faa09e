"""A model that reads longer sequences than it was made for (Longformer, 2004.05150 §5)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.modules.layers import sinusoids
from compress.encoder.modules.model import Model
from compress.errors import UserError

TABLE = "encoder.embeddings.position.weight"


def extend_config(
    config: EncoderConfig, max_positions: int, window: int | None = None, global_tokens: int | None = None
) -> EncoderConfig:
    """`config` with `max_positions`, and with one window and `global_tokens` in every layer where they are given.

    window None: every layer keeps what it sees.  global_tokens None: as many as before, one where windows are new.
    Raises UserError for fewer positions than before, for positions that are no table, for a window or global tokens
    that change nothing.
    """
    if config.positions == "none":
        raise UserError(
            "a model without position embeddings cannot be extended",
            where="encoder.positions",
            why="it only knows distances between tokens, so there is no table to extend",
        )
    if config.positions not in ("learned", "sinusoidal", "sinusoidal_start"):
        raise UserError(
            f"{config.positions} positions cannot be extended",
            where="encoder.positions",
            why="they are computed from distances, so there is no table to extend",
        )
    where = "--max-positions"
    if max_positions < config.max_positions:
        raise UserError(
            f"{max_positions:,} positions are fewer than the model's {config.max_positions:,}",
            where=where,
            do="use --max-length if you only need shorter texts",
        )
    if window is not None and window >= max_positions - 1:
        raise UserError(
            f"a window of {window:,} tokens to each side is too large",
            where="--window",
            why=f"with {max_positions:,} positions every token already attends to all others",
            do="use a smaller window, or none",
        )
    if window is not None and config.kept_tokens is not None:
        raise UserError(
            "the model drops tokens between its layers, so a window cannot count the tokens around one",
            where="--window",
            do="extend it without a window, or extend its parent model",
        )
    windows = config.windows if window is None else (window,) * config.depth
    if global_tokens is None:
        global_tokens = config.global_tokens or (1 if windows and not config.windows else 0)
    elif windows is None and global_tokens:
        raise UserError(
            f"{global_tokens} global tokens need a window",
            where="--global-tokens",
            why="without a window every token already attends to all others",
            do="add --window",
        )
    made = dataclasses.replace(config, max_positions=max_positions, windows=windows, global_tokens=global_tokens)
    if made == config:
        raise UserError(
            f"the model has {max_positions:,} positions already", where=where, do="give more, or change --window"
        )
    return made


def extend(model: Model, config: EncoderConfig) -> Model:
    """A model of `extend_config` with the weights of `model`; only the position table is another.

    A learned table is repeated from its first row in use, as Longformer does: what a layer does with the distance
    between neighbours holds everywhere, but where two copies meet. Fixed sinusoids are computed further.
    """
    state: dict[str, Tensor] = dict(model.state_dict())
    old = state[TABLE]
    if config.positions == "sinusoidal":
        state[TABLE] = sinusoids(config.position_rows, config.width).to(old)
    else:
        first, rows = old[: config.position_offset], old[config.position_offset :]
        at = torch.arange(config.max_positions, device=old.device) % len(rows)
        state[TABLE] = torch.cat([first, rows[at]])
    with torch.device("meta"):
        made = Model(config, model.head_configs)
    made.load_state_dict({name: tensor.detach().clone() for name, tensor in state.items()}, assign=True)
    return made.requires_grad_(True).train(model.training)
