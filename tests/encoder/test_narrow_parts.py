"""Parts of a narrower model one by one: which neurons a head keeps, and the best cut of scores and values."""

from __future__ import annotations

import pytest
import torch
from encoder_helpers import VARIATIONS, model
from torch import Tensor

from compress.encoder.config.encoder import LayerShape
from compress.encoder.modules.heads import DenseHead
from compress.encoder.modules.layers import EncoderLayer
from compress.encoder.reshape import narrow_layers
from compress.encoder.reshape.basis import build_identity_basis, draw_random_basis, select_channels
from compress.encoder.reshape.narrow_heads import heads, select_most_read
from compress.encoder.reshape.narrow_method import Narrowing


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_neurons_are_kept_by_what_reads_them_over_all_readers() -> None:
    first = torch.tensor([[1.0, 0, 3, 0]]).double()
    second = torch.tensor([[0.0, 4, 0, 0], [2, 0, 0, 0]]).double()
    assert select_most_read([first], 4, 2).tolist() == [0, 2]
    assert select_most_read([first, second], 4, 2).tolist() == [1, 2]
    assert select_most_read([torch.zeros(1, 4)], 4, 2).tolist() == [0, 1], "of equals the first"
    assert select_most_read([], 6, 3).tolist() == [0, 2, 4], "with no reader evenly"
    assert select_most_read([first], 4, 4).tolist() == [0, 1, 2, 3]


def test_heads_on_all_channels_stay_as_they_are() -> None:
    whole = model(VARIATIONS["bert"])
    same = build_identity_basis(16)
    state = heads(whole, same, same, even=False)
    assert set(state) == {n for n in whole.state_dict() if n.startswith(("heads.", "encoder.pooler."))}
    for name, tensor in state.items():
        torch.testing.assert_close(tensor.float(), whole.state_dict()[name])


@pytest.mark.parametrize("even", [True, False])
def test_the_pooler_and_its_readers_keep_the_same_neurons(even: bool) -> None:
    """Of a random basis no neuron of the pooler is a channel: then those that the heads read most are kept."""
    whole = model(VARIATIONS["bert"])
    stream = draw_random_basis(16, 6, torch.Generator().manual_seed(0))
    state = heads(whole, stream, stream, even=even)
    assert whole.encoder.pooler is not None
    plain = whole.encoder.pooler.dense.bias.detach().double()
    kept = [int((plain == value).nonzero()) for value in state["encoder.pooler.dense.bias"]]
    assert len(set(kept)) == 6
    for name in ("task", "pair"):
        wanted = whole.state_dict()[f"heads.{name}.classifier.weight"].double()[:, kept]
        torch.testing.assert_close(state[f"heads.{name}.classifier.weight"], wanted)
    chosen = select_channels(16, torch.tensor([1, 4, 9]))
    narrow = heads(whole, chosen, chosen, even=True)
    torch.testing.assert_close(narrow["encoder.pooler.dense.bias"], plain[[1, 4, 9]])


def test_a_head_of_its_own_dense_layer_answers_as_far_as_its_neurons_go() -> None:
    """With the neurons that nothing reads left out, the answers are the same."""
    whole = model(VARIATIONS["roberta"])
    head = whole.heads["task"]
    assert isinstance(head, DenseHead)
    with torch.no_grad():
        head.classifier.weight[:, 8:] = 0
    stream = select_channels(16, torch.arange(8))
    state = heads(whole, stream, stream, even=False)
    x = torch.zeros(3, 16)
    x[:, :8] = drawn(3, 8).float()
    small = x[:, :8].double() @ state["heads.task.dense.weight"].T + state["heads.task.dense.bias"]
    answer = small.tanh() @ state["heads.task.classifier.weight"].T + state["heads.task.classifier.bias"]
    torch.testing.assert_close(answer.float(), head(x, None))


def test_scores_are_cut_to_the_best_of_their_rank() -> None:
    """The norm of what is lost is that of the singular values left out (Eckart and Young)."""
    q, k = drawn(6, 5, seed=1), drawn(6, 5, seed=2)
    root = drawn(5, 5, seed=3)
    small_q, small_k = narrow_layers._cut_scores(q, k, root, 2, 1.0)
    assert small_q.shape == small_k.shape == (2, 5)
    whole, part = ((root.T @ a.T @ b @ root) for a, b in ((q, k), (small_q, small_k)))
    singular = torch.linalg.svdvals(whole)
    torch.testing.assert_close((whole - part).norm(), singular[2:].norm())


def test_values_are_cut_to_the_best_of_their_rank() -> None:
    v, o, root = drawn(6, 5, seed=1), drawn(7, 6, seed=2), drawn(5, 5, seed=3)
    small_v, small_o = narrow_layers._cut_values(v, o, root, 3)
    assert (small_v.shape, small_o.shape) == ((3, 5), (7, 3))
    whole, part = o @ v @ root, small_o @ small_v @ root
    torch.testing.assert_close((whole - part).norm(), torch.linalg.svdvals(whole)[3:].norm())


def test_what_carries_nothing_gives_zeros_and_no_nan() -> None:
    zero, root = torch.zeros(4, 5).double(), drawn(5, 5)
    scores, values = (
        narrow_layers._cut_scores(zero, zero, root, 2, 1.0),
        narrow_layers._cut_values(zero, drawn(7, 4), root, 2),
    )
    assert not any(made.isnan().any() for made in (*scores, *values))
    rank_one = drawn(4, 1) @ drawn(1, 5)
    small_v, small_o = narrow_layers._cut_values(rank_one, drawn(7, 4), root, 2)
    torch.testing.assert_close(small_o @ small_v @ root, drawn(7, 4) @ rank_one @ root)


def test_the_root_of_second_moments_that_rounding_made_negative() -> None:
    x = drawn(9, 3) @ drawn(3, 6)
    second = x.T @ x - 1e-9 * torch.eye(6)
    root = narrow_layers._root(second)
    assert not root.isnan().any()
    torch.testing.assert_close(root @ root.T, second, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("old", "new"), [(8, 4), (8, 2), (12, 6), (6, 6)])
def test_rotary_channels_stay_with_their_partner(old: int, new: int) -> None:
    kept = narrow_layers._pairs(old, new).tolist()
    assert len(kept) == new
    assert [channel + old // 2 for channel in kept[: new // 2]] == kept[new // 2 :]


def test_heads_are_ranked_by_what_they_write_on_real_input() -> None:
    """A head with large weights whose context is always zero writes nothing."""
    output = torch.ones(3, 4, 2).double()
    output[0] *= 100
    output[2] *= 2
    context = torch.eye(7).double()
    context[:2, :2] = 0
    assert narrow_layers._written(output, context).tolist() == [0, 8, 32]


@pytest.mark.parametrize("name", ["bert", "rotary", "modernbert", "mpnet"])
def test_a_layer_that_keeps_its_shape_is_the_same_in_every_method(name: str) -> None:
    whole = model(VARIATIONS[name])
    config, source = whole.config, whole.encoder.layers[1]
    assert isinstance(source, EncoderLayer)
    how = Narrowing("projection", torch.Generator().manual_seed(0), None)
    made = narrow_layers.layer(source, config.layers[1], how, build_identity_basis(16), config)
    state = source.state_dict()
    assert set(made) == {name for name in state if not name.startswith("attention.relative") or name in made}
    for part, tensor in made.items():
        torch.testing.assert_close(tensor.float(), state[part])


def test_a_gated_layer_keeps_the_gate_of_each_neuron() -> None:
    whole = model(VARIATIONS["modernbert"])
    source, how = whole.encoder.layers[1], Narrowing("selection", torch.Generator(), None)
    assert isinstance(source, EncoderLayer)
    shape = LayerShape(4, 4, 8)
    made = narrow_layers.layer(source, shape, how, build_identity_basis(16), whole.config)
    up = source.feed_forward.up.weight.detach().double()
    kept = [0, 3, 6, 9, 12, 15, 18, 21]
    torch.testing.assert_close(made["feed_forward.up.weight"], torch.cat([up[:24][kept], up[24:][kept]]))
