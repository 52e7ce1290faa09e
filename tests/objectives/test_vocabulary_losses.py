"""The one-pass vocabulary losses against the plain formulas: values, gradients, precision, sharing."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import ar, batch_of, leaf, vocabulary_of
from torch import Tensor

from compress.contracts import EncoderOutput, VocabularyOutput
from compress.errors import UserError
from compress.objectives import _vocabulary, masked_lm, soft_targets
from compress.objectives._vocabulary import cross_entropy, divergence


def plain_divergence(s: Tensor, t: Tensor, temperature: float) -> Tensor:
    log_p, log_q = F.log_softmax(s / temperature, -1), F.log_softmax(t / temperature, -1)
    return F.kl_div(log_p, log_q, log_target=True, reduction="batchmean") * temperature**2


@settings(max_examples=scaled(25), deadline=None)
@given(
    rows=st.integers(1, 40),
    vocabulary=st.integers(2, 50),
    temperature=st.floats(0.1, 20),
    scale=st.floats(0.01, 30),
    block=st.integers(1, 17),
)
def test_values_and_gradients_in_fp64(rows: int, vocabulary: int, temperature: float, scale: float, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_vocabulary, "_CACHED_BYTES", 4 * vocabulary * block)
        patch.setattr(_vocabulary, "_PRODUCT_ROWS", 7)
        s, t = ar((rows, vocabulary), scale, 0.2), ar((rows, vocabulary), scale, 0.9)
        labels = torch.arange(rows) % vocabulary
        ours, plain = leaf(s), leaf(s)
        kl = divergence(ours, vocabulary_of(t), None, temperature)
        ce = cross_entropy(ours, labels)
        (0.7 * kl + 0.2 * ce).backward()
    want_kl, want_ce = plain_divergence(plain, t, temperature), F.cross_entropy(plain, labels)
    (0.7 * want_kl + 0.2 * want_ce).backward()
    torch.testing.assert_close(kl, want_kl, rtol=1e-9, atol=1e-11 * temperature**2)
    torch.testing.assert_close(ce, want_ce, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-8, atol=1e-13)


def test_gradients_through_features_table_and_bias_by_finite_differences() -> None:
    """torch's gradcheck runs backward twice on one graph, which these losses refuse; the same check, written out."""
    leaves = [leaf(ar((5, 4), 1, 0.1)), leaf(ar((6, 4), 1, 0.4)), leaf(ar((6,), 1, 0.7))]
    teacher = VocabularyOutput(ar((5, 3), 1, 1.1), ar((6, 3), 1, 1.4), None)

    def loss() -> Tensor:
        student = VocabularyOutput(leaves[0], leaves[1], leaves[2])
        masked = _vocabulary.logits_at(student, torch.tensor([4, 0, 2]))
        every = _vocabulary.logits_at(student, None)
        return 2 * divergence(every, teacher, None, 1.5) + cross_entropy(masked, torch.tensor([0, 5, 2]))

    loss().backward()
    for values in leaves:
        assert values.grad is not None
        for at in range(values.numel()):
            sides = []
            for shift in (1e-6, -1e-6):
                with torch.no_grad():
                    values.view(-1)[at] += shift
                    sides.append(loss().item())
                    values.view(-1)[at] -= shift
            assert (sides[0] - sides[1]) / 2e-6 == pytest.approx(values.grad.view(-1)[at].item(), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_is_only_as_far_off_as_its_logits(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    s = (3 * torch.randn(64, 3000, generator=generator)).to(dtype)
    t = (3 * torch.randn(64, 3000, generator=generator)).to(dtype)
    ours, plain = leaf(s), leaf(s.double())
    loss, want = divergence(ours, vocabulary_of(t), None, 2.0), plain_divergence(plain, t.double(), 2.0)
    loss.backward()
    want.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(want.item(), rel=1e-5 if dtype == torch.float32 else 1e-2)
    assert ours.grad is not None
    assert plain.grad is not None
    error = (ours.grad.double() - plain.grad).norm() / plain.grad.norm()
    assert error < (1e-5 if dtype == torch.float32 else 5e-3)


def test_weights_of_the_total_are_not_rounded_to_bf16() -> None:
    s = torch.randn(4, 300).bfloat16()
    one, odd = leaf(s), leaf(s)
    cross_entropy(one, torch.arange(4)).backward()
    (cross_entropy(odd, torch.arange(4)) * 1.00390625e3).backward()  # 1004 in bf16
    assert one.grad is not None
    assert odd.grad is not None
    ratio = odd.grad.double().abs().sum() / one.grad.double().abs().sum()
    assert float(ratio) == pytest.approx(1003.90625, rel=3e-4)


def test_logits_may_lie_in_columns() -> None:
    s = torch.randn(4, 30)
    rows, columns = leaf(s), leaf(s.T.contiguous().T)
    for logits in (rows, columns):
        cross_entropy(logits, torch.arange(4)).backward()
    assert rows.grad is not None
    torch.testing.assert_close(columns.grad, rows.grad)


def test_under_autocast_the_product_is_bf16_and_the_loss_fp32() -> None:
    features, weight = leaf(torch.randn(12, 16)), leaf(torch.randn(50, 16))
    teacher = EncoderOutput(
        torch.zeros(12, 1), vocabulary=VocabularyOutput(torch.randn(12, 16), torch.randn(50, 16), None)
    )
    objective = soft_targets.Objective(on="vocabulary")
    with torch.autocast("cpu", torch.bfloat16):
        student = EncoderOutput(torch.zeros(12, 1), vocabulary=VocabularyOutput(features, weight, None))
        loss = objective(student, teacher, batch_of([12]))
        assert student.vocabulary is not None
        assert student.vocabulary.shared_logits().dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    loss.backward()
    assert features.grad is not None
    assert weight.grad is not None
    assert features.grad.dtype == weight.grad.dtype == torch.float32
    assert teacher.vocabulary is not None
    want = plain_divergence(features @ weight.T, teacher.vocabulary.logits(), 2.0)
    assert loss.item() == pytest.approx(want.item(), rel=0.05)


def test_two_losses_share_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    products = []
    original = VocabularyOutput.logits
    monkeypatch.setattr(
        VocabularyOutput, "logits", lambda self: products.append(self.features.shape[0]) or original(self)
    )
    batch = batch_of([3, 2], mlm_positions=torch.tensor([1, 4]), mlm_labels=torch.tensor([0, 2]))
    student = EncoderOutput(ar((5, 4)), vocabulary=VocabularyOutput(leaf(ar((5, 4))), leaf(ar((6, 4))), None))
    teacher = EncoderOutput(ar((5, 4)), vocabulary=VocabularyOutput(ar((5, 4), 1, 1), ar((6, 4), 1, 1), None))
    soft_targets.Objective(on="vocabulary")(student, teacher, batch)
    masked_lm.Objective()(student, teacher, batch)
    assert products == [5, 5]  # one of the student, one of the teacher


def test_a_product_made_without_gradient_is_not_shared_with_training() -> None:
    output = VocabularyOutput(leaf(ar((2, 3))), leaf(ar((4, 3))), None)
    with torch.no_grad():
        assert not output.shared_logits().requires_grad
    assert output.shared_logits().requires_grad
    assert output.shared_logits() is output.shared_logits()
    assert dataclasses.replace(output, features=output.features[:1]).shared_logits().shape == (1, 4)


@pytest.mark.parametrize(
    ("ours", "theirs"), [("all", "masked"), ("masked", "all"), ("masked", "masked"), ("all", "all")]
)
def test_student_and_teacher_may_have_computed_different_positions(ours: str, theirs: str) -> None:
    at = torch.tensor([1, 3])
    batch = batch_of([5], mlm_positions=at, mlm_labels=torch.tensor([0, 1]))
    s, t = ar((5, 6), 1, 0.3), ar((5, 6), 1, 0.8)

    def output(logits: Tensor, which: str) -> EncoderOutput:
        head = vocabulary_of(logits[at], at) if which == "masked" else vocabulary_of(logits)
        return EncoderOutput(torch.zeros(5, 1), vocabulary=head)

    loss = soft_targets.Objective(on="vocabulary", positions="masked")(output(s, ours), output(t, theirs), batch)
    torch.testing.assert_close(loss, plain_divergence(s[at], t[at], 2.0))


def test_a_teacher_in_inference_mode_is_welcome() -> None:
    with torch.inference_mode():
        teacher = VocabularyOutput(torch.randn(4, 3), torch.randn(9, 3), torch.randn(9))
    logits = leaf(torch.randn(4, 9))
    divergence(logits, teacher, None, 2.0).backward()
    assert logits.grad is not None


def test_nan_comes_through() -> None:
    logits = leaf(torch.randn(4, 9))
    teacher = vocabulary_of(torch.full((4, 9), torch.nan))
    assert divergence(logits, teacher, None, 2.0).isnan()


def test_a_second_backward_is_refused() -> None:
    loss = cross_entropy(leaf(torch.randn(2, 5)), torch.tensor([0, 1]))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward can be called only once"):
        loss.backward()


def test_other_vocabularies_are_refused() -> None:
    with pytest.raises(
        UserError, match="teacher and student have different vocabularies: the teacher has 3 × 8 logits"
    ):
        divergence(torch.randn(3, 7), vocabulary_of(torch.randn(3, 8)), None, 2.0)
