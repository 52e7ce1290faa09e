"""Objectives over layers against frozen numbers, independent computations, and each other's limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from objective_cases import ar, batch_of, leaf
from torch import Tensor

from compress.contracts import EncoderOutput
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.layer_maps import ModelPair
from compress.errors import UserError
from compress.registry import load

REAL = torch.tensor([1, 1, 1, 1, 1, 1, 1, 0]).bool()  # rows of 4 and 3 tokens
BATCH, WHOLE = batch_of([4, 3]), batch_of([4, 4])


def config(hidden: int, heads: int, layers: int = 1) -> EncoderConfig:
    return EncoderConfig.uniform(vocabulary=9, hidden=hidden, layers=layers, heads=heads, feed_forward=8)


def build(kind: str, pair: ModelPair, **options: Any) -> Any:
    objective = load("compress.objectives", kind)(**options)
    objective.bind(pair)
    return objective.double()


def alike(hidden: int = 6, heads: int = 2) -> ModelPair:
    return ModelPair(config(hidden, heads), config(hidden, heads), ((0, 0),))


def projections(first: float) -> EncoderOutput:
    """q, k, v ar([2, 2, 4, 3]) with b = first, +.1, +.2, real tokens packed."""
    q, k, v = (ar((2, 2, 4, 3), 1, first + b).transpose(1, 2).reshape(8, 2, 3)[REAL] for b in (0, 0.1, 0.2))
    return EncoderOutput(torch.zeros(7, 6, dtype=torch.float64), queries=(q,), keys=(k,), values=(v,))


def hidden(b: float) -> EncoderOutput:
    x = ar((8, 6), 1, b)
    return EncoderOutput(x, hidden_states=(x, x))


@pytest.mark.parametrize(
    ("kind", "options", "want"),
    [
        ("minilm", {}, 0.033864644 + 0.033229880),
        ("minilmv2", {"relation_heads": 3}, 0.00803239 + 0.00811052 + 0.00826549),
    ],
)
def test_relations_give_the_frozen_numbers(kind: str, options: dict[str, Any], want: float) -> None:
    value = build(kind, alike(), **options)(projections(0.1), projections(1.1), BATCH)
    assert value.item() == pytest.approx(want, abs=2e-8)


@pytest.mark.parametrize(
    ("kind", "want"), [("hidden_mse", 0.928067802), ("pkd", 1.866091564), ("embeddings", 0.928067802)]
)
def test_hidden_states_give_the_frozen_numbers(kind: str, want: float) -> None:
    assert build(kind, alike())(hidden(0.5), hidden(2.0), WHOLE).item() == pytest.approx(want, abs=1e-9)


def test_attention_scores_give_the_frozen_number_where_all_is_real() -> None:
    """The reference sets masked scores to 0 and averages over padding too; over real pairs that is a known factor."""

    def scores(b: float) -> Tensor:
        q, k = ar((2, 2, 4, 3), 1, b), ar((2, 2, 4, 3), 1, b + 0.1)
        return q @ k.transpose(-1, -2) / 3**0.5

    ours, theirs = scores(0.1), scores(1.1)
    seen = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])[:, None, None, :].bool()
    squares = (ours - theirs).masked_fill(~seen, 0).square()
    assert squares.mean().item() == pytest.approx(0.093856592, abs=1e-9)
    queries = seen.transpose(-1, -2)
    cut = [EncoderOutput(torch.zeros(7, 6), attention_scores=([x[0], x[1][:, :3, :3]],)) for x in (ours, theirs)]
    want = squares.masked_fill(~queries, 0).sum() / (2 * (16 + 9))
    torch.testing.assert_close(build("attention_maps", alike())(*cut, BATCH), want)


def test_attention_kl_is_the_mean_over_heads_and_queries() -> None:
    maps = [ar((2, n, n), 1, b).softmax(-1) for b in (0.1, 1.1) for n in (4, 3)]
    s, t = (EncoderOutput(torch.zeros(7, 6), attentions=(maps[i : i + 2],)) for i in (0, 2))
    rows = [F.kl_div(a.log(), b, reduction="none").sum(-1) for a, b in zip(maps[:2], maps[2:], strict=True)]
    want = torch.cat([r.flatten() for r in rows]).mean()
    torch.testing.assert_close(build("attention_maps", alike(), distance="kl")(s, t, BATCH), want)


def test_relation_heads_split_the_concatenated_heads() -> None:
    """One relation head of the whole width, against the plain formula; widths of the two models differ."""
    q = [ar((7, *shape), 1, b) for shape, b in (((2, 3), 0.1), ((3, 4), 0.4))]
    s, t = (EncoderOutput(x.flatten(1), queries=(x,), keys=(x,), values=(x,)) for x in q)
    pair = ModelPair(config(6, 2), config(12, 3), ((0, 0),))
    total = 0.0
    for part in (slice(0, 4), slice(4, 7)):
        ours, theirs = (
            (x.flatten(1)[part] @ x.flatten(1)[part].T / x.flatten(1).shape[1] ** 0.5).log_softmax(-1) for x in q
        )
        total += F.kl_div(ours, theirs, log_target=True, reduction="sum").item()
    assert build("minilmv2", pair, relation_heads=1)(s, t, BATCH).item() == pytest.approx(3 * total / 7)
    assert build("minilmv2", pair).relation_heads == 1, "six channels are too few for two heads"


def test_cka_forgets_rotation_and_scale_and_sees_the_rest() -> None:
    x = ar((8, 6), 1, 0.3)
    turn = torch.linalg.qr(ar((6, 6), 1, 0.9)).Q
    objective = build("cka", alike())
    assert objective(_two(x), _two(3 * x @ turn + 1), WHOLE).item() == pytest.approx(0, abs=1e-9)
    wide_x = ar((8, 20), 1, 0.3)  # fewer tokens than channels: through the Gram matrices
    centred = wide_x - wide_x.mean(0)
    y = ar((8, 20), 1, 2.0)
    yc = y - y.mean(0)
    want = 1 - (centred.T @ yc).square().sum() / ((centred.T @ centred).norm() * (yc.T @ yc).norm())
    torch.testing.assert_close(build("cka", alike(20))(_two(wide_x), _two(y), WHOLE), want)


def _two(x: Tensor) -> EncoderOutput:
    return EncoderOutput(x, hidden_states=(x, x))


def test_cka_of_equal_tokens_is_finite() -> None:
    x = leaf(torch.ones(8, 6, dtype=torch.float64))
    value = build("cka", alike())(_two(x), _two(ar((8, 6))), WHOLE)
    value.backward()
    assert value.isfinite()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_similarity_formula() -> None:
    s, t = ar((8, 6), 1, 0.3), ar((8, 6), 1, 2.0)

    def gram(x: Tensor) -> Tensor:
        rows = torch.stack([x[:4].mean(0), x[4:].mean(0)])
        return F.normalize(rows @ rows.T, dim=1)

    want = (gram(s) - gram(t)).square().sum() / 4
    torch.testing.assert_close(build("similarity", alike())(_two(s), _two(t), WHOLE), want)
    rows = torch.stack([s[0], s[4]])
    one = F.normalize(rows @ rows.T, dim=1)
    rows = torch.stack([t[0], t[4]])
    other = F.normalize(rows @ rows.T, dim=1)
    value = build("similarity", alike(), rows="first")(_two(s), _two(t), WHOLE)
    torch.testing.assert_close(value, (one - other).square().sum() / 4)


def test_contrastive_prefers_the_own_row() -> None:
    x = ar((8, 6), 1, 0.3)
    objective = build("contrastive", alike(), temperature=0.05)
    swapped = torch.cat([x[4:], x[:4]])
    assert objective(_two(x), _two(x), WHOLE) < objective(_two(x), _two(swapped), WHOLE)
    alone = batch_of([8])
    assert objective(_two(x), _two(swapped), alone).item() == 0.0


def test_decoupled_kd_with_equal_parts_is_ordinary_distillation() -> None:
    """KL(t‖s) = TCKD + (1 − p_t)·NCKD (eq. 7 of the paper): the weighing that DKD takes apart."""
    s, t, labels = leaf(ar((1, 4), 2, 0.3)), ar((1, 4), 2, 1.1), torch.tensor([2])
    batch = batch_of([3], labels=labels)
    p = (t / 4).softmax(1)
    out = [EncoderOutput(torch.zeros(3, 6), logits=x) for x in (s, t)]
    value = load("compress.objectives", "decoupled_kd")(alpha=1.0, beta=1 - p[0, 2].item(), temperature=4.0)(
        *out, batch
    )
    plain = load("compress.objectives", "soft_targets")(temperature=4.0)(*out, batch)
    torch.testing.assert_close(value, plain)


def test_decoupled_kd_reads_rows_of_one_class() -> None:
    part = load("compress.objectives", "decoupled_kd")
    batch = batch_of([3, 2], labels=torch.tensor([1, -100]))
    s, t = ar((2, 2), 2, 0.3), ar((2, 2), 2, 1.1)
    out = [EncoderOutput(torch.zeros(5, 6), logits=x) for x in (s, t)]
    assert part().count(batch) == 2  # with and without a label
    both = F.kl_div((s / 4).log_softmax(1), (t / 4).log_softmax(1), log_target=True, reduction="batchmean") * 16
    torch.testing.assert_close(part()(*out, batch), both)  # two classes: the second part is zero
    with pytest.raises(UserError, match="needs one class per row"):
        part().count(replace(batch, labels=torch.tensor([0.5, 1.0])))
    with pytest.raises(UserError, match="alpha and beta are both 0"):
        part(alpha=0.0, beta=0.0)


def test_projections_train_and_start_as_a_change_of_basis() -> None:
    pair = ModelPair(config(6, 2, 2), config(12, 3, 2), ((0, 0), (1, 1)))
    objective = build("hidden_mse", pair)
    assert sum(p.numel() for p in objective.parameters()) == 6 * 12 + 12, "one for all layers"
    x = ar((8, 6), 1, 0.3)
    torch.testing.assert_close(objective.maps(x, 0).norm(dim=1), x.norm(dim=1), atol=1e-6, rtol=1e-6)
    assert len(build("hidden_mse", pair, projection="per-layer").maps.maps) == 2
    assert not list(build("hidden_mse", alike()).parameters())
    again = build("hidden_mse", pair)
    assert all(torch.equal(a, b) for a, b in zip(objective.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(
    ("kind", "options", "pair", "message"),
    [
        ("hidden_mse", {"projection": "none"}, ModelPair(config(6, 2), config(12, 2), ((0, 0),)), "different widths"),
        (
            "attention_maps",
            {},
            ModelPair(config(6, 2), config(6, 3), ((0, 0),)),
            "student layer 0 has 2 heads, teacher layer 0 has 3",
        ),
        ("minilm", {}, ModelPair(config(6, 2), config(6, 3), ((0, 0),)), "use minilmv2"),
        ("minilm", {"teacher_layer": 4}, alike(), "layer 4 does not exist: allowed: -1..0"),
        ("minilmv2", {"relation_heads": 4}, alike(), "4 relation heads do not divide both attention widths"),
    ],
)
def test_models_that_cannot_be_compared(kind: str, options: dict[str, Any], pair: ModelPair, message: str) -> None:
    with pytest.raises(UserError) as caught:
        build(kind, pair, **options)
    assert message.replace("allowed: ", "") in str(caught.value).replace("allowed: ", "")


def test_an_objective_that_was_not_bound_says_so() -> None:
    objective = load("compress.objectives", "similarity")()
    with pytest.raises(UserError, match=r"needs bind\(models\) first"):
        objective(hidden(0.5), hidden(2.0), WHOLE)
