"""Channels of the hidden states taken out along torch-pruning's dependency graph (DepGraph, Fang et al., arXiv
2301.12900). The only file that knows torch-pruning.

The graph says which tensors run over the channels, and along which axis. Nothing else of torch-pruning is used: its
pruners change a model in place, module by module, and share default dictionaries between calls. Here a model of the
smaller shape is built and what the graph names is copied into it by index. So a failure leaves the model as it was,
the counts are those that were asked for, and a word table that the masked-LM head reads stays one tensor.

What the graph cannot see is said by hand: a table of one segment, which is read without a look-up; and the masked-LM
head, whose outputs are compared with the word table, so that they must lose the channels that the table loses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch_pruning
from torch import Tensor, nn

from compress.contracts import EncoderOutput
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.unsupported import refuse_low_rank, refuse_quantized, refuse_sparse
from compress.encoder.modules.answers import needs_of
from compress.encoder.modules.heads import MaskedLMHead
from compress.encoder.modules.layers import LayerTrace
from compress.encoder.modules.layout import PaddedLayout
from compress.encoder.modules.model import Model
from compress.encoder.reshape.basis import copy_plain
from compress.encoder.reshape.narrow import check_narrowable
from compress.encoder.reshape.narrow_heads import select_most_read
from compress.errors import UserError

Places = dict[str, dict[int, Tensor]]
"""Name of a tensor → axis → indices that stay."""
TRACED = (2, 5)
"""Sequences and tokens that the graph is drawn from."""


def cut_channels(model: Model, channels: Sequence[int]) -> Model:
    """A model of these channels of the hidden states alone; nothing is shared with `model`, which stays as it is.

    channels: ascending, each once, fewer than the model has.  Heads, neurons and the tables of factorized embeddings
    keep their widths; every weight is one of the model's. The pooler and dense layers of heads keep as many neurons as
    channels stay, those that are read most. Fixed positions become learned ones. Raises UserError for other channels,
    for layers that share some of their matrices, quantized matrices and products of thin ones.
    """
    config = model.config
    check_narrowable(config)
    refuse_quantized(config, "cutting it", "hidden")
    refuse_low_rank(config, "cutting it", "hidden")
    refuse_sparse(config, "cutting it", "hidden")
    _check(channels, config.hidden)
    narrow = dataclasses.replace(
        config,
        hidden=len(channels),
        embedding=None if config.width == config.hidden else config.embedding,
        positions="learned" if _loses_fixed(config) else config.positions,
    )
    with torch.device("meta"):
        made = Model(narrow, model.head_configs)
    stay = torch.tensor(channels)
    places = _Graph(config, model.head_configs).places(stay, model, {n: x.shape for n, x in made.state_dict().items()})
    state = {}
    for name, tensor in model.state_dict().items():
        for axis, indices in places.get(name, {}).items():
            tensor = tensor.index_select(axis, indices.to(tensor.device))
        state[name] = tensor.clone().contiguous()
    _check_shapes(state, made)
    made.load_state_dict(state, assign=True)
    return made.requires_grad_(True).train(model.training)


def _check(channels: Sequence[int], hidden: int) -> None:
    legal = f"allowed: indices in 0..{hidden - 1}, unique and ascending"
    fine = list(channels) == sorted(set(channels)) and 0 < len(channels) < hidden
    if not fine or channels[0] < 0 or channels[-1] >= hidden:
        raise UserError(
            f"{len(channels)} channels of the hidden states are not a valid selection", where="hidden", why=legal
        )


def _loses_fixed(config: EncoderConfig) -> bool:
    """Whether a table of sinusoids loses channels along with the words."""
    return config.positions == "sinusoidal" and config.width == config.hidden


def _check_shapes(state: Mapping[str, Tensor], made: Model) -> None:
    """The graph is not believed: what it missed, or cut too often, would be a model that answers something else."""
    for name, wanted in made.state_dict().items():
        if state[name].shape != wanted.shape:
            raise UserError(
                f"'{name}' would have shape {tuple(state[name].shape)} instead of {tuple(wanted.shape)}",
                where="hidden",
                why="torch-pruning's dependency graph does not cover this model",
                do="use stream: directions, which does not need it",
            )


class _Graph:
    """Of a model of this shape, drawn on one of its own with a small vocabulary and random weights."""

    def __init__(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> None:
        few = dataclasses.replace(
            config,
            vocabulary=max(8, config.pad_id + 1),
            positions="learned" if _loses_fixed(config) else config.positions,
        )
        self.model = Model(few, heads)
        self.names = {module: name for name, module in self.model.named_modules()}
        ids = torch.zeros(TRACED, dtype=torch.int64)
        with torch.enable_grad():
            run: Any = _forward  # which the library types as one tensor from one
            self.graph = torch_pruning.DependencyGraph().build_dependency(
                self.model, ids, forward_fn=run, output_transform=_tensors, verbose=False
            )

    def places(self, stay: Tensor, model: Model, shapes: Mapping[str, torch.Size]) -> Places:
        """What loses channels in `model`, so that it has these shapes."""
        embeddings = self.model.encoder.embeddings
        root = embeddings.word if embeddings.projection is None else embeddings.projection
        found = self._along(root, stay)
        segment = embeddings.segment
        if segment is not None and embeddings.projection is None:
            found[f"{self.names[segment]}.weight"] = {1: stay}
        if self.model.encoder.distances is not None:  # whose rows meet the layers' matrices, not the tokens' states
            table = self.names[self.model.encoder.distances]
            parts = dict(self.model.encoder.distances.named_parameters())
            found |= {f"{table}.{part}": {1 if part == "weight" else 0: stay} for part in parts}
        for module, name in self.names.items():
            # A dense layer of the pooler or a head reads channels; of its outputs as many stay.
            weight = f"{name}.weight"
            if isinstance(module, nn.Linear) and 1 in found.get(weight, {}) and module.out_features > shapes[weight][0]:
                found = _joined(found, self._along(module, self._neurons(module, stay, model)))
        return found

    def _neurons(self, module: nn.Linear, stay: Tensor, model: Model) -> Tensor:
        """Which outputs of a dense layer stay."""
        if any(isinstance(head, MaskedLMHead) and head.dense is module for head in self.model.heads.values()):
            return stay
        whole = self._along(module, torch.arange(module.out_features))
        state = model.state_dict()
        readers = [copy_plain(state[name]) for name, axes in whole.items() if 1 in axes]
        return select_most_read(readers, module.out_features, len(stay))

    def _along(self, root: nn.Embedding | nn.Linear, stay: Tensor) -> Places:
        """Everything that loses its places together with the outputs of `root`."""
        if isinstance(root, nn.Embedding):
            start, every = torch_pruning.prune_embedding_out_channels, list(range(root.embedding_dim))
        else:
            start, every = torch_pruning.prune_linear_out_channels, list(range(root.out_features))
        found: Places = {}
        for dependency, indices in self.graph.get_pruning_group(root, start, every):
            module = dependency.target.module
            if module not in self.names:  # an operation without weights
                continue
            assert list(indices) == every, "channels keep their order on the way"
            name = self.names[module]
            assert isinstance(module, nn.Embedding | nn.Linear | nn.LayerNorm), "no other weights run over channels"
            reads = isinstance(module, nn.Linear) and self.graph.is_in_channel_pruning_fn(dependency.handler)
            columns = reads or isinstance(module, nn.Embedding)
            axes = {"weight": 1} if columns else {last: 0 for last, _ in module.named_parameters()}
            found = _joined(found, {f"{name}.{last}": {axis: stay} for last, axis in axes.items()})
        return found


def _joined(one: Places, other: Places) -> Places:
    return {name: one.get(name, {}) | other.get(name, {}) for name in (one | other)}


def _forward(model: Model, ids: Tensor) -> EncoderOutput:
    """All that the model computes, padded, but for what changes no shape: masks, windows and rotations."""
    encoder, layout = model.encoder, PaddedLayout(None)
    x = encoder.embed(ids, torch.arange(ids.shape[1])[None], torch.zeros_like(ids))
    for group in model.config.groups:
        x = encoder.layers[group](x, layout, LayerTrace())
    if encoder.final_norm is not None:
        x = encoder.final_norm(x)
    output = EncoderOutput(last_hidden=x)
    if encoder.pooler is not None:
        output.pooled = encoder.pool(layout.first(x))
    return model.apply_heads(output, layout, needs_of(model.head_configs), None)


def _tensors(output: EncoderOutput) -> list[Tensor]:
    features: Any = None if output.vocabulary is None else output.vocabulary.features
    found = (output.last_hidden, output.pooled, features, output.logits, output.pair_logits, output.replaced)
    return [x for x in found if x is not None]
