"""Channels cut along torch-pruning's dependency graph, and heads and neurons cross-checked against it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_pruning
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "encoder"))
from encoder_helpers import RELAXED, UNIFORM, VARIATIONS, batch, model, needs

from compress.contracts import Needs, WidthScores
from compress.encoder.config.encoder import EncoderConfig, LayerShape
from compress.encoder.config.low_rank import is_low_rank
from compress.encoder.infer.statistics import collect
from compress.encoder.modules.gates import Widths, apply_gates
from compress.encoder.modules.model import Model
from compress.encoder.reshape import narrow_method
from compress.encoder.reshape.basis import select_channels
from compress.encoder.reshape.cut import KeptUnits, prune_units
from compress.encoder.reshape.narrow import narrow
from compress.errors import UserError
from compress.modelfolder.folder import load_model
from compress.stages.prune_width import dependency
from compress.stages.prune_width.dependency import cut_channels
from compress.stages.prune_width.spec import Spec
from compress.stages.prune_width.targets import kept_counts

EVERY = {name: c for name, c in VARIATIONS.items() if not is_low_rank(c)}
EVERY["projected first"] = RELAXED["projected first"]
CHANNELS = [0, 2, 3, 4, 7, 8, 9, 10, 12, 13, 15]
IDS = torch.arange(10).view(2, 5)


def same(one: Model, other: Model) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("name", EVERY)
def test_the_graph_finds_what_direct_selection_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, heads and all, against `narrow` with a basis that picks these channels."""
    source = model(EVERY[name])
    made = cut_channels(source, CHANNELS)
    assert made.config.hidden == len(CHANNELS)
    assert made.config.layers == source.config.layers, "heads and neurons keep their widths"
    chosen = select_channels(16, torch.tensor(CHANNELS))
    monkeypatch.setattr(narrow_method, "compute_principal_basis", lambda *_: chosen)
    text = [batch([9, 7, 5, 5], source.config, seed=s) for s in range(2)]
    same(made, narrow(source, made.config, "svd", statistics=collect(source, text)))
    output = made(batch([5, 3], made.config), needs(made.config))
    assert bool(output.last_hidden.isfinite().all())


def test_a_real_encoder(minilm: Path) -> None:
    source = load_model(minilm, keep=()).model
    made = cut_channels(source, range(0, 384, 2))
    weight = made.state_dict()["encoder.layers.5.feed_forward.down.weight"]
    assert torch.equal(weight, source.state_dict()["encoder.layers.5.feed_forward.down.weight"][::2])
    assert made.config.count_parameters() < 0.55 * source.config.count_parameters()


# --- the traps of the library ------------------------------------------------------------------------------------


def plain(**changes: Any) -> Model:
    config = EncoderConfig.uniform(vocabulary=50, hidden=16, layers=2, heads=4, feed_forward=24, max_positions=64)
    return model(dataclasses.replace(config, **changes))


def pruner(source: Model, **asked: Any) -> Any:
    """The library's own, on heads."""
    attention: list[Any] = [layer.attention for layer in source.encoder.layers]  # pyright: ignore
    heads = {part: a.heads for a in attention for part in (a.query, a.key, a.value)}
    values: dict[str, Any] = {"prune_num_heads": True, "prune_head_dims": False, "head_pruning_ratio": 0.5} | asked
    values.setdefault("out_channel_groups", {})
    return torch_pruning.pruner.BasePruner(
        source,
        IDS,
        importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
        num_heads=heads,
        ignored_layers=[p for p in source.heads.modules() if isinstance(p, nn.Linear)],
        forward_fn=lambda m, ids: m.forward_padded(ids, None, None, Needs(logits=True)),
        output_transform=lambda output: output.logits,
        **values,
    )


def of_query(source: Any) -> int:
    return source.encoder.layers[0].attention.query.out_features


@pytest.mark.filterwarnings("ignore:Unwrapped parameters")
def test_default_dictionaries_are_not_touched() -> None:
    """The library's pruners share theirs between calls; what one model left there must not reach another."""
    defaults = inspect.signature(torch_pruning.pruner.BasePruner.__init__).parameters
    shared = defaults["out_channel_groups"].default
    before = dict(shared)
    try:
        pruner(plain(), pruning_ratio=0.0, out_channel_groups=shared)
        assert len(shared) > len(before), "as it was when this was written"
        left = dict(shared)
        for config in (UNIFORM, VARIATIONS["uneven"], VARIATIONS["modernbert"], VARIATIONS["nomic"]):
            assert cut_channels(model(config), CHANNELS).config.hidden == len(CHANNELS)
        assert shared == left
    finally:
        shared.clear()
        shared.update(before)


@pytest.mark.filterwarnings("ignore:Unwrapped parameters")
def test_heads_that_are_asked_for_do_go() -> None:
    """The library leaves all heads where the ratio of widths is 0, and says nothing."""
    source = plain()
    silent = copy.deepcopy(source)
    pruner(silent, pruning_ratio=0.0).step()
    assert of_query(silent) == 16
    made = prune_units(source, KeptUnits(((0, 2), (1, 3)), (tuple(range(24)),) * 2))
    assert of_query(made) == 8


@pytest.mark.filterwarnings("ignore:Unwrapped parameters")
def test_steps_end_where_they_should() -> None:
    """In steps the library takes its share of what is left each time, and goes too far."""
    far = copy.deepcopy(plain())
    attention: Any = [layer.attention.query for layer in far.encoder.layers]
    steps = pruner(far, pruning_ratio=0.0, pruning_ratio_dict=dict.fromkeys(attention, 0.5), iterative_steps=4)
    left = []
    try:
        for _ in range(4):
            steps.step()
            left.append(of_query(far) // 4)
    except Exception:  # it crashes when none is left
        left.append(0)
    assert min(left) < 2

    source = now = plain()
    for way, count in ((0.25, 4), (0.5, 3), (0.75, 2), (1.0, 2)):
        whole = KeptUnits.everything(now.config)
        scores = WidthScores([torch.ones(len(n)) for n in whole.heads], [torch.ones(len(n)) for n in whole.neurons])
        counts = kept_counts(Spec(kind="prune_width", keep_heads=2, schedule=way), now.config, source.config, scores)
        assert counts.heads == (count, count)
        now = prune_units(now, KeptUnits(tuple(tuple(range(n)) for n in counts.heads), whole.neurons))
    assert [shape.heads for shape in now.config.layers] == [2, 2]


def test_the_word_table_stays_one_tensor() -> None:
    """The library cuts other columns of the table than of the head that reads it."""
    source = model(UNIFORM)
    made = cut_channels(source, CHANNELS)
    text = batch([5, 3])
    with torch.no_grad():
        features = made(text, Needs(mlm="all")).vocabulary
    assert features is not None
    assert features.weight.data_ptr() == made.encoder.embeddings.word.weight.data_ptr()
    torch.testing.assert_close(made.encoder.embeddings.word.weight, source.encoder.embeddings.word.weight[:, CHANNELS])
    dense: Any = made.heads["mlm"].dense
    torch.testing.assert_close(dense.weight, source.heads["mlm"].dense.weight[CHANNELS][:, CHANNELS])  # pyright: ignore


def test_a_failure_leaves_the_model_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    source = model(UNIFORM)
    before = copy.deepcopy(source)
    along = dependency._Graph._along

    def blind(self: Any, root: nn.Module, stay: Any) -> Any:
        found = along(self, root, stay)
        found.pop("encoder.layers.1.feed_forward.down.weight", None)
        return found

    monkeypatch.setattr(dependency._Graph, "_along", blind)
    with pytest.raises(
        UserError,
        match=r"hidden: 'encoder.layers.1.feed_forward.down.weight' would have shape \(16, 24\) instead of \(11, 24\):"
        r" torch-pruning's dependency graph does not cover this model; use stream: directions",
    ):
        cut_channels(source, CHANNELS)
    same(source, before)


@pytest.mark.parametrize("channels", [[], [0, 0, 1], [3, 1], [0, 16], [-1, 2], list(range(16))])
def test_channels_that_cannot_be_kept(channels: list[int]) -> None:
    with pytest.raises(UserError, match=r"are not a valid selection: allowed: indices in 0..15, unique and ascending"):
        cut_channels(model(UNIFORM), channels)


# --- heads and neurons: direct selection, the library and masks agree ---------------------------------------------


@pytest.mark.parametrize("name", ["bert", "pre-norm", "uneven", "distilbert", "shared", "factorized"])
def test_heads_and_neurons_as_the_library_and_the_masks_have_them(name: str) -> None:
    source = model(VARIATIONS[name])
    shapes = source.config.group_shapes
    kept = KeptUnits(
        tuple(tuple(range(0, shape.heads, 2)) for shape in shapes),
        tuple(tuple(range(1, shape.feed_forward, 3)) for shape in shapes),
    )
    made, theirs = prune_units(source, kept), copy.deepcopy(source)
    graph = torch_pruning.DependencyGraph().build_dependency(
        theirs,
        IDS,
        forward_fn=lambda m, ids: m.forward_padded(ids, None, None, Needs(logits=True)),
        output_transform=lambda output: output.logits,
        verbose=False,
    )
    for layer, shape, heads, neurons in zip(theirs.encoder.layers, shapes, kept.heads, kept.neurons, strict=True):
        part: Any = layer
        gone = [h * shape.head_width + c for h in range(shape.heads) if h not in heads for c in range(shape.head_width)]
        if gone:
            graph.get_pruning_group(part.attention.query, torch_pruning.prune_linear_out_channels, gone).prune()
        part.attention.heads = len(heads)
        out = [n for n in range(shape.feed_forward) if n not in neurons]
        graph.get_pruning_group(part.feed_forward.up, torch_pruning.prune_linear_out_channels, out).prune()
    text = batch([5, 5], source.config)
    asked = Needs(logits=True)
    with torch.no_grad():
        ours = made(text, asked).logits
        library = theirs(text, asked).logits
        with apply_gates(source, Widths.of(kept, source.config)):
            masked = source(text, asked).logits
    assert ours is not None
    torch.testing.assert_close(ours, library, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours, masked, rtol=0, atol=1e-6)
    assert [LayerShape(s.heads, s.head_width, s.feed_forward) for s in made.config.layers] == list(made.config.layers)
