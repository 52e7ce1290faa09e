"""A cached teacher: same interface as the live teacher, outputs read from disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs, TopLogits, VocabularyOutput
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.modules.layout import AttentionMaps, PackedLayout
from compress.encoder.modules.operations import count_words
from compress.errors import ExitCode, UserError
from compress.stages.distill.cache.fields import Field, counts, layers_of
from compress.stages.distill.cache.shards import Shards


@dataclass(frozen=True)
class WordTable:
    """The last matrix of a masked-LM head: weight (V, E), bias (V,), in the precision of the teacher's arithmetic."""

    weight: Tensor
    bias: Tensor | None


class CachedTeacher:
    """Is a `Teacher`: called without gradient, gives the fields that are kept; the others are None or empty.

    words: of the teacher, where vocabulary features are kept and logits are made of them.
    """

    def __init__(
        self, config: EncoderConfig, fields: Mapping[Field, Shards], words: WordTable | None, dtype: torch.dtype
    ) -> None:
        self.config, self.words, self.dtype = config, words, dtype
        self._fields = {(f.what, f.layer): (f, shards) for f, shards in fields.items()}

    def __call__(self, batch: Batch, needs: Needs) -> EncoderOutput:
        """Row ids decide what is read. Raises UserError (data) where a row's length is not the one that was kept."""
        device, depth = batch.input_ids.device, self.config.depth
        rows = batch.row_ids.cpu().numpy()
        held: dict[tuple[str, int | None], Tensor] = {}

        def tensor(what: str, layer: int | None = None) -> Tensor:
            if (what, layer) not in held:
                held[what, layer] = self._tensor(what, layer, batch, rows).to(device)
            return held[what, layer]

        output = EncoderOutput(last_hidden=torch.zeros(batch.tokens, 0, device=device))
        if needs.last_hidden:
            output.last_hidden = tensor("hidden", depth - 1)
        if needs.logits:
            output.logits = tensor("logits")
        if needs.hidden_states:
            asked = layers_of(needs.hidden_states, depth, first=-1)
            output.hidden_states = _by_layer({i + 1: tensor("hidden", i) for i in asked}, depth + 1)
        for role in ("queries", "keys", "values") if needs.projections else ():
            asked = layers_of(needs.projections, depth)
            setattr(output, role, _by_layer({i: self._heads(tensor(role, i), i) for i in asked}, depth))
        if needs.attentions or needs.attention_scores:
            self._attend(output, needs, batch, tensor)
        if needs.mlm is not None:
            self._words(output, batch, rows)
        return output

    def count_operations(self, batch: Batch, needs: Needs) -> int:
        """Of the logits that are made of kept features."""
        return 0 if self.words is None else 2 * self.words.weight.numel() * count_words(batch, needs.mlm)

    def _tensor(self, what: str, layer: int | None, batch: Batch, rows: np.ndarray) -> Tensor:
        field, shards = self._fields[what, layer]
        arrays, found = shards.read(rows)
        _check(field, found, batch, rows)
        return field.decode(arrays).to(self.dtype)

    def _heads(self, flat: Tensor, layer: int) -> Tensor:
        """(T, H·K) → (T, H, K)."""
        return flat.unflatten(1, (self.config.layers[layer].heads, -1))

    def _attend(self, output: EncoderOutput, needs: Needs, batch: Batch, tensor) -> None:
        """Attention maps, from queries and keys as the encoder makes them."""
        depth, layout = self.config.depth, PackedLayout.of(batch)
        maps: dict[int, AttentionMaps] = {}
        for layer in {*layers_of(needs.attentions, depth), *layers_of(needs.attention_scores, depth)}:
            q, k = (self._heads(tensor(role, layer), layer) for role in ("queries", "keys"))
            no_values = q[..., :0]  # the context is not asked for
            pattern = self.config.patterns[layer]
            _, maps[layer] = layout.attend_explicitly(q, k, no_values, dropout=0.0, pattern=pattern)
        if needs.attentions:
            output.attentions = tuple(maps[i].probabilities if i in maps else [] for i in range(depth))
        if needs.attention_scores:
            output.attention_scores = tuple(maps[i].scores if i in maps else [] for i in range(depth))

    def _words(self, output: EncoderOutput, batch: Batch, rows: np.ndarray) -> None:
        field, shards = self._fields["vocabulary", None]
        arrays, found = shards.read(rows)
        _check(field, found, batch, rows)
        positions = batch.mlm_positions if field.per == "masked" else None
        values = field.decode(arrays).to(batch.input_ids.device)
        if field.top_k is None:
            assert self.words is not None
            output.vocabulary = VocabularyOutput(values.to(self.dtype), self.words.weight, self.words.bias, positions)
            return
        ids = torch.from_numpy(arrays["ids"].astype(np.int64)).to(values.device)
        tails = torch.from_numpy(arrays["tails"]).to(values.device)
        by_temperature = {t: tails[:, i] for i, t in enumerate(field.temperatures)}
        output.likeliest = TopLogits(ids, values, by_temperature, field.pieces, positions)


def _by_layer(found: Mapping[int, Tensor], count: int) -> tuple[Tensor, ...]:
    """`count` tensors, empty ones where nothing is kept: objectives read only what they declare."""
    some = next(iter(found.values()))
    return tuple(found.get(i, some.new_zeros(0)) for i in range(count))


def _check(field: Field, found: np.ndarray, batch: Batch, rows: np.ndarray) -> None:
    expected: Sequence[int] = counts(field.per, batch)  # type: ignore[assignment]
    wrong = np.flatnonzero(found != expected)
    if len(wrong):
        raise UserError(
            f"row {int(rows[wrong[0]])} does not match the teacher cache",
            where=f"teacher cache, {field.title}",
            why=f"it has {int(expected[wrong[0]])} tokens, the cache has {int(found[wrong[0]])}",
            do="rebuild the cache in another folder",
            code=ExitCode.DATA,
        )
