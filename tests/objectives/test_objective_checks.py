"""What objectives share: missing outputs are named, and relations are softmaxes of scaled products."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from compress.contracts import EncoderOutput
from compress.errors import UserError
from compress.objectives._common import (
    field,
    get_required,
    is_score,
    is_several,
    make_zero_loss,
    positive,
    same_shape,
    teacher_of,
    vocabulary,
    widen,
)
from compress.objectives._relations import log_relation


def test_missing_outputs_are_named() -> None:
    output = EncoderOutput(last_hidden=torch.zeros(1, 2), pooled=torch.ones(1, 2))
    assert field(output, "pooled", "kd") is output.pooled
    for call, line in (
        (lambda: field(output, "logits", "kd"), "objective kd: the student's output has no logits"),
        (lambda: field(output, "logits", "kd", "teacher"), "objective kd: the teacher's output has no logits"),
        (lambda: vocabulary(output, "mlm"), "objective mlm: the student's output has no vocabulary logits"),
        (lambda: get_required(None, "y", "kd"), "objective kd: the batch has no y; use data with a label column"),
        (lambda: teacher_of(None, "kd"), "objective kd: needs a teacher, but none is given; add --teacher"),
    ):  # fmt: skip
        with pytest.raises(UserError) as error:
            call()
        assert str(error.value) == line


def test_shapes_that_would_broadcast_are_rejected() -> None:
    same_shape(torch.zeros(2, 3), torch.zeros(2, 3), "labels", "kd")
    with pytest.raises(
        UserError, match=r"the teacher's shape is \(2, 1\), the student's \(2, 3\); use models with the"
    ):
        same_shape(torch.zeros(2, 3), torch.zeros(2, 1), "labels", "kd")


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_what_is_not_above_zero(value: float) -> None:
    with pytest.raises(UserError, match=r"^objective kd\.temperature: temperature must be a number above 0: found"):
        positive(value, "temperature", "kd")
    assert positive(2, "temperature", "kd") == 2.0


def test_kinds_of_labels() -> None:
    classes, scores, several = torch.tensor([1, 0]), torch.tensor([0.5]), torch.tensor([[1.0, 0.0]])
    assert [is_score(x) for x in (classes, scores, several)] == [False, True, False]
    assert [is_several(x) for x in (classes, scores, several)] == [False, False, True]


def test_a_loss_over_nothing_is_zero_and_has_a_gradient() -> None:
    for values in (torch.zeros(0, 3, requires_grad=True), torch.ones(2, dtype=torch.bfloat16, requires_grad=True)):
        loss = make_zero_loss(values)
        assert loss.item() == 0
        assert loss.dtype == torch.float32
        loss.backward()
        assert values.grad is not None
        assert not values.grad.any()
    assert widen(torch.ones(1, dtype=torch.float64)).dtype == torch.float64
    assert widen(torch.ones(1, dtype=torch.float16)).dtype == torch.float32


@pytest.mark.parametrize("heads", [None, 1, 4])
def test_relations_beside_numpy(heads: int | None) -> None:
    """Two sequences of three tokens, two heads of width four; regrouped, heads are split anew."""
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 2, 3, 2, 4))
    count = heads or 2
    width = 8 // count
    found = log_relation(*(torch.tensor(x).flatten(2).unflatten(2, (count, -1)).transpose(1, 2) for x in (left, right)))
    assert found.shape == (2, count, 3, 3)
    for n in range(2):
        for h in range(count):
            q, k = (x[n].reshape(3, 8)[:, h * width : (h + 1) * width] for x in (left, right))
            np.testing.assert_allclose(found[n, h].numpy(), log_softmax(q @ k.T / np.sqrt(width), axis=1), atol=1e-12)
