"""Which teacher outputs are cached, derived from the objectives, and how each is stored.

Attention maps and relations are not kept: they are products of the queries, keys and values that are, which take less
room (2·H·K numbers a token against H·l) and serve every number of relation heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Layers, Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.errors import UserError
from compress.stages.distill.cache.codec import Bits, StoredPrecision, choose_stored_precision, columns, decode, encode

Per = Literal["row", "token", "masked"]
ROLES = ("queries", "keys", "values")
PRODUCT_ROWS = 256  # of one product with the word table: its logits, (256, V), are the largest thing in memory


@dataclass(frozen=True)
class Settings:
    """How answers are kept. bits: of a number.  top_k: vocabulary logits a position, None: what all are made of.

    precision: of the teacher's arithmetic, fp32 or bf16.
    """

    bits: Bits = 16
    top_k: int | None = None
    precision: Literal["fp32", "bf16"] = "fp32"


@dataclass(frozen=True)
class Field:
    """One tensor of a teacher's output, over all rows: `width` numbers per row, token or masked position.

    what: an attribute of EncoderOutput.  layer: of those that have one, -1 the embedding output.  top_k, temperatures:
    of vocabulary logits of which the largest are kept, and the mass of the others at these temperatures.
    """

    what: Literal["logits", "hidden", "queries", "keys", "values", "vocabulary"]
    per: Per
    width: int
    kept: StoredPrecision
    bits: Bits
    layer: int | None = None
    top_k: int | None = None
    temperatures: tuple[float, ...] = ()
    pieces: int = 0

    @property
    def name(self) -> str:
        """Of its folder: everything that its content depends on, beside teacher and data."""
        return f"{self.title.replace(' ', '-')}-{self.bits}bit"

    @property
    def title(self) -> str:
        """As people read it."""
        if self.what == "hidden":
            return "embeddings" if self.layer == -1 else f"hidden {self.layer}"
        if self.what == "vocabulary":
            told = f"vocabulary {'masked' if self.per == 'masked' else 'all'}"
            if self.top_k is None:
                return told
            return f"{told} top{self.top_k} t{'-'.join(f'{t:g}' for t in self.temperatures)}"
        return self.what if self.layer is None else f"{self.what} {self.layer}"

    @property
    def columns(self) -> dict[str, tuple[np.dtype, int]]:
        """Arrays that it lies on the disk in → (type, width)."""
        found = columns(self.kept, self.width)
        if self.top_k is not None:
            found["ids"] = (np.dtype(np.uint16 if self.pieces <= 1 << 16 else np.int32), self.width)
            found["tails"] = (np.dtype(np.float32), len(self.temperatures))
        return found

    def encode(self, output: EncoderOutput) -> dict[str, np.ndarray]:
        """The live teacher's tensor as arrays on the disk. Raises UserError for numbers that cannot be kept."""
        if self.top_k is None:
            return encode(self.of(output), self.kept, self.title)
        assert output.vocabulary is not None
        parts = []
        for features in output.vocabulary.features.split(PRODUCT_ROWS):
            parts.append(self._likeliest(_logits(output, features)))
        top, ids, tails = (torch.cat([part[i] for part in parts]) for i in range(3)) if parts else self._none()
        found = encode(top, self.kept, self.title)
        found["ids"] = ids.cpu().numpy().astype(self.columns["ids"][0])
        return found | {"tails": tails.float().cpu().numpy()}

    def of(self, output: EncoderOutput) -> Tensor:
        """(n, W) of a live teacher's output: row, token or masked position by number. Of the vocabulary, features."""
        if self.what == "logits":
            assert output.logits is not None
            return output.logits
        if self.what == "vocabulary":
            assert output.vocabulary is not None
            return output.vocabulary.features
        assert self.layer is not None
        if self.what == "hidden":
            assert output.hidden_states is not None
            return output.hidden_states[self.layer + 1]
        kept = getattr(output, self.what)
        return kept[self.layer].flatten(1)

    def decode(self, arrays: Mapping[str, np.ndarray]) -> Tensor:
        """(n, W) fp32, as near as was kept."""
        return decode(arrays, self.kept)

    def _likeliest(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(n, V) → the largest less the largest of all (n, k), their ids, and the tails (n, temperatures)."""
        wide = logits.float()
        top, ids = wide.topk(self.width, dim=1)
        others = (wide - top[:, :1]).scatter(1, ids, float("-inf"))
        tails = torch.stack([(others / t).logsumexp(1) for t in self.temperatures], dim=1)
        return top - top[:, :1], ids, tails

    def _none(self) -> tuple[Tensor, Tensor, Tensor]:
        """What no masked position gives."""
        empty = torch.zeros(0, self.width)
        return empty, empty.long(), torch.zeros(0, len(self.temperatures))


def _logits(output: EncoderOutput, features: Tensor) -> Tensor:
    assert output.vocabulary is not None
    return dataclasses.replace(output.vocabulary, features=features).logits()


def fields_of(
    needs: Needs, config: EncoderConfig, heads: Mapping[str, HeadConfig], settings: Settings
) -> tuple[Field, ...]:
    """What must be kept of a teacher with this config and these heads, for objectives with these needs."""
    depth = config.depth

    def field(what: str, per: Per, width: int, layer: int | None = None, **beside: object) -> Field:
        kept = choose_stored_precision(settings.bits, width, settings.precision)
        return Field(what, per, width, kept, settings.bits, layer, **beside)  # type: ignore[arg-type]

    if needs.pooled or needs.pair_logits or needs.replaced:
        raise UserError(
            "a teacher cache only supports task logits, vocabulary logits, hidden states, queries, keys and values",
            where="cache",
            do="remove the cache for these objectives",
        )
    found: list[Field] = []
    if needs.logits:
        head = heads["task"]
        found.append(field("logits", "token" if head.per_token else "row", head.labels))
    states = set(layers_of(needs.hidden_states, depth, first=-1)) | ({depth - 1} if needs.last_hidden else set())
    found += [field("hidden", "token", config.hidden, layer) for layer in sorted(states)]
    mapped = {*layers_of(needs.attentions, depth), *layers_of(needs.attention_scores, depth)}
    if mapped and (config.relative_bias or config.disentangled) is not None:
        raise UserError(
            "attention maps of a teacher with relative positions cannot be cached",
            where="cache",
            why="the cache keeps queries and keys, and these maps also depend on distances between tokens",
            do="remove the cache for these objectives",
        )
    related = set(layers_of(needs.projections, depth))
    for layer in sorted(mapped | related):
        for role in ROLES if layer in related else ROLES[:2]:
            found.append(field(role, "token", config.layers[layer].attention_width, layer))
    if needs.mlm is not None:
        per = "masked" if needs.mlm == "masked" else "token"
        if settings.top_k is None:
            found.append(field("vocabulary", per, config.width))
        else:
            k, at = min(settings.top_k, config.vocabulary), tuple(sorted({1.0, *needs.temperatures}))
            more = {"top_k": k, "temperatures": at, "pieces": config.vocabulary}
            found.append(field("vocabulary", per, k, **more))
    return tuple(found)


def live_needs(fields: Sequence[Field]) -> Needs:
    """What a live teacher must give to fill `fields`."""
    needs = Needs(last_hidden=True)
    for f in fields:
        layers = frozenset() if f.layer is None else frozenset({f.layer})
        if f.what == "logits":
            needs |= Needs(logits=True)
        elif f.what == "hidden":
            needs |= Needs(hidden_states=layers)
        elif f.what == "vocabulary":
            needs |= Needs(mlm="masked" if f.per == "masked" else "all")
        else:
            needs |= Needs(projections=layers)
    return needs


def layers_of(layers: Layers, depth: int, first: int = 0) -> Sequence[int]:
    """The numbers of the layers that are meant; first: of all of them."""
    if isinstance(layers, bool):
        return range(first, depth) if layers else ()
    return sorted(layers)


def counts(per: Per, batch: Batch) -> np.ndarray:
    """(B,) how many numbered things of this sort each row of the batch has."""
    if per == "row":
        return np.ones(batch.rows, dtype=np.int64)
    bounds = batch.cu_seqlens.cpu().numpy()
    if per == "token":
        return np.diff(bounds)
    assert batch.mlm_positions is not None
    return np.diff(np.searchsorted(batch.mlm_positions.cpu().numpy(), bounds))
