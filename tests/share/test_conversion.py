"""Conversion: what must be exact is exact, what is shared is one tensor on the disk too, the rest is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from compress.contracts import Batch, LayerGroups, Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.config.sharing import Sharing
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.folder import FolderMeta, inspect, load_model, save_model
from compress.modelfolder.private import WEIGHTS
from compress.stages.share.conversion import check_joins, convert, format_groups, refuse_shared, unshare_layers
from compress.stages.share.starts.chosen import Start as Chosen
from compress.stages.share.starts.mean import Start as Mean
from compress.storage import safe

CONFIG = EncoderConfig.uniform(
    vocabulary=60, hidden=16, layers=4, heads=4, feed_forward=24, max_positions=32, norm_eps=1e-6
)
HEADS = {"mlm": HeadConfig("masked_lm"), "task": HeadConfig("classification", labels=3)}
PAIRS = LayerGroups((0, 0, 1, 1), (0, 0, 1, 1))
GROUPS = {
    "all": LayerGroups((0,) * 4, (0,) * 4),
    "pairs": PAIRS,
    "cycle": LayerGroups((0, 1, 0, 1), (0, 1, 0, 1)),
    "attention": LayerGroups((0,) * 4, (0, 1, 2, 3)),
    "apart": LayerGroups((0, 0, 1, 1), (0, 1, 1, 0)),
}


def parent(config: EncoderConfig = CONFIG, seed: int = 0) -> Model:
    """Weights large enough that layers differ, biases and norms not trivial."""
    built = Model(config, HEADS).eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=random), alpha=0.2)
    return built


def batch() -> Batch:
    random = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 60, (14,), generator=random)
    return Batch(
        ids, torch.zeros(14, dtype=torch.long), torch.tensor([*range(9), *range(5)]), torch.tensor([0, 9, 14]), 9,
        torch.arange(2),
    )  # fmt: skip


def outputs(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    out = model(batch(), Needs(logits=True, mlm="all"))
    assert out.logits is not None
    assert out.vocabulary is not None
    return out.logits, out.vocabulary.logits()


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_residuals_of_full_rank_restore_the_parent(groups: LayerGroups) -> None:
    model = parent()
    made = convert(model, groups, Mean(), residual_rank=16)
    assert made.config.sharing is not None
    for ours, theirs in zip(outputs(made), outputs(model), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("own_vectors", [True, False])
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_sharing_layers_that_are_equal_changes_nothing(groups: LayerGroups, own_vectors: bool) -> None:
    model = parent()
    first: Any = model.encoder.layers[0]
    for layer in model.encoder.layers:
        layer.load_state_dict(first.state_dict())
    made = convert(model, groups, Mean(), own_vectors=own_vectors)
    for ours, theirs in zip(outputs(made), outputs(model), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert made.config.count_parameters() < model.config.count_parameters()


def test_more_rank_is_nearer_to_the_parent() -> None:
    model = parent()
    (expected, _), errors = outputs(model), []
    for rank in (0, 4, 8, 12, 16):
        made = convert(model, PAIRS, Mean(), residual_rank=rank)
        layers: Any = zip(unshare_layers(made).encoder.layers, model.encoder.layers, strict=True)
        apart = [(a.attention.key.weight - b.attention.key.weight).detach() for a, b in layers]
        errors.append(sum(float(difference.square().sum()) for difference in apart))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-9
    assert outputs(made)[0].shape == expected.shape


def test_a_chosen_layer_with_its_vectors_is_that_layer_again_and_again() -> None:
    model = parent()
    made = convert(model, GROUPS["all"], Chosen(), own_vectors=False)
    assert made.config.layer_groups == (0, 0, 0, 0)
    assert len(made.encoder.layers) == 1
    ours: Any = made.encoder.layers[0]
    theirs: Any = model.encoder.layers[0]
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, theirs.state_dict()[name])


def test_unshared_is_the_same_function() -> None:
    made = convert(parent(), GROUPS["apart"], Mean(), residual_rank=3)
    own = unshare_layers(made)
    assert own.config.sharing is None
    for ours, theirs in zip(outputs(own), outputs(made), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    whole = convert(parent(), PAIRS, Mean(), own_vectors=False)
    torch.testing.assert_close(outputs(unshare_layers(whole))[0], outputs(whole)[0])


def test_layers_of_different_shapes_are_refused_with_the_shapes() -> None:
    shapes = (LayerShape(4, 4, 24), LayerShape(2, 4, 24), LayerShape(4, 4, 24), LayerShape(4, 4, 20))
    model = parent(dataclasses.replace(CONFIG, layers=shapes))
    with pytest.raises(UserError) as error:
        convert(model, PAIRS, Mean())
    assert (
        "layers 0 and 1 are in one group but have different shapes: 4 heads of width 4 and 2 heads of width 4"
        in str(error.value)
    )
    with pytest.raises(UserError, match=r"layers 2 and 3 .* feed-forward width 24 and feed-forward width 20"):
        convert(model, LayerGroups((0, 1, 2, 3), (0, 0, 1, 1)), Mean())


def test_a_rank_above_the_width_is_refused() -> None:
    with pytest.raises(
        UserError, match="residual rank 17 is too large: the smallest matrix has rank 16; use at most 16"
    ):
        convert(parent(), PAIRS, Mean(), residual_rank=17)


def test_what_is_shared_already() -> None:
    made = convert(parent(), PAIRS, Mean())
    with pytest.raises(UserError) as error:
        refuse_shared(made.config, "runs/x")
    assert str(error.value) == (
        "runs/x: this model already shares layers: its groups are 0 1 | 2 3; convert its parent, or merge its groups "
        "further in a second share stage with reuse_input: true"
    )
    check_joins(made.config, GROUPS["all"], "runs/x")
    with pytest.raises(UserError, match="the pattern separates layers 0, 1, which already share parameters"):
        check_joins(made.config, GROUPS["cycle"], "runs/x")
    assert format_groups(GROUPS["attention"]) == "attention 0 1 2 3; feed-forward 0 | 1 | 2 | 3"


# --- on the disk --------------------------------------------------------------------------------------------------


def saved(path: Path, model: Model) -> Path:
    return save_model(path, model, tokenizer_files={}, meta=FolderMeta(task="classification"))


@pytest.mark.parametrize("rank", [0, 2])
def test_a_folder_holds_a_shared_tensor_once_and_gives_it_back_as_one(rank: int, tmp_path: Path) -> None:
    made = convert(parent(), PAIRS, Mean(), residual_rank=rank)
    folder = saved(tmp_path / "m", made)
    stored = safe.load_safetensors(folder / WEIGHTS)
    assert sum(t.numel() for t in stored.values()) == sum(p.numel() for p in made.parameters())
    loaded = load_model(folder)
    assert loaded.config == made.config
    layers: Any = loaded.model.encoder.layers
    assert layers[0].attention.query.weight is layers[1].attention.query.weight
    assert layers[1].attention.query.weight is not layers[2].attention.query.weight
    for ours, theirs in zip(outputs(loaded.model), outputs(made), strict=True):
        assert torch.equal(ours, theirs)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "its layers share matrices but have separate norms and biases" in card
    assert inspect(folder).stock_class is None


def test_tied_tensors_that_came_apart_are_told_on_load(tmp_path: Path) -> None:
    """A file of another tool that spells out every layer: equal copies are read, others refused."""
    from safetensors.torch import save_file

    folder = saved(tmp_path / "m", convert(parent(), PAIRS, Mean()))
    (folder / "manifest.json").unlink()
    file, name = folder / WEIGHTS, "encoder.layers.1.attention.query.weight"
    stored = safe.load_safetensors(file)
    copied = stored["encoder.layers.0.attention.query.weight"].clone()
    save_file({**stored, name: copied}, file, {"format": "pt"})
    load_model(folder)
    save_file({**stored, name: copied + 1}, file, {"format": "pt"})
    with pytest.raises(UserError) as error:
        load_model(folder)
    assert str(error.value) == (
        f"{file}: '{name}' differs from 'encoder.layers.0.attention.query.weight': config.json ties these layers, but "
        "their stored tensors differ; restore the original file"
    )


def test_tied_tensors_that_came_apart_are_told_on_save(tmp_path: Path) -> None:
    made = convert(parent(), PAIRS, Mean())
    layer: Any = made.encoder.layers[3]
    layer.feed_forward.up = torch.nn.Linear(16, 24)
    with pytest.raises(UserError, match=r"'encoder.layers.3.feed_forward.up.weight' is not tied.*separate tensors"):
        saved(tmp_path / "m", made)
    assert not (tmp_path / "m").exists()


def test_one_thing_is_written_in_one_way() -> None:
    made = convert(parent(), PAIRS, Mean(), residual_rank=2)
    assert made.config.sharing == Sharing((0, 0, 1, 1), (0, 0, 1, 1), True, 2)
    assert convert(parent(), LayerGroups((0, 1, 2, 3), (0, 1, 2, 3)), Mean(), residual_rank=2).config == CONFIG
