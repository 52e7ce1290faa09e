"""Second moments of heads and neurons, and sums of squares of matrices, against plain products."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "encoder"))
from encoder_helpers import RELAXED, UNIFORM, VARIATIONS, batch

from compress.encoder.modules.model import Model
from compress.stages.prune_width.importance._common import (
    by_unit,
    compute_joint_losses,
    readers,
    sum_incoming_squares,
    writers,
)
from compress.stages.prune_width.moments import collect


def model(name: str = "bert") -> Any:
    return Model((VARIATIONS | RELAXED)[name]).initialize(1).eval()


def test_moments_are_means_over_all_tokens_whatever_the_batches() -> None:
    one = model()
    together, apart = collect(one, [batch([5, 3, 4])]), collect(one, [batch([5, 3, 4])] * 2)
    for left, right in zip([*together.heads, *together.neurons], [*apart.heads, *apart.neurons], strict=True):
        torch.testing.assert_close(left, right)
    assert [tuple(x.shape) for x in together.heads] == [(4, 4, 4)] * 3
    assert [tuple(x.shape) for x in together.neurons] == [(24,)] * 3
    assert together.stream.mean().item() == pytest.approx(1.0), "every layer counts alike, whatever its scale"


def test_moments_are_those_of_what_the_matrices_read() -> None:
    one, seen = model(), {}
    layer = one.encoder.layers[1]
    hooks = [
        part.register_forward_pre_hook(lambda _, given, name=name: seen.update({name: given[0].double()}))
        for name, part in (("heads", layer.attention.output), ("neurons", layer.feed_forward.down))
    ]
    found = collect(one, [batch([5, 3])])
    for hook in hooks:
        hook.remove()
    second_head = seen["heads"][:, 4:8]
    torch.testing.assert_close(found.heads[1][1], second_head.T @ second_head / 8, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.neurons[1], seen["neurons"].square().mean(0), atol=1e-6, rtol=1e-5)


def test_the_model_is_left_as_it_was_and_a_stop_comes_through() -> None:
    one = model().train()

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(one, [batch([3])], stop)
    assert one.training
    assert all(parameter.requires_grad for parameter in one.parameters())
    assert not any(module._forward_pre_hooks for module in one.modules())


@pytest.mark.parametrize("name", ["bert", "modernbert", "own vectors"])
def test_what_reads_and_writes_a_channel_is_summed_over_layers(name: str) -> None:
    one = model(name)
    before = readers(one), writers(one)
    assert all(part.shape == (16,) and bool((part > 0).all()) for part in before)
    with torch.no_grad():
        layer = one.encoder.layers[0]
        layer.attention.query.weight[:, 3] += 1.0
        layer.feed_forward.down.weight[5] += 1.0
    moved = [(new - old).abs() > 1e-6 for new, old in zip((readers(one), writers(one)), before, strict=True)]
    assert [part.nonzero().flatten().tolist() for part in moved] == [[3], [5]]


def test_a_gate_counts_with_the_neuron_that_it_multiplies() -> None:
    gated = model("modernbert").encoder.layers[0].feed_forward
    rows = gated.up.weight.detach().square().sum(1)
    half = len(rows) // 2
    torch.testing.assert_close(sum_incoming_squares(gated).float(), rows[:half] + rows[half:])
    plain = model().encoder.layers[0].feed_forward
    torch.testing.assert_close(sum_incoming_squares(plain).float(), plain.up.weight.detach().square().sum(1))


def test_modules_of_layers_that_share_are_summed() -> None:
    ones = lambda count: lambda unit, module: torch.ones(count)  # noqa: E731
    scores = by_unit(model("own vectors"), ones(4), ones(24))
    assert [float(x[0]) for x in scores.heads] == [2.0, 1.0]
    assert [float(x[0]) for x in by_unit(Model(UNIFORM), ones(4), ones(24)).heads] == [1.0] * 3


# --- joint losses -------------------------------------------------------------------------------------------------


def test_slopes_of_one_sign_add_up_and_others_cancel() -> None:
    alike = compute_joint_losses(torch.tensor([[1.0, 1.0]]), torch.tensor([1.0, 2.0]))
    assert alike.tolist() == [2.0, 0.5, 0.0]
    against = compute_joint_losses(torch.tensor([[1.0, -1.0]]), torch.tensor([1.0, 2.0]))
    assert against.tolist() == [0.5, 0.5, 0.0], "a cut that takes more never counts as losing less"


def test_the_lowest_go_first_and_of_equal_ones_the_last() -> None:
    gradients = torch.tensor([[3.0, 0.0, 1.0]])
    assert compute_joint_losses(gradients, torch.tensor([9.0, 1.0, 5.0])).tolist() == [8.0, 0.5, 0.0, 0.0]
    assert compute_joint_losses(gradients, torch.tensor([1.0, 1.0, 1.0])).tolist() == [8.0, 0.5, 0.5, 0.0]


def test_one_unit_and_many_rows() -> None:
    assert compute_joint_losses(torch.tensor([[2.0], [0.0]]), torch.tensor([1.0])).tolist() == [1.0, 0.0]
