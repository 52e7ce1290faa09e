"""Several teachers as one: the mean of their answers, by hand and by the formula; who may stand together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.data.tables.label_order import outputs_in_order
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.ensemble import (
    Ensemble,
    EnsembleTeacher,
    JointModel,
    Member,
    combine_logits,
    members_in_order,
    normalize_weights,
)
from compress.modelfolder.folder import FolderMeta, save_model
from compress.objectives._spans import pad_scores
from compress.predict.predictor import EnsemblePredictor, Predictor

CLASSES = HeadConfig("classification", labels=3)
SHARES = [0.25, 0.75]


def packed(lengths: tuple[int, ...] = (4, 6)) -> Batch:
    total = sum(lengths)
    return Batch(
        input_ids=torch.arange(total) % 20 + 5,
        segment_ids=torch.zeros(total, dtype=torch.int64),
        position_ids=torch.cat([torch.arange(n) for n in lengths]),
        cu_seqlens=torch.tensor([0, *np.cumsum(lengths).tolist()]),
        max_length=max(lengths),
        row_ids=torch.arange(len(lengths)),
    )


def draws(*shape: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [3 * torch.randn(shape, generator=generator) for _ in SHARES]


def test_weights_are_shares() -> None:
    assert normalize_weights([2, 1, 1]) == [0.5, 0.25, 0.25]
    for bad in ([1, 0], [0, 0], [1, -1], [1, float("nan")], [1, float("inf")]):
        with pytest.raises(UserError, match="a teacher's weight must be above 0"):
            normalize_weights(bad)


def test_the_mean_of_logits_is_the_geometric_mean_of_probabilities() -> None:
    a, b = draws(5, 3)
    got = combine_logits([a, b], SHARES, "logits", CLASSES, packed())
    assert torch.allclose(got, 0.25 * a + 0.75 * b)
    geometric = a.softmax(1) ** 0.25 * b.softmax(1) ** 0.75
    assert torch.allclose(got.softmax(1), geometric / geometric.sum(1, keepdim=True), atol=1e-6)


def test_the_mean_of_probabilities_is_told_as_logits() -> None:
    a, b = draws(5, 3)
    got = combine_logits([a, b], SHARES, "probabilities", CLASSES, packed())
    assert torch.allclose(got.softmax(1), 0.25 * a.softmax(1) + 0.75 * b.softmax(1), atol=1e-6)
    several = dataclasses.replace(CLASSES, problem="multi_label")
    got = combine_logits([a, b], SHARES, "probabilities", several, packed())
    assert torch.allclose(got.sigmoid(), 0.25 * a.sigmoid() + 0.75 * b.sigmoid(), atol=1e-6)
    far = [torch.full((1, 3), 80.0), torch.full((1, 3), -80.0)]
    assert combine_logits(far, SHARES, "probabilities", several, packed()).isfinite().all()


@pytest.mark.parametrize("combine", ["logits", "probabilities"])
def test_scores_have_one_mean(combine: str) -> None:
    a, b = draws(5, 1)
    head = HeadConfig("classification", labels=1, problem="regression")
    assert torch.allclose(combine_logits([a, b], SHARES, combine, head, packed()), 0.25 * a + 0.75 * b)  # type: ignore[arg-type]


def test_answer_spans_are_probabilities_over_the_tokens_of_their_row() -> None:
    batch = packed()
    a, b = draws(10, 2)
    got = combine_logits([a, b], SHARES, "probabilities", HeadConfig("question_answering"), batch)
    want = 0.25 * pad_scores(a, batch).softmax(2) + 0.75 * pad_scores(b, batch).softmax(2)
    assert torch.allclose(pad_scores(got, batch).softmax(2), want, atol=1e-6)


def test_labels_are_matched_by_name() -> None:
    assert outputs_in_order(["b", "a", "c"], ["a", "b", "c"], where="x") == [1, 0, 2]
    assert outputs_in_order(["LABEL_0", "LABEL_1"], ["bad", "good"], where="x") == [0, 1]
    assert outputs_in_order(["score"], ["score"], where="x") == [0]
    for found in (["a", "b"], ["a", "b", "d"], ["LABEL_0", "LABEL_1"]):
        with pytest.raises(UserError, match="x: the models have different labels"):
            outputs_in_order(found, ["a", "b", "c"], where="x")


# --- of folders -------------------------------------------------------------------------------------------------

Maker = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, tiny_config: EncoderConfig, toy_tokenizer_files: dict[str, bytes]) -> Maker:
    """`folder("a", seed=1, labels=(…))`: a model folder with a task head."""

    def make(name: str, seed: int = 1, labels: tuple[str, ...] = ("x", "y", "z"), **how) -> Path:
        tokenizer = how.pop("tokenizer", toy_tokenizer_files)
        head = how.pop("head", HeadConfig("classification", labels=len(labels)))
        model = Model(dataclasses.replace(tiny_config, **how), {head.name: head}).initialize(seed)
        meta = FolderMeta(label_names=labels if head.name == "task" else ())
        return save_model(tmp_path / name, model, tokenizer_files=tokenizer, meta=meta)

    return make


def of(*folders: Path, combine: str = "logits", lead: int = 0) -> Ensemble:
    members = tuple(Member(f.name, f, 1 / len(folders)) for f in folders)
    return Ensemble(members, combine, lead)  # type: ignore[arg-type]


@pytest.mark.parametrize("combine", ["logits", "probabilities"])
@pytest.mark.parametrize("lead", [0, 1])
def test_all_answer_in_the_order_of_the_leads_labels(folder: Maker, combine: str, lead: int) -> None:
    ensemble = of(folder("a"), folder("b", 2, ("z", "x", "y")), combine=combine, lead=lead)
    a, b = (Predictor(m.folder).model for m in ensemble.members)
    batch = packed()
    with torch.no_grad():
        ours, theirs = (m(batch, Needs(logits=True)).logits for m in (a, b))
    assert ours is not None
    assert theirs is not None
    parts = [ours, theirs[:, [1, 2, 0]]] if lead == 0 else [ours[:, [2, 0, 1]], theirs]
    want = combine_logits(parts, [0.5, 0.5], ensemble.combine, CLASSES, batch)
    predictor = EnsemblePredictor(ensemble)
    assert torch.allclose(predictor(batch), want, atol=1e-5)
    assert predictor.label_names == [["x", "y", "z"], ["z", "x", "y"]][lead]
    with torch.no_grad():
        joint = predictor.model(batch, Needs(logits=True)).logits
    assert torch.allclose(joint, want, atol=1e-5)
    assert isinstance(predictor.model, JointModel)
    names = set(dict(predictor.model.named_parameters()))
    assert set(predictor.model.embedding_parameter_names()) <= names
    assert predictor.files == [m.folder for m in ensemble.members]


def test_a_member_can_answer_in_anothers_order(folder: Maker) -> None:
    plain = Predictor(folder("b", 2, ("z", "x", "y")))
    turned = Predictor(plain.folder)
    turned.answer_in_order_of(["x", "y", "z"])
    batch = packed()
    assert torch.equal(turned(batch), plain(batch)[:, [1, 2, 0]])
    assert turned.label_names == ["x", "y", "z"]


def test_layers_are_the_leads_and_the_others_are_not_asked_for_them(folder: Maker) -> None:
    ensemble = of(folder("a"), folder("b", 2))
    lead, other = (prepare(Predictor(m.folder)._own) for m in ensemble.members)
    asked: list[Needs] = []

    def told(batch: Batch, needs: Needs):
        asked.append(needs)
        return other(batch, needs)

    teacher = EnsembleTeacher(ensemble, CLASSES, lead, [(told, [0, 1, 2])])
    output = teacher(packed(), Needs(hidden_states=True))
    want = lead(packed(), Needs(hidden_states=True))
    assert output.hidden_states is not None
    assert want.hidden_states is not None
    assert all(torch.equal(x, y) for x, y in zip(output.hidden_states, want.hidden_states))
    assert not asked
    teacher(packed(), Needs(hidden_states=True, logits=True))
    assert asked == [Needs(logits=True)]


def test_operations_are_those_of_all_that_answer(folder: Maker) -> None:
    ensemble, batch = of(folder("a"), folder("b", 2)), packed()
    lead, other = (prepare(Predictor(m.folder)._own) for m in ensemble.members)
    teacher = EnsembleTeacher(ensemble, CLASSES, lead, [(other, [0, 1, 2])])
    both, inner = Needs(hidden_states=True, logits=True), Needs(hidden_states=True)
    one, two = (model.count_operations(batch, Needs(logits=True)) for model in (lead, other))
    assert one is not None
    assert two is not None
    assert teacher.count_operations(batch, both) == one + two
    alone = teacher.count_operations(batch, inner)
    assert alone is not None
    assert alone == lead.count_operations(batch, inner)
    assert alone < one

    def answer(batch: Batch, needs: Needs) -> EncoderOutput:
        return other(batch, needs)

    unknown = EnsembleTeacher(ensemble, CLASSES, lead, [(answer, [0, 1, 2])])
    assert unknown.count_operations(batch, both) is None


def test_the_fingerprint_is_of_all_that_decides(folder: Maker) -> None:
    a, b = folder("a"), folder("b", 2)
    base = of(a, b)
    others = [
        of(b, a),
        of(a, b, lead=1),
        of(a, b, combine="probabilities"),
        of(a, folder("c", 3)),
        Ensemble((Member("a", a, 0.4), Member("b", b, 0.6))),
    ]
    found = {e.fingerprint for e in (base, *others)}
    assert len(found) == 6
    assert of(a, b).fingerprint == base.fingerprint
    assert list(base.parents()) == ["teacher 1 of 2, weight 0.5", "teacher 2 of 2, weight 0.5"]
    assert base.sentence() == "2 teachers, mean of logits: a x 0.5 (its layers are compared), b x 0.5"
    assert members_in_order(base) == [[0, 1, 2], [0, 1, 2]]


def test_those_that_do_not_fit_are_refused(folder: Maker, toy_tokenizer_files: dict[str, bytes]) -> None:
    other = {k: v.replace(b"actor", b"drama") for k, v in toy_tokenizer_files.items()}
    a = folder("a")
    same = folder("copy")
    cases = {
        "teacher copy: teachers a and copy are the same model": same,
        "teacher l: the models have different labels": folder("l", 2, ("x", "y", "w")),
        "teacher n: the models have different labels": folder("n", 2, ("x", "y")),
        "teacher r: the teachers are for different tasks: classification regression and classification "
        "single label of a": folder("r", 2, ("s",), head=HeadConfig("classification", labels=1, problem="regression")),
        "teacher t: the teachers have different tokenizers": folder("t", 2, tokenizer=other),
        "teacher s: a maximum length of 24 tokens is above the teacher's 16": folder("s", 2, max_positions=16),
        "teacher m: the teacher has no task head": folder("m", 2, head=HeadConfig("masked_lm")),
    }
    for line, bad in cases.items():
        with pytest.raises(UserError) as caught:
            of(a, bad).check(24)
        assert str(caught.value).startswith(line), caught.value
        assert caught.value.do
    of(a, folder("fine", 2)).check(24)
