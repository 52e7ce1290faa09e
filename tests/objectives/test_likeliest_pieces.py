"""The vocabulary loss with a teacher of whom the k likeliest pieces are known, and the weight of all others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import ar, batch_of, leaf, vocabulary_of
from torch import Tensor

from compress.contracts import EncoderOutput, TopLogits
from compress.errors import UserError
from compress.objectives import soft_targets
from compress.objectives._vocabulary import divergence


def likeliest(logits: Tensor, k: int, *temperatures: float, positions: Tensor | None = None) -> TopLogits:
    """(n, V) → what a cache would keep."""
    top, ids = logits.topk(k, dim=1)
    others = (logits - top[:, :1]).scatter(1, ids, float("-inf"))
    tails = {t: (others / t).logsumexp(1) for t in temperatures}
    return TopLogits(ids, top - top[:, :1], tails, logits.shape[1], positions)


def joined(s: Tensor, t: Tensor, k: int, temperature: float) -> Tensor:
    """The formula, by summing probabilities: k outcomes and "any other"."""
    p, q = (F.softmax(x / temperature, 1) for x in (s, t))
    at = t.topk(k, dim=1).indices
    inside = torch.zeros_like(q, dtype=torch.bool).scatter(1, at, True)
    parts = [torch.cat([x.gather(1, at), (x * ~inside).sum(1, keepdim=True)], 1) for x in (p, q)]
    terms = torch.where(parts[1] > 0, parts[1] * (parts[1].log() - parts[0].clamp_min(1e-300).log()), 0.0)
    return terms.sum(1).mean() * temperature**2


@settings(max_examples=scaled(40), deadline=None)
@given(
    rows=st.integers(1, 9),
    vocabulary=st.integers(2, 40),
    share=st.floats(0, 1),
    temperature=st.floats(0.3, 10),
    scale=st.floats(0.01, 8),
)
def test_value_and_gradient_are_those_of_the_formula(
    rows: int, vocabulary: int, share: float, temperature: float, scale: float
) -> None:
    k = max(1, round(share * vocabulary))
    s, t = ar((rows, vocabulary), scale, 0.2), ar((rows, vocabulary), scale, 0.9)
    ours, plain = leaf(s), leaf(s)
    value = divergence(ours, likeliest(t, k, temperature), None, temperature)
    value.backward()
    want = joined(plain, t, k, temperature)
    want.backward()
    torch.testing.assert_close(value, want, rtol=1e-8, atol=1e-11 * temperature**2)
    torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-7, atol=1e-12)
    full = divergence(leaf(s), vocabulary_of(t), None, temperature)
    assert value <= full + 1e-11 * temperature**2, "joining outcomes only takes away from a divergence"


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_with_the_whole_vocabulary_it_is_the_full_loss(temperature: float, dtype: torch.dtype) -> None:
    s, t = ar((7, 11), 3, 0.2).to(dtype), ar((7, 11), 3, 0.9).to(dtype)
    ours, plain = leaf(s), leaf(s)
    value = divergence(ours, likeliest(t, 11, temperature), None, temperature)
    want = divergence(plain, vocabulary_of(t), None, temperature)
    (value + 0).backward()
    (want + 0).backward()
    exact = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(value, want, **exact)
    torch.testing.assert_close(ours.grad, plain.grad, **exact)


def test_a_student_that_agrees_on_the_likeliest_and_on_the_rest_together_is_left_alone() -> None:
    t = ar((3, 8), 2, 0.4)
    s = t.clone()
    for row, ids in zip(s, likeliest(t, 3, 1.0).ids, strict=True):
        rest = [i for i in range(8) if i not in ids.tolist()]
        row[rest] = row[rest].flip(0)  # the others change places: together they weigh the same
    ours = leaf(s)
    value = divergence(ours, likeliest(t, 3, 1.0), None, 1.0)
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(ours.grad, torch.zeros_like(s), rtol=0, atol=1e-12)


@pytest.mark.parametrize("held", ["all", "masked"])
def test_soft_targets_read_it_in_place_of_the_vocabulary(held: str) -> None:
    batch = batch_of([3, 2], mlm_positions=torch.tensor([1, 4]), mlm_labels=torch.tensor([0, 1]))
    s, t = ar((5, 6), 1, 0.2), ar((5, 6), 1, 0.9)
    at = batch.mlm_positions
    assert at is not None
    student = EncoderOutput(last_hidden=s, vocabulary=vocabulary_of(leaf(s)))
    kept = likeliest(t, 2, 2.0) if held == "all" else likeliest(t[at], 2, 2.0, positions=at)
    teacher = EncoderOutput(last_hidden=t, likeliest=kept)
    objective = soft_targets.Objective(on="vocabulary", positions="masked")
    torch.testing.assert_close(objective(student, teacher, batch), joined(s[at], t[at], 2, 2.0))


def test_a_temperature_that_was_not_kept_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        divergence(ar((2, 6)), likeliest(ar((2, 6)), 2, 1.0, 2.0), None, 4.0)
    assert caught.value.line() == (
        "the cached teacher outputs are for temperature 1, 2, not 4; rebuild the cache with this recipe, or cache all "
        "logits (cache.top_k: null)"
    )


def test_other_vocabularies_are_refused() -> None:
    with pytest.raises(UserError, match="have different vocabularies"):
        divergence(ar((2, 5)), likeliest(ar((2, 6)), 2, 1.0), None, 1.0)
