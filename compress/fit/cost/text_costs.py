"""The cost table for the lengths that are served: one length, or those of the texts of the data.

A part of a layer costs more of a long text than of a short one. Tables are measured at a few lengths, which other data
share, and read from the cache there. Between two of them cost is taken to grow evenly, so that the mean over the texts
is a weighted sum of tables: plans are made for that mean.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np

from compress.console import Console
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.fit.cost import block_table
from compress.fit.cost.blocks import Blocks, add_weighted
from compress.fit.cost.serving import Serving
from compress.predict.real_texts import TextCalls

SHORTEST = 8
"""Tokens of the shortest sequences that are measured; each next length is twice as long. Shorter texts count as so
long: at so few tokens a model reads its weights for the most part."""


def table(
    config: EncoderConfig, heads: Mapping[str, HeadConfig], serving: Serving, console: Console
) -> tuple[Blocks, str]:
    """The table that plans are made with, and its name."""
    name = name_table(config, heads, serving)
    built: block_table.Built = {}
    if serving.texts is None:
        return block_table.table(config, heads, serving, console, built)[0], name
    found = [
        (weight, block_table.table(config, heads, serving.at(length), console, built)[0])
        for length, weight in weigh_lengths(serving.texts, config.max_positions).items()
    ]
    return add_weighted(found), name


def name_table(config: EncoderConfig, heads: Mapping[str, HeadConfig], serving: Serving) -> str:
    """A name that stands for model widths, device, runtime and its version, and the lengths."""
    if serving.texts is None:
        return block_table.place(config, heads, serving).name
    parts = {
        block_table.place(config, heads, serving.at(length)).name: round(weight, 9)
        for length, weight in weigh_lengths(serving.texts, config.max_positions).items()
    }
    return f"{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]}.json"


def weigh_lengths(texts: TextCalls, positions: int) -> dict[int, float]:
    """Tokens of a sequence → weight of the table of that length in the mean over the calls. A text that is read in
    several sequences costs as much as these together."""
    lengths = choose_lengths(float(texts.lengths.min()), float(texts.lengths.max()), positions)
    each = np.stack([np.interp(texts.lengths, lengths, one) for one in np.eye(len(lengths))], 1)  # (calls, lengths)
    many = texts.sequences / texts.sample.shape.batch
    return dict(zip(lengths, (many[:, None] * each).mean(0).tolist(), strict=True))


def choose_lengths(least: float, most: float, positions: int) -> list[int]:
    """Lengths that are measured, ascending: the doubles of SHORTEST that surround all from `least` to `most`, none
    beyond the model's positions."""
    found = [min(SHORTEST, positions)]
    while found[-1] < min(most, positions):
        found.append(min(2 * found[-1], positions))
    return [length for place, length in enumerate(found) if place + 1 == len(found) or found[place + 1] > least]
