"""Narrower students: nothing lost where nothing is cut, and exact where what is cut carries nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_helpers import UNIFORM, VARIATIONS, batch, model, needs
from torch import Tensor

from compress.contracts import EncoderOutput, Needs
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import encode_texts
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.low_rank import is_low_rank
from compress.encoder.config.shapes import resize_config
from compress.encoder.config.sharing import Sharing
from compress.encoder.infer.statistics import collect, refit
from compress.encoder.modules.layers import EncoderLayer
from compress.encoder.modules.model import Model
from compress.encoder.reshape.basis import (
    METHODS,
    Method,
    compute_principal_basis,
    draw_random_basis,
    select_evenly,
    space_evenly,
)
from compress.encoder.reshape.narrow import narrow
from compress.errors import UserError
from compress.modelfolder.folder import load_model
from evaluation.representation.cka import LayerCKA

PROSE = Path(__file__).parents[2] / "docs" / "methods" / "distillation.md"
WHOLE = [name for name, config in VARIATIONS.items() if not is_low_rank(config)]
TEXT = [batch([9, 7, 5, 5], seed=s) for s in range(8)]


def narrowed(teacher: Model, config: EncoderConfig, method: Method, seed: int = 0) -> Model:
    inputs = [batch([9, 7, 5, 5], teacher.config, seed=s) for s in range(8)]
    return narrow(teacher, config, method, seed=seed, statistics=collect(teacher, inputs) if method == "svd" else None)


def layer_of(made: Model, index: int = 0) -> Any:
    found = made.encoder.layers[index]
    assert isinstance(found, EncoderLayer)
    return found


def tensors(output: EncoderOutput) -> list[Tensor]:
    return [x for x in (output.last_hidden, output.logits, output.pair_logits, output.pooled) if x is not None]


# --- what must hold for every shape -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", WHOLE)
def test_the_same_shape_is_the_same_model_to_the_bit(name: str, method: Method) -> None:
    teacher = model(VARIATIONS[name])
    student = narrowed(teacher, teacher.config, method)
    theirs = teacher.state_dict()
    for key, tensor in student.state_dict().items():
        assert torch.equal(tensor, theirs[key]), key
        assert tensor.data_ptr() != theirs[key].data_ptr(), key


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", WHOLE)
def test_every_kind_of_encoder_can_be_narrowed(name: str, method: Method) -> None:
    teacher = model(VARIATIONS[name])
    config = resize_config(teacher.config, hidden=8)
    student = narrowed(teacher, config, method)
    assert student.config == config
    assert student.config.layers[0].feed_forward == teacher.config.layers[0].feed_forward // 2
    assert set(student.head_configs) == set(teacher.head_configs)
    output = student(batch([5, 3], config), needs(config))
    assert output.last_hidden.shape == (8, 8)
    assert all(x.isfinite().all() for x in tensors(output))
    output.last_hidden.square().sum().backward()
    again = narrowed(teacher, config, method)
    assert all(torch.equal(a, b) for a, b in zip(student.state_dict().values(), again.state_dict().values()))


@pytest.mark.parametrize("method", METHODS)
def test_only_the_tables_narrower(method: Method) -> None:
    teacher = model(UNIFORM)
    student = narrowed(teacher, resize_config(UNIFORM, embedding=8), method)
    assert student.encoder.embeddings.word.weight.shape == (50, 8)
    projection = student.encoder.embeddings.projection
    assert projection is not None
    assert projection.weight.shape == (16, 8)
    student(batch([5, 3]), needs(UNIFORM))
    for name in (
        "encoder.layers.1.attention.query.weight",
        "encoder.pooler.dense.weight",
        "heads.task.classifier.bias",
    ):
        assert torch.equal(student.state_dict()[name], teacher.state_dict()[name])


def test_factorized_tables_keep_their_width_where_the_stream_narrows() -> None:
    config = resize_config(VARIATIONS["factorized"], hidden=12)
    assert (config.width, config.hidden) == (8, 12)
    teacher = model(VARIATIONS["factorized"])
    student = narrowed(teacher, config, "svd")
    assert torch.equal(student.encoder.embeddings.word.weight, teacher.encoder.embeddings.word.weight)


@pytest.mark.parametrize("method", METHODS)
def test_tables_that_are_projected_before_their_norm(method: Method) -> None:
    config = dataclasses.replace(VARIATIONS["factorized"], project_first=True)
    teacher = Model(config, {"mlm": HeadConfig("masked_lm", tied_projection=True)})
    student = narrowed(teacher, resize_config(config, hidden=8, embedding=4), method)
    assert student.encoder.embeddings.norm.weight.shape == (8,)
    features = student(batch([5, 3]), Needs(mlm="all")).vocabulary
    assert features is not None
    assert features.logits().shape == (8, 50)


def test_layers_that_share_some_matrices_are_not_narrowed() -> None:
    config = dataclasses.replace(UNIFORM, sharing=Sharing((0, 0, 0), (0, 1, 2)))
    with pytest.raises(UserError, match=r"this model's layers share matrices.*narrow it before sharing its layers"):
        narrow(Model(config, {}), resize_config(config, hidden=8), "selection")


def test_uneven_heads_and_feed_forward_parts() -> None:
    config = resize_config(UNIFORM, heads=[4, 2, 1], feed_forward=[24, 12, 5])
    assert [shape.heads for shape in config.layers] == [4, 2, 1]
    assert {shape.head_width for shape in config.layers} == {4}
    student = narrowed(model(UNIFORM), config, "svd")
    student(batch([4, 2]))


def test_fixed_positions_become_learned_ones() -> None:
    """A table of sinusoids cannot be turned along with the words."""
    config = resize_config(VARIATIONS["sinusoidal"], hidden=8)
    assert config.positions == "learned"
    assert resize_config(VARIATIONS["sinusoidal"], feed_forward=8).positions == "sinusoidal"


# --- selection ----------------------------------------------------------------------------------------------------


def test_selection_takes_elements_of_the_teacher_evenly() -> None:
    teacher = model(UNIFORM)
    student = narrowed(teacher, resize_config(UNIFORM, hidden=8, heads=2, feed_forward=12), "selection")
    channels, theirs, ours = space_evenly(16, 8), layer_of(teacher), layer_of(student)
    assert channels.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    rows = torch.tensor([0, 1, 2, 3, 8, 9, 10, 11])  # heads 0 and 2 of 4, all of their 4 channels
    assert torch.equal(ours.attention.query.weight, theirs.attention.query.weight[rows][:, channels])
    assert torch.equal(ours.attention.output.weight, theirs.attention.output.weight[channels][:, rows])
    neurons = space_evenly(24, 12)
    assert torch.equal(ours.feed_forward.up.weight, theirs.feed_forward.up.weight[neurons][:, channels])
    assert torch.equal(ours.output_norm.bias, theirs.output_norm.bias[channels])
    assert torch.equal(student.encoder.embeddings.word.weight, teacher.encoder.embeddings.word.weight[:, channels])


def test_rotary_channels_stay_in_pairs() -> None:
    """Channel i of a head turns with channel i + K/2, by an angle that depends on i."""
    config = VARIATIONS["rotary"]
    teacher = model(config)
    student = narrowed(teacher, resize_config(config, hidden=8), "selection")
    rows = torch.tensor([0, 2])  # of the first head: pair 0 of pairs 0 and 1
    expected = layer_of(teacher).attention.query.weight[rows][:, space_evenly(16, 8)]
    assert torch.equal(layer_of(student).attention.query.weight[:2], expected)


# --- svd: exact where nothing is lost -------------------------------------------------------------------------------


def test_what_carries_nothing_is_cut_without_loss() -> None:
    """Two dead heads, dead neurons, heads of half their rank: the outputs stay."""
    teacher = model(UNIFORM).double()
    with torch.no_grad():
        for index in range(3):
            part = layer_of(teacher, index)
            part.attention.output.weight[:, :8] = 0  # heads 0 and 1 write nothing
            for kind in (part.attention.query, part.attention.key, part.attention.value):
                kind.weight[2::4], kind.weight[3::4] = kind.weight[::4], kind.weight[1::4]
                kind.bias[2::4], kind.bias[3::4] = kind.bias[::4], kind.bias[1::4]
            part.feed_forward.down.weight[:, ::2] = 0
    config = dataclasses.replace(
        UNIFORM, layers=tuple(dataclasses.replace(s, heads=2, head_width=2, feed_forward=12) for s in UNIFORM.layers)
    )
    student = narrowed(teacher, config, "svd")
    for ours, theirs in zip(*(tensors(m(TEXT[0], needs(UNIFORM))) for m in (student, teacher)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.thorough
def test_svd_keeps_the_most_of_a_trained_encoder(minilm: Path) -> None:
    """How alike the last hidden states are, by CKA, before any training."""
    loaded = load_model(minilm, keep=())
    tokenizer = Tokenizer.from_files(loaded.tokenizer_files)
    texts = [line for line in PROSE.read_text(encoding="utf-8").splitlines() if len(line) > 100][:32]
    examples = encode_texts(tokenizer, texts, max_length=24)
    batches = list(evaluation_batches(examples, 4096))
    alike: dict[str, float] = {}
    config = resize_config(loaded.config, hidden=192, heads=[12] * 6)
    for method in METHODS:
        statistics = collect(loaded.model, batches) if method == "svd" else None
        student = narrow(loaded.model, config, method, statistics=statistics)
        cka = LayerCKA()
        with torch.no_grad():
            for b in batches:
                cka.update(*([m(b).last_hidden] for m in (student, loaded.model)))
        alike[method] = float(cka.matrix()[0, 0])
    assert alike["svd"] > max(alike["selection"], alike["projection"]) + 0.1, alike


def test_the_bases_are_orthonormal_and_principal() -> None:
    x = torch.randn(200, 12, generator=torch.Generator().manual_seed(0)).double() * torch.linspace(3, 0.1, 12)
    second = x.T @ x / 200
    gains = torch.rand(4, 12, generator=torch.Generator().manual_seed(1)).double() + 0.5
    for basis in (
        compute_principal_basis(second, 5),
        compute_principal_basis(second, 5, gains),
        draw_random_basis(12, 5, torch.Generator().manual_seed(2)),
    ):
        torch.testing.assert_close(basis.matrix.T @ basis.matrix, torch.eye(5).double(), rtol=0, atol=1e-12)
    best = torch.linalg.eigvalsh(second)[-5:].sum()
    for basis in (compute_principal_basis(second, 5), compute_principal_basis(second, 5, gains)):
        torch.testing.assert_close((basis.matrix.T @ second @ basis.matrix).trace(), best)
    assert select_evenly(12, 5).matrix.sum() == 5


def test_the_axes_hold_the_channels_with_outlying_gains() -> None:
    second = torch.eye(12).double() + torch.diag(torch.linspace(1, 0, 12)).double()
    gains = torch.ones(3, 12).double()
    gains[:, 4] = 6.0
    basis = compute_principal_basis(second, 8, gains)
    assert basis.matrix[4].abs().max() == pytest.approx(1)


def test_refitting_is_least_squares() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(300, 6, generator=random).double() + 1
    weight, bias = torch.randn(4, 6, generator=random).double(), torch.randn(4, generator=random).double()
    kept = torch.randn(6, 3, generator=random).double()
    both = torch.cat([x, torch.ones(300, 1)], 1)
    start = torch.zeros(4, 3).double()
    w, b = refit(weight, bias, kept, both.T @ both / 300, start, tokens=10**9)
    fewer = torch.cat([x @ kept, torch.ones(300, 1)], 1)
    expected = torch.linalg.lstsq(fewer, x @ weight.T + bias).solution
    torch.testing.assert_close(torch.cat([w, b[:, None]], 1), expected.T, rtol=1e-4, atol=1e-4)
    w, b = refit(weight, bias, kept, both.T @ both / 300, start + 7, tokens=1)
    assert (w - 7).norm() < (expected.T[:, :-1] - 7).norm(), "few tokens leave more of what was there"


# --- shapes -------------------------------------------------------------------------------------------------------


def test_what_was_not_asked_for_follows() -> None:
    base = EncoderConfig.uniform(vocabulary=50, hidden=768, layers=2, heads=12, feed_forward=3072)
    tiny = resize_config(base, hidden=312, feed_forward=1200)  # TinyBERT4
    assert (tiny.layers[0].heads, tiny.layers[0].head_width, tiny.layers[0].feed_forward) == (12, 26, 1200)
    half = resize_config(base, hidden=384)
    assert (half.layers[0].heads, half.layers[0].head_width, half.layers[0].feed_forward) == (12, 32, 1536)
    pruned = resize_config(base, heads=[6, 4])
    assert [(s.heads, s.head_width) for s in pruned.layers] == [(6, 64), (4, 64)]
    assert resize_config(base, heads=6, hidden=384).layers[0].head_width == 64
    assert resize_config(base) == base


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"hidden": 10}, "student.hidden: hidden 10 is not divisible by 4 heads; use hidden 8 or 12, or heads 5"),
        ({"hidden": 12, "heads": 5}, "student.heads: hidden 12 is not divisible by 5 heads; use hidden 10 or 15"),
        ({"heads": [4, 2]}, "student.heads: 2 numbers for 3 layers; give one number for all, or one for each layer"),
        ({"feed_forward": [4]}, "student.intermediate_size: 1 numbers for 3 layers"),
        (
            {"hidden": 32},
            "student.hidden: hidden would be 32, but the weights are copied from one of 16: a student cannot be wider "
            "than the model that initializes it; use 16 or less, init: random, or a wider checkpoint as model",
        ),
        ({"feed_forward": 25}, "student.intermediate_size: the intermediate size of layer 0 would be 25, but"),
        ({"heads": [4, 5, 4]}, "student.heads: the heads of layer 1 would be 5"),
        (
            {"heads": 2},
            "student.heads: the width of a head of layer 0 would be 8, but the weights are copied from one of 4: a "
            "student cannot be wider than the model that initializes it; use more heads; or list the heads of each "
            "layer, whose width then remains 4",
        ),
        ({"embedding": 24}, "student.embedding: embedding would be 24"),
    ],
)
def test_shapes_that_cannot_be(asked: dict[str, Any], message: str) -> None:
    teacher = model(UNIFORM)
    with pytest.raises(UserError) as told:
        narrow(teacher, resize_config(UNIFORM, **asked), "selection")
    assert message in str(told.value)


def test_the_statistics_leave_the_model_as_it_was() -> None:
    teacher = model(UNIFORM).train()
    found = collect(teacher, TEXT)
    assert teacher.training
    assert all(not part._forward_hooks and not part._forward_pre_hooks for part in teacher.modules())
    assert len(found.inputs) == 9
    assert len(found.outputs) == 7
    for second in (*found.inputs.values(), *found.outputs.values()):
        assert second[-1, -1] == 1


def test_a_head_of_its_own_on_each_kind_of_reader() -> None:
    """Distilbert's, electra's and a tagging head read the first token, or every token, without a pooler."""
    for head in (
        HeadConfig("classification", style="distilbert"),
        HeadConfig("classification", style="electra"),
        HeadConfig("token_classification", labels=5),
        HeadConfig("question_answering"),
        HeadConfig("replaced_token"),
    ):
        config = dataclasses.replace(UNIFORM, pooler=False)
        teacher = Model(config, {head.name: head})
        for method in METHODS:
            student = narrowed(teacher, resize_config(config, hidden=8), method)
            assert set(student.heads) == {head.name}


def test_products_are_not_narrowed() -> None:
    teacher = model(VARIATIONS["low rank"])
    with pytest.raises(UserError, match="narrowing it needs full matrices"):
        narrow(teacher, teacher.config, "selection")
