"""What a cached teacher answers, beside the live one: every field, every objective, every width of a number."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cache_toy import ROWS, Filler, ToyRows, filled, teacher_model
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.config.encoder import HeadConfig
from compress.encoder.config.layer_maps import ModelPair
from compress.encoder.infer.prepare import prepare
from compress.errors import UserError
from compress.registry import load, parts
from compress.stages.distill.cache import codec
from compress.stages.distill.cache.fields import Settings, fields_of

EVERYTHING = Needs(
    hidden_states=True, attentions=True, attention_scores=True, projections=True, logits=True, mlm="all",
    last_hidden=True, temperatures=frozenset({2.0}),
)  # fmt: skip
SHUFFLED = np.random.default_rng(3).permutation(ROWS)[:11].astype(np.int64)


def tensors(output: EncoderOutput) -> dict[str, Tensor]:
    """Everything in an output, by name."""
    found = {"last_hidden": output.last_hidden, "logits": output.logits}
    for name in ("hidden_states", "queries", "keys", "values"):
        found |= {f"{name} {i}": part for i, part in enumerate(getattr(output, name) or ())}
    for name in ("attentions", "attention_scores"):
        layers = enumerate(getattr(output, name) or ())
        found |= {f"{name} {i} {j}": row for i, layer in layers for j, row in enumerate(layer)}
    if output.vocabulary is not None:
        found |= {"features": output.vocabulary.features, "words": output.vocabulary.logits()}
    return {name: part.float() for name, part in found.items() if part is not None}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_at_32_bits_a_cache_gives_the_very_bits_of_the_batches_it_was_filled_with(
    precision: Any, tmp_path: Path
) -> None:
    """But for attention maps, for whose sake a live teacher goes another way through its attention."""
    needs = dataclasses.replace(EVERYTHING, attentions=False, attention_scores=False)
    rows, model = ToyRows(), teacher_model()
    filler = Filler(model, precision)
    _, teacher, _ = filled(tmp_path / "c", model, needs, rows, filler, precision=precision)
    live = prepare(model, precision)
    first = filler.asked[0]
    batch = rows.batch(np.array(first, dtype=np.int64))
    ours, theirs = tensors(teacher(batch, needs)), tensors(live(batch, needs))
    assert ours.keys() == theirs.keys()
    for name, part in theirs.items():
        torch.testing.assert_close(ours[name], part, rtol=0, atol=0, msg=lambda m, n=name: f"{n}: {m}")
    assert teacher.count_operations(batch, Needs(logits=True)) == 0
    words = 2 * batch.tokens * model.config.vocabulary * model.config.width
    assert teacher.count_operations(batch, needs) == words, "the features were kept, their logits are computed"


@pytest.mark.thorough
@pytest.mark.parametrize(("bits", "near"), [(32, 1e-5), (16, 2e-3), (8, 2e-2)])
def test_other_batches_are_as_near_as_the_bits_allow(bits: int, near: float, tmp_path: Path) -> None:
    rows, model = ToyRows(), teacher_model()
    _, teacher, _ = filled(tmp_path / "c", model, EVERYTHING, rows, bits=bits)
    batch = rows.batch(SHUFFLED)
    ours, theirs = tensors(teacher(batch, EVERYTHING)), tensors(prepare(model)(batch, EVERYTHING))
    for name, part in theirs.items():
        scale = max(1.0, float(part.abs().max()))
        assert float((ours[name] - part).abs().max()) < near * scale, name


def bound(kind: str, options: dict[str, Any], model: Any) -> Any:
    objective = load("compress.objectives", kind)(**options)
    if hasattr(objective, "bind"):
        objective.bind(ModelPair(model.config, model.config, ((0, 0), (2, 1))))
    return objective


ASKING = [k for k in parts("compress.objectives") if load("compress.objectives", k)().teacher_needs is not None]
VARIANTS = [
    *((kind, {}) for kind in ASKING),
    ("soft_targets", {"on": "vocabulary"}),
    ("soft_targets", {"on": "vocabulary", "positions": "masked"}),
    ("attention_maps", {"distance": "kl"}),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_every_objective_learns_the_same_from_it(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    """What it declares in its needs is all that it reads: nothing else is in the cache."""
    rows, model, student = ToyRows(), teacher_model(), teacher_model(seed=2)
    objective = bound(kind, options, model)
    _, teacher, _ = filled(tmp_path / "c", model, objective.teacher_needs, rows)
    batch = rows.batch(SHUFFLED)
    # Queries are read by objectives of rerankers alone.
    batch = dataclasses.replace(batch, extra={**batch.extra, "queries": torch.arange(batch.rows) // 4}, host=None)
    output = student(batch, objective.student_needs)
    with torch.no_grad():
        ours = objective(output, teacher(batch, objective.teacher_needs), batch)
        theirs = objective(output, prepare(model)(batch, objective.teacher_needs), batch)
    assert torch.isfinite(theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("positions", ["all", "masked"])
def test_the_likeliest_pieces_of_the_whole_vocabulary_are_the_whole(positions: str, tmp_path: Path) -> None:
    rows, model, student = ToyRows(), teacher_model(), teacher_model(seed=2)
    objective = bound("soft_targets", {"on": "vocabulary", "positions": positions}, model)
    batch = rows.batch(SHUFFLED)
    output = student(batch, objective.student_needs)
    values = {}
    for k in (None, 50, 60, 5):
        _, teacher, figures = filled(tmp_path / str(k), model, objective.teacher_needs, rows, top_k=k)
        values[k] = objective(output, teacher(batch, objective.teacher_needs), batch).item()
        assert figures["cache_kl"] < 1e-6
    assert values[50] == pytest.approx(values[None], rel=1e-5)
    assert values[60] == pytest.approx(values[None], rel=1e-5)
    assert 0 < values[5] < values[None]


def test_masked_positions_can_be_read_where_all_are_held(tmp_path: Path) -> None:
    """One field serves both: `all` is asked for when both are."""
    rows, model = ToyRows(), teacher_model()
    needs = Needs(mlm="all") | Needs(mlm="masked")
    _, teacher, _ = filled(tmp_path / "c", model, needs, rows)
    output = teacher(rows.batch(SHUFFLED), needs)
    assert output.vocabulary is not None
    assert output.vocabulary.positions is None


@pytest.mark.parametrize(
    "head",
    [
        HeadConfig("token_classification", labels=5),
        HeadConfig("question_answering", labels=2),
        HeadConfig("classification", labels=1, problem="regression"),
        HeadConfig("classification", labels=4, problem="multi_label"),
    ],
    ids=lambda head: f"{head.kind} {head.problem}",
)
def test_every_kind_of_task(head: HeadConfig, tmp_path: Path) -> None:
    rows, model = ToyRows(kind=head.kind), teacher_model(head)
    _, teacher, figures = filled(tmp_path / "c", model, Needs(logits=True), rows)
    batch = rows.batch(SHUFFLED)
    ours, theirs = teacher(batch, Needs(logits=True)).logits, prepare(model)(batch, Needs(logits=True)).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert figures["cache_max_error"] < 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [{"norm": "pre"}, {"windows": (2, None, 2)}], ids=str)
def test_other_encoders(changes: dict[str, Any], tmp_path: Path) -> None:
    rows, model = ToyRows(), teacher_model(**changes)
    _, teacher, _ = filled(tmp_path / "c", model, EVERYTHING, rows)
    batch = rows.batch(SHUFFLED)
    ours, theirs = tensors(teacher(batch, EVERYTHING)), tensors(prepare(model)(batch, EVERYTHING))
    for name, part in theirs.items():
        torch.testing.assert_close(ours[name], part, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_nothing_is_kept_that_nobody_asks_for() -> None:
    config = teacher_model().config
    titles = lambda needs: [f.title for f in fields_of(needs, config, teacher_model().head_configs, Settings())]  # noqa: E731
    assert titles(Needs(logits=True)) == ["logits"]
    assert titles(Needs(last_hidden=True) | Needs(hidden_states=frozenset({-1, 2}))) == ["embeddings", "hidden 2"]
    assert titles(Needs(attentions=frozenset({1}))) == ["queries 1", "keys 1"]
    assert titles(Needs(projections=frozenset({1}), attentions=frozenset({1}))) == ["queries 1", "keys 1", "values 1"]
    with pytest.raises(UserError, match="only supports task logits, vocabulary logits"):
        titles(Needs(pooled=True))


# --- numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "width", "precision", "kept"),
    [
        (32, 2, "fp32", "fp32"), (32, 768, "bf16", "fp32"), (16, 768, "fp32", "fp16"), (16, 2, "bf16", "bf16"),
        (8, 768, "fp32", "int8"), (8, 2, "fp32", "fp16"), (8, 2, "bf16", "bf16"),
    ],
)  # fmt: skip
def test_what_a_number_is_kept_as(bits: Any, width: int, precision: str, kept: str) -> None:
    assert codec.choose_stored_precision(bits, width, precision) == kept


def test_8_bits_are_off_by_half_a_step_of_each_vector() -> None:
    values = torch.randn(20, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 20)[:, None]
    values[3] = 5.0  # all alike
    back = codec.decode(codec.encode(values, "int8", "it"), "int8")
    span = values.amax(1) - values.amin(1)
    error = (back - values).abs().amax(1)
    assert bool((error <= span / 510 * 1.001 + 1e-6 * values.abs().amax(1)).all())
    assert bool((back[3] == 5.0).all())


@pytest.mark.parametrize("kept", ["fp32", "fp16", "bf16", "int8"])
def test_no_rows_are_no_rows(kept: Any) -> None:
    empty = torch.zeros(0, 16)
    assert codec.decode(codec.encode(empty, kept, "it"), kept).shape == (0, 16)


def test_numbers_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"the teacher's hidden 2 are too large for 16 bits: found up to 1e\+05.*bits: 32"
    ):
        codec.encode(torch.full((1, 9), 1e5), "fp16", "hidden 2")
    with pytest.raises(UserError, match="the teacher's logits contain NaN or infinite values"):
        codec.encode(torch.tensor([[1.0, float("nan")]]), "fp32", "logits")


def test_a_row_of_another_length_is_refused(tmp_path: Path) -> None:
    rows, model = ToyRows(), teacher_model()
    needs = Needs(last_hidden=True)
    _, teacher, _ = filled(tmp_path / "c", model, needs, rows)
    other: Batch = ToyRows(seed=9).batch(SHUFFLED)
    with pytest.raises(UserError, match=r"teacher cache, hidden 2: row \d+ does not match the teacher cache: it has"):
        teacher(other, needs)
