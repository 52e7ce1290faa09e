"""A model whose vectors of texts are multiplied by a matrix."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from compress.encoder.config.heads import DenseShape
from compress.encoder.modules.model import Model

TASK = "heads.task.denses"
TABLE = "encoder.embeddings.word.weight"


def project_vectors(model: Model, matrix: Tensor) -> Model:
    """The model with vectors x · matrix (D, K), before they are made of length 1; they are not cut any more. Merged
    into the last Dense module where that is linear, and into the word table of a static model; else one Dense more."""
    config, head = model.config, model.head_configs["task"]
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    width = matrix.shape[1]
    if head.truncate is not None:  # of what was cut off, nothing
        whole = head.denses[-1].width if head.denses else config.hidden
        matrix = torch.nn.functional.pad(matrix, (0, 0, 0, whole - head.truncate))
    if head.denses and not head.denses[-1].tanh:
        last = f"{TASK}.{len(head.denses) - 1}"
        state |= {f"{last}.weight": matrix.T @ state[f"{last}.weight"]}
        if head.denses[-1].bias:
            state[f"{last}.bias"] = state[f"{last}.bias"] @ matrix
        denses = (*head.denses[:-1], dataclasses.replace(head.denses[-1], width=width))
    elif config.is_static and not head.denses:
        state[TABLE] = state[TABLE] @ matrix
        config, denses = dataclasses.replace(config, hidden=width), ()
    else:
        state[f"{TASK}.{len(head.denses)}.weight"] = matrix.T.contiguous()
        denses = (*head.denses, DenseShape(width, bias=False))
    with torch.device("meta"):
        head = dataclasses.replace(head, labels=width, denses=denses, truncate=None)
        made = Model(config, {**model.head_configs, "task": head})
    made.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, assign=True)
    return made.requires_grad_(True)
