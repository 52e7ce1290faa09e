"""What every objective promises, asked of every file of compress/objectives; and each one's formula."""

from __future__ import annotations

import inspect
import math
import pkgutil
from typing import Any, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from objective_cases import ar, batch_of, leaf, vocabulary_of
from torch import Tensor, nn

import compress.objectives
from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.layer_maps import ModelPair
from compress.errors import UserError
from compress.objectives import cosine_hidden, hard_labels, masked_lm, sentence_pair, soft_targets
from compress.objectives._layers import Layerwise
from compress.registry import load

KINDS = sorted(m.name for m in pkgutil.iter_modules(compress.objectives.__path__) if not m.name.startswith("_"))
VARIANTS = [
    *((kind, {}) for kind in KINDS),
    ("soft_targets", {"on": "vocabulary"}),
    ("soft_targets", {"on": "vocabulary", "positions": "masked"}),
    *(("soft_targets", {"divergence": d}) for d in ("reverse", "symmetric", "jensen_shannon")),
    ("soft_targets", {"per_example": True}),
    ("hard_labels", {"label_smoothing": 0.1}),
    ("hidden_mse", {"projection": "per-layer"}),
    ("attention_maps", {"distance": "kl"}),
    ("similarity", {"rows": "first"}),
]
CONFIG = EncoderConfig.uniform(vocabulary=9, hidden=4, layers=2, heads=2, feed_forward=8)
PAIRS = [
    ModelPair(CONFIG, CONFIG, ((0, 0), (1, 1))),
    *(ModelPair(CONFIG, CONFIG, (), c) for c in ("learned", "smallest")),
]

FULL = batch_of(
    [3, 2],
    labels=torch.tensor([2, 0]),
    mlm_positions=torch.tensor([0, 3]),
    mlm_labels=torch.tensor([4, 1]),
    pair_labels=torch.tensor([1, 0]),
    extra={"replaced": torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0]), "queries": torch.tensor([0, 0])},
)
THREE = batch_of([3, 2, 4], labels=torch.tensor([2, 0, 1]))
NONE = batch_of(
    [],
    labels=torch.zeros(0, dtype=torch.int64),
    mlm_positions=torch.zeros(0, dtype=torch.int64),
    mlm_labels=torch.zeros(0, dtype=torch.int64),
    pair_labels=torch.zeros(0, dtype=torch.int64),
    extra={"replaced": torch.zeros(0), "queries": torch.zeros(0, dtype=torch.int64)},
)


def output(batch: Batch, needs: Needs, phase: float) -> tuple[EncoderOutput, list[Tensor]]:
    """Exactly what `needs` asks for, made of leaves."""
    rows, tokens = batch.rows, batch.tokens
    hidden = leaf(ar((tokens, 4), 1, phase))
    leaves, given = [hidden], EncoderOutput(last_hidden=hidden)
    if needs.hidden_states:
        first = [leaf(ar((tokens, 4), 1, phase + n)) for n in (1, 2)]
        given.hidden_states = (*first, hidden)
        leaves += first
    if needs.projections:
        kept = [[leaf(ar((tokens, 2, 2), 1, phase + n + i)) for i in range(CONFIG.depth)] for n in range(3)]
        given.queries, given.keys, given.values = (tuple(layers) for layers in kept)
        leaves += [x for layers in kept for x in layers]
    if needs.attention_scores or needs.attentions:
        lengths = batch.cu_seqlens.diff().tolist()
        kept = [[leaf(ar((2, n, n), 1, phase + i)) for n in lengths] for i in range(CONFIG.depth)]
        given.attention_scores = tuple(kept)
        given.attentions = tuple([x.softmax(-1) for x in layer] for layer in kept)
        leaves += [x for layer in kept for x in layer]
    if needs.logits:
        given.logits = leaf(ar((rows, 3), 1, phase))
        leaves.append(given.logits)
    if needs.pair_logits:
        given.pair_logits = leaf(ar((rows, 2), 1, phase))
        leaves.append(given.pair_logits)
    if needs.replaced:
        given.replaced = leaf(ar((tokens,), 1, phase))
        leaves.append(given.replaced)
    if needs.mlm is not None:
        at = batch.mlm_positions if needs.mlm == "masked" else None
        logits = leaf(ar((tokens if at is None else at.shape[0], 6), 1, phase))
        given.vocabulary = vocabulary_of(logits, at)
        leaves.append(logits)
    return given, leaves


def build(kind: str, options: dict[str, Any], pair: ModelPair = PAIRS[0]) -> Any:
    objective = load("compress.objectives", kind)(**options)
    if hasattr(objective, "bind"):
        objective.bind(pair)
    return objective.double()


@pytest.mark.parametrize("kind", KINDS)
def test_the_constructor_is_a_schema(kind: str) -> None:
    part = load("compress.objectives", kind)
    assert issubclass(part, nn.Module)
    assert "arXiv" in (part.__doc__ or "") or kind == "hard_labels"
    parameters = list(inspect.signature(part.__init__).parameters.values())[1:]
    hints = get_type_hints(part.__init__)
    for parameter in parameters:
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert parameter.name in hints
        assert f"{parameter.name}:" in (part.__doc__ or ""), f"{kind}: {parameter.name} is not explained"


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_finite_and_differentiable_for_the_student_alone(kind: str, options: dict[str, Any]) -> None:
    objective = build(kind, options)
    batch = THREE if kind == "vector_similarity" else FULL  # of two texts, each has one other
    student, ours = output(batch, objective.student_needs, 0.3)
    teacher, theirs = output(batch, objective.teacher_needs or Needs(), 1.1)
    assert objective.count(batch) > 0
    value = objective(student, teacher if objective.teacher_needs is not None else None, batch)
    assert value.shape == ()
    assert value.dtype == torch.float64
    assert math.isfinite(value.item())
    value.backward()
    assert any(t.grad is not None and bool(t.grad.abs().sum() > 0) for t in ours)
    if kind in ("hard_labels", "masked_lm", "sentence_pair") or options.get("on") == "vocabulary":
        assert all(t.grad is None for t in theirs)


@pytest.mark.parametrize("pair", PAIRS[1:], ids=lambda p: p.choice)
@pytest.mark.parametrize("kind", [k for k in KINDS if "total" in inspect.getsource(load("compress.objectives", k))])
def test_a_trained_layer_map_is_finite_and_trains(kind: str, pair: ModelPair) -> None:
    if not issubclass(load("compress.objectives", kind), Layerwise) or kind.startswith("minilm"):
        return
    objective = build(kind, {}, pair)
    student, _ = output(FULL, objective.student_needs, 0.3)
    teacher, _ = output(FULL, objective.teacher_needs, 1.1)
    value = objective(student, teacher, FULL)
    every = [
        [build(kind, {}, ModelPair(CONFIG, CONFIG, ((s, t),)))(student, teacher, FULL) for t in (0, 1)] for s in (0, 1)
    ]
    if pair.choice == "smallest":
        torch.testing.assert_close(value, sum(torch.stack(row).min() for row in every))
    else:  # all weights start equal
        torch.testing.assert_close(value, sum(torch.stack(row).mean() for row in every))
        value.backward()
        assert objective.choice.grad.abs().sum() > 0


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_an_empty_batch_counts_nothing_and_gives_zero(kind: str, options: dict[str, Any]) -> None:
    objective = build(kind, options)
    student, ours = output(NONE, objective.student_needs, 0.3)
    teacher, _ = output(NONE, objective.teacher_needs or Needs(), 1.1)
    assert objective.count(NONE) == 0
    value = objective(student, teacher, NONE)
    assert value.item() == 0.0
    value.backward()
    assert all(t.grad is None or not t.grad.isnan().any() for t in ours)


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_micro_batches_add_up_to_the_batch(kind: str, options: dict[str, Any]) -> None:
    """Means weighed by counts are the mean of the whole: what the loop relies on."""
    objective = build(kind, options)
    if objective.coupled:
        assert "micro-batch" in inspect.getdoc(objective), "a loss of whole micro-batches says so"
        return
    student, _ = output(FULL, Needs(True, True, True, True, False, True, True, "all", True), 0.3)
    teacher, _ = output(FULL, Needs(True, True, True, True, False, True, True, "all", True), 1.1)
    whole = objective(student, teacher, FULL)
    total, count = 0.0, 0
    for row, (start, end) in enumerate(((0, 3), (3, 5))):
        inside = (FULL.mlm_positions >= start) & (FULL.mlm_positions < end)
        piece = batch_of(
            [end - start],
            labels=FULL.labels[row : row + 1],
            pair_labels=FULL.pair_labels[row : row + 1],
            mlm_positions=FULL.mlm_positions[inside] - start,
            mlm_labels=FULL.mlm_labels[inside],
            extra={"replaced": FULL.extra["replaced"][start:end]},
        )
        cut = [cut_output(o, row, start, end) for o in (student, teacher)]
        share = objective.count(piece)
        total, count = total + share * objective(*cut, piece), count + share
    assert count == objective.count(FULL)
    torch.testing.assert_close(total / count, whole)


def cut_output(whole: EncoderOutput, row: int, start: int, end: int) -> EncoderOutput:
    assert whole.vocabulary is not None
    assert whole.logits is not None
    assert whole.pair_logits is not None

    def tokens(layers: Any) -> Any:
        return tuple(layer[start:end] for layer in layers)

    return EncoderOutput(
        last_hidden=whole.last_hidden[start:end],
        hidden_states=tokens(whole.hidden_states),
        queries=tokens(whole.queries),
        keys=tokens(whole.keys),
        values=tokens(whole.values),
        attentions=tuple(layer[row : row + 1] for layer in whole.attentions or ()),
        attention_scores=tuple(layer[row : row + 1] for layer in whole.attention_scores or ()),
        logits=whole.logits[row : row + 1],
        pair_logits=whole.pair_logits[row : row + 1],
        replaced=None if whole.replaced is None else whole.replaced[start:end],
        vocabulary=vocabulary_of(whole.vocabulary.features[start:end]),
    )


# --- formulas ---------------------------------------------------------------------------------------------------


def task(logits: Tensor) -> EncoderOutput:
    return EncoderOutput(torch.zeros(5, 4, dtype=logits.dtype), logits=logits)


def test_hard_labels_skips_rows_without_one() -> None:
    logits, batch = leaf(ar((3, 4))), batch_of([2, 2, 1], labels=torch.tensor([3, -100, 0]))
    value = hard_labels.Objective()(task(logits), None, batch)
    log_p = logits.log_softmax(1)
    torch.testing.assert_close(value, -(log_p[0, 3] + log_p[2, 0]) / 2)
    assert hard_labels.Objective().count(batch) == 2
    value.backward()
    assert logits.grad is not None
    assert not logits.grad[1].any()


def test_hard_labels_smoothing_formula() -> None:
    logits, batch, e = ar((2, 3)), batch_of([3, 2], labels=torch.tensor([2, 0])), 0.2
    log_p = logits.log_softmax(1)
    want = -(1 - e) * (log_p[0, 2] + log_p[1, 0]) / 2 - e / 3 * log_p.sum() / 2
    torch.testing.assert_close(hard_labels.Objective(label_smoothing=e)(task(logits), None, batch), want)


def test_hard_labels_of_real_numbers() -> None:
    logits = leaf(ar((3, 1)))
    batch = batch_of([2, 2, 1], labels=torch.tensor([0.5, math.nan, -1.0]))
    value = hard_labels.Objective()(task(logits), None, batch)
    torch.testing.assert_close(value, ((logits[0, 0] - 0.5) ** 2 + (logits[2, 0] + 1) ** 2) / 2)
    assert hard_labels.Objective().count(batch) == 2
    value.backward()
    assert logits.grad is not None
    assert logits.grad[1] == 0


def test_hard_labels_of_tokens() -> None:
    logits = ar((5, 3))
    batch = batch_of([3, 2], labels=torch.tensor([-100, 1, -100, 2, -100]))
    want = F.cross_entropy(logits, batch.labels, ignore_index=-100)
    torch.testing.assert_close(hard_labels.Objective()(task(logits), None, batch), want)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_soft_targets_formula_and_gradient(temperature: float) -> None:
    s, t, batch = leaf(ar((2, 3), 2, 0.3)), ar((2, 3), 2, 1.1), batch_of([3, 2], labels=torch.tensor([0, 1]))
    value = soft_targets.Objective(temperature=temperature)(task(s), task(t), batch)
    p, q = (s / temperature).softmax(1), (t / temperature).softmax(1)
    torch.testing.assert_close(value, temperature**2 * (q * (q / p).log()).sum() / 2)
    value.backward()
    torch.testing.assert_close(s.grad, (temperature * (p - q) / 2).detach())


def test_the_divergences_are_what_they_are_called() -> None:
    s, t, batch = ar((2, 3), 2, 0.3), ar((2, 3), 2, 1.1), batch_of([3, 2])
    p, q = (s / 3).softmax(1), (t / 3).softmax(1)
    m = (p + q) / 2

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return 9 * (a * (a / b).log()).sum() / 2

    want = {
        "forward": kl(q, p),
        "reverse": kl(p, q),
        "symmetric": (kl(q, p) + kl(p, q)) / 2,
        "jensen_shannon": (kl(p, m) + kl(q, m)) / 2,
    }
    for kind, value in want.items():
        got = soft_targets.Objective(temperature=3.0, divergence=kind)(task(s), task(t), batch)  # pyright: ignore
        torch.testing.assert_close(got, value)


def test_a_temperature_of_each_row_forgets_the_scale_of_its_logits() -> None:
    s, t, batch = ar((2, 3), 2, 0.3), ar((2, 3), 2, 1.1), batch_of([3, 2])
    objective = soft_targets.Objective(per_example=True)
    torch.testing.assert_close(objective(task(7 * s + 1), task(t), batch), objective(task(s), task(5 * t - 2), batch))
    z, y = ((x - x.mean(1, keepdim=True)) / x.std(1, correction=0, keepdim=True) for x in (s, t))
    torch.testing.assert_close(objective(task(s), task(t), batch), soft_targets.Objective()(task(z), task(y), batch))
    with pytest.raises(UserError, match="needs at least three classes"):
        objective(task(s[:, :2]), task(t[:, :2]), batch)
    with pytest.raises(UserError, match="divergence only applies to task logits"):
        soft_targets.Objective(on="vocabulary", divergence="reverse")


def test_soft_targets_needs_no_labels() -> None:
    batch = batch_of([3, 2])
    objective = soft_targets.Objective()
    assert objective.count(batch) == 2
    assert float(objective(task(ar((2, 3))), task(ar((2, 3))), batch)) == pytest.approx(0, abs=1e-12)


def test_soft_targets_of_real_numbers_is_the_squared_difference() -> None:
    s, t = ar((2, 1), 1, 0.3), ar((2, 1), 1, 0.9)
    value = soft_targets.Objective(temperature=7)(task(s), task(t), batch_of([3, 2]))
    torch.testing.assert_close(value, (s - t).square().mean())


def test_soft_targets_of_tags_reads_the_answered_pieces_labelled_or_not() -> None:
    s, t = ar((5, 3), 1, 0.3), ar((5, 3), 1, 0.9)
    answered = torch.tensor([False, True, False, True, False])
    batch = batch_of([3, 2], labels=torch.full((5,), -100), answered=answered)
    objective = soft_targets.Objective(temperature=1)
    at = [1, 3]
    want = F.kl_div(s[at].log_softmax(1), t[at].softmax(1), reduction="batchmean")
    torch.testing.assert_close(objective(task(s), task(t), batch), want)
    assert objective.count(batch) == 2


def test_soft_targets_of_several_labels_is_each_labels_own_divergence() -> None:
    s, t = ar((3, 4), 1, 0.3), ar((3, 4), 1, 0.9)
    batch = batch_of([3, 2, 1], labels=torch.full((3, 4), float("nan")))  # the teacher needs no labels
    p, q = (t / 2).sigmoid(), (s / 2).sigmoid()
    want = 4 * (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean()
    torch.testing.assert_close(soft_targets.Objective(temperature=2)(task(s), task(t), batch), want)
    assert soft_targets.Objective(temperature=2)(task(t), task(t), batch).abs() < 1e-12


def test_hard_labels_of_several_labels_is_binary_cross_entropy() -> None:
    logits, labels = ar((3, 4), 2, 0.3), torch.tensor([[1.0, 0, 0, 1], [math.nan] * 4, [0, 0, 0, 0]])
    batch, objective = batch_of([3, 2, 1], labels=labels), hard_labels.Objective()
    at = [0, 2]
    want = F.binary_cross_entropy_with_logits(logits[at], labels[at].double())
    torch.testing.assert_close(objective(task(logits), None, batch), want)
    assert objective.count(batch) == 2
    smooth = hard_labels.Objective(label_smoothing=0.2)(task(logits), None, batch)
    torch.testing.assert_close(smooth, F.binary_cross_entropy_with_logits(logits[at], labels[at].double() * 0.8 + 0.1))
    with pytest.raises(UserError, match=r"do not match the labels: logits are \(3, 2\), labels \(3, 4\)"):
        objective(task(logits[:, :2]), None, batch)


def test_scores_cannot_be_smoothed() -> None:
    batch = batch_of([3, 2], labels=torch.tensor([0.5, 1.0]))
    with pytest.raises(
        UserError, match="label_smoothing: label smoothing does not apply to regression; remove it, or set it to 0"
    ):
        hard_labels.Objective(label_smoothing=0.1)(task(ar((2, 1))), None, batch)


def test_sentence_pair_formula() -> None:
    logits = ar((3, 2))
    batch = batch_of([2, 2, 1], pair_labels=torch.tensor([1, -100, 0]))
    value = sentence_pair.Objective()(EncoderOutput(torch.zeros(5, 4), pair_logits=logits), None, batch)
    log_p = logits.log_softmax(1)
    torch.testing.assert_close(value, -(log_p[0, 1] + log_p[2, 0]) / 2)


@pytest.mark.parametrize("make", [lambda: leaf(ar((2, 3), 1, 0.4)), lambda: leaf(ar((2, 1), 1, 0.4))])
def test_gradcheck_of_the_task_losses(make: Any) -> None:
    logits = make()
    classes = logits.shape[1]
    labels = torch.tensor([classes - 1, 0]) if classes > 1 else torch.tensor([0.3, 0.1])
    batch, teacher = batch_of([3, 2], labels=labels), task(ar((2, classes), 1, 1.2))
    for objective in (hard_labels.Objective(), soft_targets.Objective()):
        assert torch.autograd.gradcheck(lambda x, o=objective: o(task(x), teacher, batch), (logits,))


def test_losses_are_fp32_whatever_comes_in() -> None:
    batch = batch_of([3, 2], labels=torch.tensor([2, 0]), pair_labels=torch.tensor([1, 0]))
    low = EncoderOutput(ar((5, 4)).bfloat16(), logits=ar((2, 3)).bfloat16(), pair_logits=ar((2, 2)).bfloat16())
    parts = (hard_labels.Objective(), soft_targets.Objective(), sentence_pair.Objective(), cosine_hidden.Objective())
    assert [part(low, low, batch).dtype for part in parts] == [torch.float32] * 4


# --- mistakes ---------------------------------------------------------------------------------------------------


def refusal(call: Any) -> str:
    with pytest.raises(UserError) as caught:
        call()
    return caught.value.line()


def test_another_number_of_classes_is_refused_not_broadcast() -> None:
    line = refusal(lambda: soft_targets.Objective()(task(ar((2, 3))), task(ar((2, 1))), batch_of([3, 2])))
    assert line == (
        "objective soft_targets: teacher and student have different classes: "
        "the teacher's shape is (2, 1), the student's (2, 3); use models with the same classes"
    )


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_must_be_a_positive_number(temperature: float) -> None:
    line = refusal(lambda: soft_targets.Objective(temperature=temperature))
    assert line == f"objective soft_targets.temperature: temperature must be a number above 0: found {temperature}"


def test_masked_positions_of_a_task_are_refused() -> None:
    assert "only vocabulary logits can be restricted" in refusal(lambda: soft_targets.Objective(positions="masked"))


def test_smoothing_out_of_range_is_refused() -> None:
    assert "label_smoothing must be at least 0 and below 1: found 1.5" in refusal(
        lambda: hard_labels.Objective(label_smoothing=1.5)
    )


def test_a_label_outside_the_classes_names_its_row() -> None:
    batch = batch_of([3, 2], labels=torch.tensor([2, 7]))
    line = refusal(lambda: hard_labels.Objective()(task(ar((2, 3))), None, batch))
    assert line == "row 1: label 7 is outside the model's classes: allowed: 0..2"


def test_labels_that_do_not_fit_the_answers_are_refused() -> None:
    real, whole = torch.tensor([0.5, 0.1]), torch.tensor([1, 0, 1])
    for logits, labels in ((ar((2, 3)), real), (ar((2, 3)), whole)):
        line = refusal(lambda z=logits, y=labels: hard_labels.Objective()(task(z), None, batch_of([3, 2], labels=y)))
        assert "the model's outputs do not match the labels" in line


def test_other_widths_are_refused() -> None:
    wide, narrow = EncoderOutput(ar((5, 8))), EncoderOutput(ar((5, 4)))
    line = refusal(lambda: cosine_hidden.Objective()(narrow, wide, batch_of([3, 2])))
    assert (
        "teacher and student have different widths: the teacher's hidden states are (5, 8), the student's (5, 4)"
        in line
    )


def test_what_is_missing_is_named() -> None:
    bare, empty = batch_of([3, 2]), EncoderOutput(ar((5, 4)))
    assert "objective hard_labels: the batch has no labels" in refusal(lambda: hard_labels.Objective().count(bare))
    assert "objective masked_lm: the batch has no masked positions" in refusal(
        lambda: masked_lm.Objective().count(bare)
    )
    assert "objective sentence_pair: the batch has no sentence-pair labels" in refusal(
        lambda: sentence_pair.Objective().count(bare)
    )
    assert "the student's output has no vocabulary logits" in refusal(lambda: masked_lm.Objective()(empty, None, FULL))
    assert "the student's output has no logits" in refusal(lambda: hard_labels.Objective()(empty, None, FULL))
    assert "needs a teacher, but none is given" in refusal(lambda: cosine_hidden.Objective()(empty, None, FULL))


def test_a_masked_piece_outside_the_vocabulary_is_refused() -> None:
    batch = batch_of([3, 2], mlm_positions=torch.tensor([0]), mlm_labels=torch.tensor([6]))
    student, _ = output(batch, Needs(mlm="masked"), 0.1)
    line = refusal(lambda: masked_lm.Objective()(student, None, batch))
    assert line.startswith("objective masked_lm: token id 6 is outside the student's vocabulary: allowed: 0..5")


# --- vectors ------------------------------------------------------------------------------------------------------


def vectors_of(phase: float) -> Tensor:
    return ar((3, 4), 1.0, phase)


def test_vectors() -> None:
    ours, theirs = vectors_of(0.3), vectors_of(1.1)
    both = (EncoderOutput(ours, logits=ours), EncoderOutput(theirs, logits=theirs))
    cosine = sum(1 - float(a @ b / a.norm() / b.norm()) for a, b in zip(ours, theirs, strict=True)) / 3
    assert float(build("vectors", {})(*both, THREE)) == pytest.approx(cosine, abs=1e-12)
    squares = sum(float((a - b) @ (a - b)) for a, b in zip(ours, theirs, strict=True)) / 3
    assert float(build("vectors", {"distance": "mse"})(*both, THREE)) == pytest.approx(squares, abs=1e-12)
    with pytest.raises(UserError, match="teacher and student have different widths of vectors"):
        build("vectors", {})(both[0], EncoderOutput(theirs, logits=theirs[:, :3]), THREE)


def test_vector_similarity() -> None:
    ours, theirs = vectors_of(0.3), vectors_of(1.1)[:, :3]  # widths may differ
    total = 0.0
    for row in range(3):
        others = [other for other in range(3) if other != row]
        shares = [
            [math.exp(float(x[row] @ x[other] / x[row].norm() / x[other].norm()) / 0.2) for other in others]
            for x in (ours, theirs)
        ]
        q, p = ([value / sum(part) for value in part] for part in shares)
        total += sum(b * math.log(b / a) for a, b in zip(q, p, strict=True))
    objective = build("vector_similarity", {"temperature": 0.2})
    found = objective(EncoderOutput(ours, logits=ours), EncoderOutput(theirs, logits=theirs), THREE)
    assert float(found) == pytest.approx(total / 3, abs=1e-9)


def test_vector_similarity_of_first_dimensions() -> None:
    ours, theirs = vectors_of(0.3), vectors_of(1.1)
    parts = [
        build("vector_similarity", {})(
            EncoderOutput(ours, logits=ours[:, : ours.shape[1] >> times]), EncoderOutput(theirs, logits=theirs), THREE
        )
        for times in range(3)
    ]
    found = build("vector_similarity", {"halvings": 2})(
        EncoderOutput(ours, logits=ours), EncoderOutput(theirs, logits=theirs), THREE
    )
    assert float(found) == pytest.approx(sum(map(float, parts)) / 3, abs=1e-9)
