"""The cosine of hidden states on held-out text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compress.contracts import EncoderOutput, Needs
from compress.stages.distill import states


class Numbered(nn.Module):
    """Its states are a function of the pieces."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.table = torch.randn(9, 4, generator=torch.Generator().manual_seed(seed))
        self.asked = 0

    def forward(self, batch: Any, needs: Needs) -> EncoderOutput:
        self.asked += 1
        return EncoderOutput(last_hidden=self.table[batch.ids])


def held_out(*rows: list[int]) -> list[Any]:
    return [SimpleNamespace(ids=torch.tensor(ids), tokens=len(ids)) for ids in rows]


def test_it_is_the_mean_over_all_tokens_and_the_teacher_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batches, student, teacher = held_out([1, 2, 3], [4], [5, 6]), Numbered(0), Numbered(1)
    monkeypatch.setattr(states, "encode_validation", lambda *_: batches)
    monkeypatch.setattr(states, "outputs_of", lambda module, some, *_: ((b, module(b, Needs())) for b in some))
    context: Any = SimpleNamespace(device="cpu")
    validate = states.state_validation(None, lambda: teacher, context)  # pyright: ignore[reportArgumentType]
    ids = torch.arange(1, 7)
    expected = F.cosine_similarity(student.table[ids], teacher.table[ids], dim=-1).mean()
    for _ in range(2):
        assert validate(student)[states.STATES] == pytest.approx(float(expected), abs=1e-6)
    assert validate(teacher)[states.STATES] == pytest.approx(1.0)
    assert teacher.asked == 3 + 3, "once for each text, and as the student in the last line"


@pytest.mark.parametrize(("most", "kept"), [(100, 8), (40, 8), (39, 4), (10, 2), (5, 1), (1, 1)])
def test_batches_are_taken_evenly_until_there_are_so_many_tokens(most: int, kept: int) -> None:
    batches = held_out(*([[1] * 5] * 8))
    found = states.take_tokens(batches, most)
    assert len(found) == kept
    assert found[0] is batches[0]
    assert sum(batch.tokens for batch in found) <= max(most, 5)
