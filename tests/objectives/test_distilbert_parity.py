"""DistilBERT's triple loss against numbers frozen from the published code, and against its formulas written plainly.

The numbers are those of the research code's distiller on `ar` tensors: B=2, S=4, V=7, H=6, T=2, the second row one
token short, labels [-100,3,-100,5] and [-100,0,-100,-100].
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from objective_cases import ar, batch_of, leaf, vocabulary_of
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, VocabularyOutput
from compress.objectives import cosine_hidden, masked_lm, soft_targets

MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]], dtype=torch.bool)
LABELS = torch.tensor([[-100, 3, -100, 5], [-100, 0, -100, -100]])
T = 2.0


def padded(extra: int = 0) -> dict[str, Tensor]:
    """The reference's padded tensors, with `extra` columns of padding full of large numbers."""
    tensors = {
        "s": ar((2, 4, 7), 2, 0.3),
        "t": ar((2, 4, 7), 2, 1.1),
        "hs": ar((2, 4, 6), 1, 0.5),
        "ht": ar((2, 4, 6), 1, 2.0),
    }
    if extra:
        tensors = {k: torch.cat([v, torch.full((2, extra, v.shape[2]), 99.0).double()], 1) for k, v in tensors.items()}
    return tensors


def packed_batch() -> Batch:
    labels = LABELS[MASK]
    positions = (labels != -100).nonzero()[:, 0]
    return batch_of([4, 3], mlm_positions=positions, mlm_labels=labels[positions])


def outputs(restricted: bool, tensors: dict[str, Tensor]) -> tuple[EncoderOutput, EncoderOutput, dict[str, Tensor]]:
    """Packed student and teacher as an encoder would give them, and the student's leaves."""
    extra = tensors["s"].shape[1] - 4
    mask = F.pad(MASK, (0, extra))
    packed = {name: value[mask] for name, value in tensors.items()}
    leaves = {"s": leaf(packed["s"]), "hs": leaf(packed["hs"])}
    at = packed_batch().mlm_positions if restricted else None

    def head(logits: Tensor) -> VocabularyOutput:
        return vocabulary_of(logits if at is None else logits[at], at)

    student = EncoderOutput(last_hidden=leaves["hs"], vocabulary=head(leaves["s"]))
    teacher = EncoderOutput(last_hidden=packed["ht"], vocabulary=head(packed["t"]))
    return student, teacher, leaves


def parts(restricted: bool) -> tuple[soft_targets.Objective, masked_lm.Objective, cosine_hidden.Objective]:
    positions = "masked" if restricted else "all"
    ce = soft_targets.Objective(on="vocabulary", temperature=T, positions=positions)
    return ce, masked_lm.Objective(), cosine_hidden.Objective()


def plain(restricted: bool, s: Tensor, t: Tensor, hs: Tensor, ht: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The reference, written out on the padded tensors."""
    chosen = (LABELS > -1) if restricted else MASK
    log_p, q = F.log_softmax(s[chosen] / T, -1), F.softmax(t[chosen] / T, -1)
    ce = (q * (q.log() - log_p)).sum() / len(q) * T**2
    mlm = F.cross_entropy(s.reshape(-1, s.shape[-1]), LABELS.reshape(-1), ignore_index=-100)
    a, b = hs[MASK], ht[MASK]
    cos = (1 - (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))).mean()
    return ce, mlm, cos


FROZEN = {
    False: (0.54359139, 3.18431873, 0.91136684, 9.99796122),
    True: (0.54866796, 3.18431873, 0.91136684, 10.02334408),
}


@pytest.mark.parametrize("restricted", [False, True])
@pytest.mark.parametrize("extra_padding", [0, 3])
def test_the_frozen_numbers(restricted: bool, extra_padding: int) -> None:
    student, teacher, _ = outputs(restricted, padded(extra_padding))
    batch = packed_batch()
    values = [part(student, teacher, batch).item() for part in parts(restricted)]
    ce, mlm, cos, total = FROZEN[restricted]
    assert values == pytest.approx([ce, mlm, cos], abs=5e-9)
    assert 5 * values[0] + 2 * values[1] + values[2] == pytest.approx(total, abs=5e-8)


@pytest.mark.parametrize("restricted", [False, True])
def test_gradients_of_the_weighted_total(restricted: bool) -> None:
    student, teacher, leaves = outputs(restricted, padded())
    ours = parts(restricted)
    sum(w * o(student, teacher, packed_batch()) for w, o in zip((5, 2, 1), ours)).backward()

    tensors = padded()
    s, hs = leaf(tensors["s"]), leaf(tensors["hs"])
    sum(w * v for w, v in zip((5, 2, 1), plain(restricted, s, tensors["t"], hs, tensors["ht"]))).backward()
    assert s.grad is not None
    assert hs.grad is not None
    torch.testing.assert_close(leaves["s"].grad, s.grad[MASK], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(leaves["hs"].grad, hs.grad[MASK], rtol=1e-10, atol=1e-12)
    assert not s.grad[~MASK].any()


def test_what_each_part_averages_over() -> None:
    batch = packed_batch()
    assert [part.count(batch) for part in parts(False)] == [7, 3, 7]
    assert [part.count(batch) for part in parts(True)] == [3, 3, 7]
