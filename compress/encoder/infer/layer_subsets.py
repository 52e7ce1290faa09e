"""What a model answers with only some of its layers, for many choices of layers at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.infer.prepare import PreparedModel
from compress.encoder.modules.layers import LayerTrace
from compress.encoder.modules.layout import PackedLayout

Layers = tuple[int, ...]


def subset_outputs(
    prepared: PreparedModel, batch: Batch, sets: Sequence[Layers], needs: Needs
) -> Iterator[tuple[Layers, EncoderOutput]]:
    """For each set of layers (ascending), in lexical order, what `take_layers` of it would answer to the batch.

    needs: of the heads alone. What sets have in common at their start is computed once, so that all sets of a model of
    L layers cost at most 2^L layers and not their sum; no more than L states of a batch are held at a time.
    """
    model = prepared.model
    encoder, config = model.encoder, model.config
    layout = PackedLayout.of(batch)
    with torch.inference_mode(), torch.autocast(batch.input_ids.device.type, enabled=False):
        turns = encoder.turns(batch.position_ids)
        path: list[int] = []
        states: list[Tensor] = [encoder.embed(batch.input_ids, batch.position_ids, batch.segment_ids)]
        for kept in sorted(sets):
            common = 0
            while common < min(len(path), len(kept)) and path[common] == kept[common]:
                common += 1
            del path[common:], states[common + 1 :]
            for layer in kept[common:]:
                module = encoder.layers[config.groups[layer]]
                # A layer may write into nothing that it is given: the state before it is needed again.
                states.append(
                    module(states[-1], layout, LayerTrace(False, False), config.patterns[layer], turns[layer])
                )
                path.append(layer)
            x = states[-1] if encoder.final_norm is None else encoder.final_norm(states[-1])
            yield kept, model.apply_heads(EncoderOutput(last_hidden=x), layout, needs, batch.mlm_positions)
