"""The moving average of a range: by hand, through batches without numbers, and still once it is told to be."""

from __future__ import annotations

import pytest
import torch

from compress.errors import UserError
from compress.quantizers.ema import Quantizer


def made(*, symmetric: bool = False) -> Quantizer:
    return Quantizer(momentum=0.75, symmetric=symmetric)


def test_the_first_batch_is_the_average_and_later_ones_move_it() -> None:
    quantizer = made()
    quantizer.observe(torch.tensor([-2.0, 6.0]))
    assert quantizer.average.tolist() == [-2, 6]
    quantizer.observe(torch.tensor([[-6.0], [2.0]]))
    assert quantizer.average.tolist() == [-3, 5]
    quantizer.freeze()
    assert float(quantizer.scale) == pytest.approx(8 / 255)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)])
def test_a_batch_without_numbers_moves_nothing(shape: tuple[int, ...]) -> None:
    """Such as that of a masked-LM head when no token of a batch was masked."""
    quantizer = made()
    quantizer.observe(torch.zeros(shape))
    assert bool(quantizer.average.isnan().all())
    quantizer.observe(torch.tensor([-1.0, 3.0]))
    quantizer.freeze()
    quantizer.train()
    before = quantizer.scale.clone()
    assert quantizer(torch.zeros(shape)).shape == shape
    assert quantizer.average.tolist() == [-1, 3]
    assert torch.equal(quantizer.scale, before)


def test_it_moves_in_training_alone() -> None:
    quantizer = made()
    quantizer.observe(torch.tensor([-1.0, 1.0]))
    quantizer.freeze()
    wide = torch.tensor([-9.0, 9.0])
    quantizer.eval()
    quantizer(wide)
    quantizer.train()
    with torch.no_grad():
        quantizer(wide)
    quantizer.still = True
    quantizer(wide)
    assert quantizer.average.tolist() == [-1, 1]
    quantizer.still = False
    out = quantizer(wide.requires_grad_())
    assert quantizer.average.tolist() == [-3, 3]
    assert float(out.detach().abs().max()) == pytest.approx(3, abs=0.02), "what lies beyond the average is clamped"


def test_gradients_stop_where_the_range_does() -> None:
    quantizer = made()
    quantizer.observe(torch.tensor([-1.0, 1.0]))
    quantizer.freeze()
    quantizer.still = True
    x = torch.tensor([-5.0, 0.5, 5.0], requires_grad=True)
    quantizer(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 0]


def test_what_no_range_can_be_made_of() -> None:
    with pytest.raises(UserError, match="no activations were observed"):
        made().freeze()
    constant = made()
    constant.observe(torch.full((4,), 2.0))
    with pytest.raises(UserError, match="its input is always 2"):
        constant.freeze()
    broken = made()
    broken.observe(torch.tensor([1.0, float("nan")]))
    broken.observe(torch.tensor([1.0, 2.0]))
    with pytest.raises(UserError, match="NaN or infinity"):
        broken.freeze()


def test_a_symmetric_range_has_no_zero_point() -> None:
    quantizer = made(symmetric=True)
    quantizer.observe(torch.tensor([-1.0, 3.0]))
    quantizer.freeze()
    assert (float(quantizer.scale), float(quantizer.zero_point)) == (pytest.approx(3 / 127), 0)
