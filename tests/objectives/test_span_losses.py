"""Losses of answer spans: each row's softmax over its own tokens, against transformers and by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from objective_cases import ar, batch_of, leaf
from torch import Tensor

from compress.contracts import Batch, EncoderOutput
from compress.objectives import hard_labels, soft_targets

LENGTHS = [5, 3, 4]
GOLD = torch.tensor([[1, 4], [0, 0], [2, 2]])


def task(logits: Tensor) -> EncoderOutput:
    return EncoderOutput(last_hidden=logits, logits=logits)


def spans(labels: Tensor = GOLD) -> Batch:
    return batch_of(LENGTHS, labels=labels)


def rows(logits: Tensor) -> list[Tensor]:
    return list(logits.split(LENGTHS))


def test_the_loss_is_the_mean_of_start_and_end() -> None:
    logits = ar((12, 2), 2, 0.3)
    want = torch.stack(
        [F.cross_entropy(row[:, k][None], gold[k][None]) for row, gold in zip(rows(logits), GOLD) for k in (0, 1)]
    ).mean()
    torch.testing.assert_close(hard_labels.Objective()(task(logits), None, spans()), want)
    assert hard_labels.Objective().count(spans()) == 3


def test_rows_of_one_length_give_what_transformers_gives() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    stock = transformers.BertForQuestionAnswering(config).eval()
    ids = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        theirs = stock(ids, start_positions=torch.tensor([1, 0]), end_positions=torch.tensor([3, 0]))
    logits = torch.stack([theirs.start_logits, theirs.end_logits], -1).reshape(12, 2)
    batch = batch_of([6, 6], labels=torch.tensor([[1, 3], [0, 0]]))
    torch.testing.assert_close(hard_labels.Objective()(task(logits), None, batch), theirs.loss)


def test_a_row_whose_answer_is_not_known_teaches_nothing() -> None:
    labels = GOLD.clone()
    labels[0] = -100
    logits = leaf(ar((12, 2), 2, 0.3))
    objective = hard_labels.Objective()
    loss = objective(task(logits), None, spans(labels))
    alone = hard_labels.Objective()(task(logits[5:]), None, batch_of(LENGTHS[1:], labels=GOLD[1:]))
    torch.testing.assert_close(loss, alone)
    assert objective.count(spans(labels)) == 2
    loss.backward()
    assert logits.grad is not None
    assert (logits.grad[:5] == 0).all()
    assert torch.isfinite(logits.grad).all()
    nothing = torch.full((3, 2), -100)
    assert objective.count(spans(nothing)) == 0
    assert objective(task(logits), None, spans(nothing)) == 0


def test_smoothing_spreads_over_the_rows_own_tokens() -> None:
    logits = leaf(ar((12, 2), 2, 0.3))
    want = torch.stack(
        [
            F.cross_entropy(row[:, k][None], gold[k][None], label_smoothing=0.2)
            for row, gold in zip(rows(logits), GOLD)
            for k in (0, 1)
        ]
    ).mean()
    loss = hard_labels.Objective(label_smoothing=0.2)(task(logits), None, spans())
    torch.testing.assert_close(loss, want)
    loss.backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_the_distance_to_the_teacher_is_half_of_both_divergences() -> None:
    s, t = leaf(ar((12, 2), 2, 0.3)), ar((12, 2), 2, 0.9)
    want = torch.stack(
        [
            F.kl_div((a[:, k] / 3).log_softmax(0), (b[:, k] / 3).softmax(0), reduction="sum") * 9
            for a, b in zip(rows(s), rows(t))
            for k in (0, 1)
        ]
    ).mean()
    objective = soft_targets.Objective(temperature=3)
    unknown = spans(torch.full((3, 2), -100))  # the teacher needs no answers
    loss = objective(task(s), task(t), unknown)
    torch.testing.assert_close(loss, want)
    assert objective.count(unknown) == 3
    loss.backward()
    assert s.grad is not None
    assert torch.isfinite(s.grad).all()
    assert objective(task(t), task(t), unknown).abs() < 1e-12


def test_a_temperature_for_each_row_is_that_of_its_own_tokens() -> None:
    """The padding of a shorter row is not among the scores whose spread counts."""
    s, t = leaf(ar((12, 2), 2, 0.3)), ar((12, 2), 2, 0.9)
    objective = soft_targets.Objective(temperature=3, per_example=True)
    each = [
        objective(task(a), task(b), batch_of([len(a)], labels=GOLD[:1])) for a, b in zip(rows(s), rows(t), strict=True)
    ]
    loss = objective(task(s), task(t), spans())
    torch.testing.assert_close(loss, torch.stack(each).mean())
    a, b = ((row - row.mean(0)) / row.std(0, correction=0) / 3 for row in (rows(s)[1], rows(t)[1]))
    torch.testing.assert_close(each[1], F.kl_div(a.log_softmax(0), b.softmax(0), reduction="sum") * 9 / 2)
    loss.backward()
    assert s.grad is not None
    assert all(row.any() for row in rows(s.grad))
