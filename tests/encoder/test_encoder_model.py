"""The model: both layouts agree, nothing is computed or touched that should not be, mistakes are told."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
import torch
from encoder_helpers import EVERYTHING, UNIFORM, VARIATIONS, batch, heads, model, needs, padded
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from compress.contracts import EncoderOutput, Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.layers import EncoderLayer, sinusoids
from compress.encoder.modules.model import Model
from compress.encoder.modules.tensors import assign_tensors
from compress.errors import UserError


def agree(packed: EncoderOutput, wide: EncoderOutput, mask: Tensor, tolerance: float) -> None:
    """Every field of the packed output against the padded one."""
    real = mask.bool()

    def same(ours: Tensor, theirs: Tensor, what: str) -> None:
        assert ours.shape == theirs.shape, what
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda m: f"{what}: {m}")

    for name in ("pooled", "logits", "pair_logits"):
        ours, theirs = getattr(packed, name), getattr(wide, name)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            same(ours, theirs, name)
    same(packed.last_hidden, wide.last_hidden[real], "last_hidden")
    for name in ("hidden_states", "queries", "keys", "values"):
        for layer, (ours, theirs) in enumerate(zip(getattr(packed, name), getattr(wide, name), strict=True)):
            same(ours, theirs[real], f"{name} {layer}")
    for name in ("attentions", "attention_scores"):
        for ours, theirs in zip(getattr(packed, name), getattr(wide, name), strict=True):
            for row, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                same(a, b, f"{name} of row {row}")
    assert packed.vocabulary is not None
    assert wide.vocabulary is not None
    same(packed.vocabulary.logits(), wide.vocabulary.logits()[real], "vocabulary")


@pytest.mark.parametrize("name", VARIATIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-4)])
def test_packed_and_padded_agree(name: str, dtype: torch.dtype, tolerance: float) -> None:
    config = VARIATIONS[name]
    built = model(config).to(dtype)
    b = batch([5, 5, 1, 9, 64, 2], config)
    ids, mask, segments = padded(b)
    wide = built.forward_padded(ids, mask, segments, needs(config))
    agree(built(b, needs(config)), wide, mask, tolerance)
    without_maps = replace(needs(config), attentions=False, attention_scores=False)
    fused, wide = built(b, without_maps), built.forward_padded(ids, mask, segments, without_maps)
    torch.testing.assert_close(fused.last_hidden, wide.last_hidden[mask.bool()], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(fused.logits, wide.logits, rtol=tolerance, atol=tolerance)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(0, 3), st.sampled_from(sorted(VARIATIONS)))
@settings(max_examples=scaled(25), deadline=None)
def test_any_lengths_agree(lengths: list[int], extra: int, name: str) -> None:
    config = VARIATIONS[name]
    built = model(config).double()
    b = batch(lengths, config, seed=sum(lengths))
    ids, mask, segments = padded(b, extra)
    agree(built(b, needs(config)), built.forward_padded(ids, mask, segments, needs(config)), mask, 1e-12)


def test_gradients_of_both_layouts_agree() -> None:
    b = batch([7, 3, 7])
    ids, mask, segments = padded(b)
    gradients = []
    for layout in ("packed", "padded"):
        built = model(UNIFORM).double()
        if layout == "packed":
            hidden = built(b).last_hidden
        else:
            hidden = built.forward_padded(ids, mask, segments).last_hidden[mask.bool()]
        (hidden * torch.arange(hidden.numel()).view_as(hidden).cos()).sum().backward()
        gradients.append({name: p.grad for name, p in built.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-9, atol=1e-11)


def test_a_sequence_does_not_see_its_neighbours() -> None:
    built = model(UNIFORM).double()
    together = built(batch([6, 4, 6], seed=3), EVERYTHING)
    b = batch([6, 4, 6], seed=3)
    alone = replace(
        b,
        input_ids=b.input_ids[6:10],
        segment_ids=b.segment_ids[6:10],
        position_ids=b.position_ids[6:10],
        cu_seqlens=torch.tensor([0, 4]),
        row_ids=b.row_ids[1:2],
    )
    torch.testing.assert_close(built(alone).last_hidden, together.last_hidden[6:10], rtol=1e-12, atol=1e-12)


def test_maps_are_what_attention_uses() -> None:
    built, b = model(UNIFORM).double(), batch([5, 9, 9, 2])
    out = built(b, EVERYTHING)
    assert out.queries is not None
    assert out.keys is not None
    assert out.attentions is not None
    assert out.attention_scores is not None
    for layer in range(3):
        for row, (first, last) in enumerate(zip(b.cu_seqlens[:-1], b.cu_seqlens[1:], strict=True)):
            q, k = (t[layer][first:last].transpose(0, 1) for t in (out.queries, out.keys))
            scores = q @ k.transpose(1, 2) / 2.0  # √4: heads of width 4
            torch.testing.assert_close(out.attention_scores[layer][row], scores)
            torch.testing.assert_close(out.attentions[layer][row], scores.softmax(-1))
    torch.testing.assert_close(built(b).last_hidden, out.last_hidden, rtol=1e-12, atol=1e-12)


def test_only_what_is_asked_for_is_there() -> None:
    built, b = model(UNIFORM), batch([4, 3])
    names = [f.name for f in dataclasses.fields(EncoderOutput) if f.name != "last_hidden"]
    asked = {
        "hidden_states": Needs(hidden_states=True),
        "attentions": Needs(attentions=True),
        "attention_scores": Needs(attention_scores=True),
        "pooled": Needs(pooled=True),
        "logits": Needs(logits=True),
        "pair_logits": Needs(pair_logits=True),
        "vocabulary": Needs(mlm="masked"),
    }
    assert all(getattr(built(b), name) is None for name in names)
    for wanted, question in asked.items():
        out = built(b, question)
        assert {name for name in names if getattr(out, name) is not None} == {wanted}
    out = built(b, Needs(projections=True))
    assert {name for name in names if getattr(out, name) is not None} == {"queries", "keys", "values"}


def test_vocabulary_logits_only_where_they_are_read() -> None:
    built, b = model(UNIFORM), batch([6, 5])
    some, whole = built(b, Needs(mlm="masked")).vocabulary, built(b, Needs(mlm="all")).vocabulary
    assert some is not None
    assert whole is not None
    assert some.features.shape == (6, 16)
    assert whole.features.shape == (11, 16)
    assert some.positions is b.mlm_positions
    assert whole.positions is None
    torch.testing.assert_close(some.logits(), whole.logits()[b.mlm_positions])
    ids, mask, segments = padded(b)
    at = mask.flatten().nonzero()[:, 0][b.mlm_positions]
    wide = built.forward_padded(ids, mask, segments, Needs(mlm="masked"), mlm_positions=at).vocabulary
    assert wide is not None
    torch.testing.assert_close(wide.logits(), some.logits(), rtol=1e-4, atol=1e-4)


def test_tied_and_shared_weights_are_one_tensor() -> None:
    built = model(VARIATIONS["shared"])
    out = built(batch([4]), Needs(mlm="all")).vocabulary
    assert out is not None
    assert out.weight is built.encoder.embeddings.word.weight
    assert len(built.encoder.layers) == 2
    assert not [name for name in built.state_dict() if "decoder" in name or name.startswith("encoder.layers.2")]
    out.logits().sum().backward()
    gradient = built.encoder.embeddings.word.weight.grad
    assert gradient is not None
    assert (gradient.abs().sum(1) > 0).all()  # through the last matrix every row has a gradient


def test_parameter_names() -> None:
    layer = [f"attention.{n}.{w}" for n in ("query", "key", "value", "output") for w in ("weight", "bias")]
    layer += [f"{n}.{w}" for n in ("attention_norm", "output_norm") for w in ("weight", "bias")]
    layer += [f"feed_forward.{n}.{w}" for n in ("up", "down") for w in ("weight", "bias")]
    expected = {f"encoder.layers.{i}.{name}" for i in range(3) for name in layer}
    expected |= {f"encoder.embeddings.{n}.weight" for n in ("word", "position", "segment", "norm")}
    expected |= {"encoder.embeddings.norm.bias", "encoder.pooler.dense.weight", "encoder.pooler.dense.bias"}
    expected |= {f"heads.{n}.classifier.{w}" for n in ("task", "pair") for w in ("weight", "bias")}
    expected |= {f"heads.mlm.{n}.{w}" for n in ("dense", "norm") for w in ("weight", "bias")} | {"heads.mlm.bias"}
    assert set(model(UNIFORM).state_dict()) == expected
    assert {n for n in model(VARIATIONS["factorized"]).state_dict() if "projection" in n} == {
        "encoder.embeddings.projection.weight",
        "encoder.embeddings.projection.bias",
    }
    assert "heads.task.pre_classifier.weight" in model(VARIATIONS["distilbert"]).state_dict()


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = Model(UNIFORM, heads(UNIFORM))
    assert torch.equal(torch.get_rng_state(), before)
    again, other = Model(UNIFORM, heads(UNIFORM)).initialize(0), Model(UNIFORM, heads(UNIFORM)).initialize(1)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
        assert tensor.dim() < 2 or not torch.equal(tensor, other.state_dict()[name])
    double = Model(UNIFORM).double().initialize(0).state_dict()
    assert torch.equal(double["encoder.pooler.dense.weight"].float(), first.encoder.pooler.dense.weight)  # pyright: ignore
    table = first.encoder.embeddings.word.weight
    assert (table[0] == 0).all()
    assert 0.015 < table[1:].std() < 0.025
    assert (first.encoder.layers[0].attention_norm.weight == 1).all()  # pyright: ignore
    assert (first.heads["mlm"].bias == 0).all()  # pyright: ignore


@pytest.mark.parametrize("name", VARIATIONS)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_layers_of_one_shape_have_nothing_in_common_but_their_form(name: str, device: str) -> None:
    """All but the first are copies of it."""
    config = replace(VARIATIONS[name], sharing=None)
    with torch.device(device):
        layers = Model(config).encoder.layers
        alone = [EncoderLayer(config, shape, config.first_norm or n > 0) for n, shape in enumerate(config.group_shapes)]
    for made, wanted in zip(layers, alone, strict=True):
        assert str(made) == str(wanted)
        ours, theirs = made.state_dict(keep_vars=True), wanted.state_dict(keep_vars=True)
        assert [(n, x.shape, x.device, type(x)) for n, x in ours.items()] == [
            (n, x.shape, x.device, type(x)) for n, x in theirs.items()
        ]
    held = [x for layer in layers for part in layer.modules() for x in vars(part).values() if isinstance(x, dict | set)]
    tensors = [x for layer in layers for x in (*layer.parameters(), *layer.buffers())]
    assert len({id(x) for x in (*held, *tensors)}) == len(held) + len(tensors)


def test_sinusoids() -> None:
    table = sinusoids(5, 8)
    assert table[0].tolist() == [0, 1] * 4
    torch.testing.assert_close(table[3, 2], torch.tensor(3 / 10000 ** (2 / 8)).sin())
    torch.testing.assert_close(table[3, 3], torch.tensor(3 / 10000 ** (2 / 8)).cos())
    fixed, start = model(VARIATIONS["sinusoidal"]), Model(VARIATIONS["sinusoidal_start"])
    assert torch.equal(fixed.state_dict()["encoder.embeddings.position.weight"], sinusoids(64, 16))
    assert "encoder.embeddings.position.weight" not in dict(fixed.named_parameters())
    assert torch.equal(start.encoder.embeddings.position.weight, sinusoids(64, 16))
    assert start.encoder.embeddings.position.weight.requires_grad


def test_loads_into_a_model_without_memory() -> None:
    original = model(VARIATIONS["sinusoidal"])
    with torch.device("meta"):
        other = Model(original.config, original.head_configs)
    state = original.state_dict()
    assign_tensors(other, state)
    b = batch([5, 2])
    assert torch.equal(other.eval()(b, Needs(mlm="all")).last_hidden, original(b).last_hidden)
    for name, tensor in other.state_dict().items():
        assert tensor.data_ptr() == state[name].data_ptr(), "not a copy"
    assert {n for n, p in other.named_parameters() if p.requires_grad} == {n for n, _ in original.named_parameters()}
    narrow = {"encoder.embeddings.word.weight": torch.zeros(50, 8)}
    with pytest.raises(ValueError, match=r"word\.weight has shape \(50, 8\), and the model's has \(50, 16\)"):
        assign_tensors(other, narrow, partly=True)
    with pytest.raises(ValueError, match=r"the model has no other"):
        assign_tensors(other, {**state, "other": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"there is no tensor for encoder\.embeddings\.word\.weight"):
        assign_tensors(other, {name: x for name, x in state.items() if name != "encoder.embeddings.word.weight"})


@pytest.mark.parametrize("name", VARIATIONS)
def test_trains_under_autocast(name: str) -> None:
    config = VARIATIONS[name]
    built = model(config).train()
    b = batch([5, 5, 60, 2, 55], config)
    with torch.autocast("cpu", torch.bfloat16):
        out = built(b, replace(needs(config), attentions=False, attention_scores=False))
        assert out.vocabulary is not None
        loss = out.vocabulary.logits().float().square().mean() + out.logits.float().square().mean()  # pyright: ignore
        if out.pair_logits is not None:
            loss = loss + out.pair_logits.float().square().mean()
    loss.backward()
    for name_, parameter in built.named_parameters():
        assert parameter.grad is not None, name_
        assert parameter.grad.isfinite().all(), name_
        assert parameter.grad.dtype == torch.float32


def test_autocast_stays_near_fp32() -> None:
    config = dataclasses.replace(UNIFORM, max_positions=128)
    built, b = Model(config, heads(config)).eval(), batch([100, 3, 30, 60], config)
    exact = built(b).last_hidden
    with torch.autocast("cpu", torch.bfloat16):
        near = built(b).last_hidden
    assert (near.float() - exact).norm() < 0.02 * exact.norm()


def test_dropout_only_while_training() -> None:
    built, b = model(UNIFORM), batch([9, 9, 4])
    assert torch.equal(built(b).last_hidden, built(b).last_hidden)
    built.train()
    torch.manual_seed(0)
    first = built(b).last_hidden
    assert not torch.equal(first, built(b).last_hidden)
    torch.manual_seed(0)
    assert torch.equal(first, built(b).last_hidden)


@pytest.mark.parametrize(("heads_", "question"), [({}, Needs(logits=True)), ({}, Needs(pair_logits=True))])
def test_missing_head(heads_: dict[str, HeadConfig], question: Needs) -> None:
    built = Model(UNIFORM, heads_)
    with pytest.raises(UserError, match=r"^this model has no '(task|pair)' head: heads: none$"):
        built(batch([3]), question)


def test_missing_parts_are_told() -> None:
    with pytest.raises(UserError, match=r"^this model has no 'mlm' head: heads: task$"):
        Model(UNIFORM, {"task": HeadConfig("classification")})(batch([3]), Needs(mlm="all"))
    with pytest.raises(
        UserError, match=r"^vocabulary logits at masked positions were requested, but the batch has no masked tokens"
    ):
        model(UNIFORM)(replace(batch([3]), mlm_positions=None), Needs(mlm="masked"))
    with pytest.raises(UserError, match=r"^encoder\.pooler: this encoder has no pooler; use pooler: true$"):
        model(VARIATIONS["distilbert"])(batch([3]), Needs(pooled=True))


def test_sequence_longer_than_the_positions() -> None:
    with pytest.raises(UserError) as caught:
        model(UNIFORM)(batch([4, 65]))
    assert str(caught.value) == (
        "row 101: a sequence of 65 tokens is too long: this model has 64 positions; use a smaller max_length"
    )
    ids = torch.zeros(1, 65, dtype=torch.long)
    with pytest.raises(UserError, match=r"^a sequence of 65 tokens is too long: this model has 64 positions$"):
        model(UNIFORM).forward_padded(ids)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("input_ids", 50, "token id 50 is outside the model's table: allowed: 0..49; use the tokenizer that belongs to "
         "this model"),
        ("input_ids", -1, "token id -1 is outside the model's table: allowed: 0..49; use the tokenizer that belongs to "
         "this model"),
        ("segment_ids", 2, "segment id 2 is outside the model's table: allowed: 0..1; use the tokenizer that belongs "
         "to this model"),
        ("position_ids", 64, "a position is outside the model's table: allowed: 0..63"),
    ],
)  # fmt: skip
def test_ids_outside_the_tables(field: str, value: int, message: str) -> None:
    b = batch([4, 3])
    ids = getattr(b, field).clone()
    ids[2] = value
    with pytest.raises(UserError) as caught:
        model(UNIFORM)(replace(b, **{field: ids}))
    assert str(caught.value) == message


def test_padded_without_mask_or_segments() -> None:
    built: Model = model(UNIFORM).double()
    b = batch([6, 6])
    ids, mask, _ = padded(b)
    plain = built.forward_padded(ids).last_hidden
    zeros = torch.zeros_like(ids)
    torch.testing.assert_close(plain, built.forward_padded(ids, mask, zeros).last_hidden, rtol=1e-12, atol=1e-12)


def test_exports(tmp_path: object) -> None:
    """The padded layout is made for tracing: torch.export must get through it with free sizes."""
    config: EncoderConfig = UNIFORM
    built = model(config)

    class Exported(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = built

        def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
            logits = self.model.forward_padded(ids, mask, segments, Needs(logits=True)).logits
            assert logits is not None
            return logits

    ids, mask, segments = padded(batch([6, 4]))
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=64)}
    program = torch.export.export(Exported().eval(), (ids, mask, segments), dynamic_shapes=(sizes, sizes, sizes))
    ids, mask, segments = padded(batch([9, 2, 5], seed=4))
    got = program.module()(ids, mask, segments)
    torch.testing.assert_close(got, Exported()(ids, mask, segments), rtol=1e-5, atol=1e-5)
