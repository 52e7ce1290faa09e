"""Operations of the matrix products in a forward pass, by arithmetic; a multiply-add counts as two."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compress.contracts import Batch, Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.modules.model import Model


@dataclass(frozen=True)
class Operations:
    """Of a token, of a sequence, and of a position whose vocabulary logits are read. pair: window → of each pair of
    tokens that see each other in layers with it; None: all tokens of a sequence do."""

    token: int
    row: int
    word: int
    pair: Mapping[int | None, int]

    def of(self, batch: Batch, mlm: str | None) -> int:
        """Of a batch, by its lengths on the host. mlm: as in `Needs`."""
        lengths = np.diff(batch.on_host.cu_seqlens.numpy())
        pairs = sum(each * count_pairs(lengths, window) for window, each in self.pair.items())
        return self.token * batch.tokens + self.row * batch.rows + self.word * count_words(batch, mlm) + pairs


def count_words(batch: Batch, mlm: str | None) -> int:
    """Positions whose vocabulary logits are read. mlm: as in `Needs`."""
    if mlm is None:
        return 0
    return batch.tokens if mlm == "all" or batch.mlm_positions is None else len(batch.mlm_positions)


def count_pairs(lengths: np.ndarray, window: int | None) -> int:
    """Pairs of tokens, each with itself too, in sequences of these lengths. window: tokens that one sees on either
    side; None: all."""
    if window is None:
        return int((lengths * lengths).sum())
    near = np.clip(lengths - 1, 0, window)
    return int((lengths * (2 * near + 1) - near * (near + 1)).sum())


def count_operations(model: object, batch: Batch, needs: Needs) -> int | None:
    """Of a forward pass of a `Model`, or of a teacher that knows its own.

    None where they are not known, or depend on more than lengths: of models that drop tokens, exit early, have global
    tokens or disentangled attention.
    """
    if not isinstance(model, Model):
        count = getattr(model, "count_operations", None)
        return None if count is None else count(batch, needs)
    known = _KNOWN.setdefault(model, {})
    if needs not in known:
        known[needs] = _find_operations(model, needs)
    found = known[needs]
    return None if found is None else found.of(batch, needs.mlm)


_KNOWN: weakref.WeakKeyDictionary[Model, dict[Needs, Operations | None]] = weakref.WeakKeyDictionary()


def _find_operations(model: Model, needs: Needs) -> Operations | None:
    config = model.config
    if config.kept_tokens or config.disentangled or config.global_tokens or model.exits:
        return None
    pairs: Counter[int | None] = Counter()
    for shape, pattern in zip(config.layers, config.patterns, strict=True):
        pairs[pattern.window] += 4 * shape.attention_width  # scores, and the values that they weigh
    token = sum(_count_layer(config, shape) for shape in config.layers)
    token += 2 * config.width * config.hidden if config.width != config.hidden else 0
    row = word = 0
    asked = {"task": needs.logits, "pair": needs.pair_logits, "rtd": needs.replaced}
    pools = needs.pooled
    for name in (name for name, is_read in asked.items() if is_read):
        head = model.head_configs[name]
        matrices = _count_head(config, head)
        pools = pools or head.needs_pooler
        if head.per_token or name == "rtd":
            token += matrices
        else:
            row += matrices
    if pools:
        row += 2 * config.hidden**2
    if needs.mlm is not None:
        word = _count_head(config, model.head_configs["mlm"]) + 2 * config.width * config.vocabulary
    return Operations(token, row, word, pairs)


def _count_layer(config: EncoderConfig, shape: LayerShape) -> int:
    """Of a token, without attention."""
    ranks = dict(shape.ranks)
    sizes = shape.sizes(config.hidden, gated=config.gated)
    return 2 * sum((o + i) * ranks[name] if name in ranks else o * i for name, (o, i) in sizes.items())


def _count_head(config: EncoderConfig, head: HeadConfig) -> int:
    """Of one input of a head, without the word table of a masked-LM head."""
    hidden = config.hidden
    if head.kind == "masked_lm":
        is_tied = head.tied_projection and config.width != hidden
        widths = [hidden, hidden, config.width] if is_tied else [hidden, config.width]
    elif head.kind == "embedding":
        widths = [hidden, *(dense.width for dense in head.denses)]
    else:
        own = head.kind == "classification" and head.style != "bert"
        widths = [hidden] * (2 if head.transforms or own or head.kind == "replaced_token" else 1) + [head.outputs]
    return 2 * sum(given * made for given, made in itertools.pairwise(widths))
