"""How near the student's hidden states are to the teacher's on held-out text: validation without a masked-LM head."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from compress.contracts import Batch, BatchSource, Needs, Teacher
from compress.data.batches.evaluation_batches import copy_to_host
from compress.stages.shared.corpora import encode_validation
from compress.stages.shared.shared_pass import collect, share_out
from compress.stages.shared.stage import StageContext
from compress.stages.shared.validation import outputs_of

STATES = "hidden_cosine"
"""The figure: mean cosine of the last hidden states, over the tokens of held-out text."""
MOST_TOKENS = 1 << 15
"""Of held-out text that are compared: the teacher's states of these, 50 MB at width 384, are kept."""


def state_validation(
    source: BatchSource, teacher: Callable[[], Teacher], context: StageContext
) -> Callable[[nn.Module], dict[str, float]]:
    """The mean cosine of the student's and the teacher's last hidden states (T, D), of one width.

    source: the held-out text.  teacher: asked at the first validation, once for each text.
    """
    batches = take_tokens(encode_validation(source, context), MOST_TOKENS)
    theirs: dict[int, torch.Tensor] = {}

    def validate(module: nn.Module) -> dict[str, float]:
        shared, needs = share_out([batch.tokens for batch in batches]), Needs()
        for place in shared:
            if place not in theirs:
                theirs[place] = teacher()(batches[place], needs).last_hidden.float()
        found = outputs_of(module, (batches[place] for place in shared), len(shared), needs, context)
        sums = [
            F.cosine_similarity(output.last_hidden.float(), theirs[place], dim=-1).sum()
            for place, (_, output) in zip(shared, found, strict=True)
        ]
        parts = collect(
            shared, list(zip(map(float, copy_to_host(sums)), (batches[i].tokens for i in shared), strict=True))
        )
        if parts is None:
            return {}
        total, tokens = (sum(column) for column in zip(*parts, strict=True))
        return {STATES: total / max(1, tokens)}

    return validate


def take_tokens(batches: list[Batch], most: int) -> list[Batch]:
    """As many batches as have so many tokens together, at least one, evenly spaced."""
    tokens = sum(batch.tokens for batch in batches)
    step = max(1, -(-tokens // most))
    return batches[::step]
