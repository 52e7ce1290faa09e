"""What goes into an encoder and what comes out of it.

Shape letters: B batch (sequences), L length, T packed tokens (sum of the real lengths), D hidden, H heads,
K head width, F feed-forward, V vocabulary, E embedding, C classes, M positions whose vocabulary logits a loss reads.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from compress.contracts.grid import lay_out
from compress.contracts.host import HostValues
from compress.contracts.parcel import Parcel

if TYPE_CHECKING:
    import torch
    from torch import Tensor

QUERIES = "queries"
"""In `Batch.extra` of a task that ranks: the query of each row."""


@dataclass(frozen=True)
class Batch:
    """One packed micro-batch: real tokens only, sequences laid end to end.

    input_ids, segment_ids, position_ids: (T,) int64.  cu_seqlens: (B+1,) int64, starts with 0, ends with T.
    max_length: longest sequence.  row_ids: (B,) int64, row numbers in the data set (for reports of bad rows).
    labels: classes (B,) int64; scores (B,) float32; several labels a row (B, C) float32; tags (T,) int64 with -100 on
        the rest; answer spans (B, 2) int64, positions of their first and last token in the row.
    answered: of a task that answers words, (T,) bool: where it does, the first piece of each word; None for the others.
    mlm_positions: (M,) int64 indices into T whose original piece was masked; mlm_labels: (M,) int64 the originals.
    pair_labels: (B,) int64 of NSP (0 = is next) or SOP (0 = in order).
    special_mask: (T,) bool, true on [CLS], [SEP] and the like.
    extra: whatever a task or an augmentation needs beside; what of it has a `to` moves along. "queries": of a task that
        ranks, (B,) int64, equal for the documents of one query.
    host: of a batch on an accelerator, the same on the CPU: its lengths and labels are read there, without waiting for
        the device (`on_host`).
    grid: likewise, how its sequences lie (`lay_out`).  parcel: of one on the host, all that goes along to a device.
    Of a batch that was padded to a fixed size (`training.fixed_sizes`): unpadded: the batch without padding, on the
    host.  real_tokens, real_rows, real_masked: (T,), (B,), (M,) bool, false on padding.  shares: (N,) fp32, by what the
    value of each term of the loss is multiplied, since it divides by a count that may include padding.
    """

    input_ids: Tensor
    segment_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_length: int
    row_ids: Tensor
    labels: Tensor | None = None
    mlm_positions: Tensor | None = None
    mlm_labels: Tensor | None = None
    pair_labels: Tensor | None = None
    special_mask: Tensor | None = None
    answered: Tensor | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    host: Batch | None = field(default=None, repr=False, compare=False)
    grid: Mapping[str, Tensor] | None = field(default=None, repr=False, compare=False)
    parcel: Parcel | None = field(default=None, repr=False, compare=False)
    unpadded: Batch | None = field(default=None, repr=False, compare=False)
    real_tokens: Tensor | None = None
    real_rows: Tensor | None = None
    real_masked: Tensor | None = None
    shares: Tensor | None = None

    @property
    def on_host(self) -> Batch:
        """This batch where its values can be read without waiting: on the CPU, if it was there before."""
        return self if self.host is None else self.host

    @property
    def without_padding(self) -> Batch:
        """This batch, or what was padded to it."""
        return self if self.unpadded is None else self.unpadded

    @property
    def fixed_length(self) -> int | None:
        """The length to which attention pads all sequences, where it does not depend on theirs."""
        return None if self.real_rows is None else self.max_length

    @property
    def rows(self) -> int:
        return int(self.cu_seqlens.shape[0]) - 1

    @property
    def tokens(self) -> int:
        return int(self.input_ids.shape[0])

    @functools.cached_property
    def values(self) -> HostValues:
        """Its tensors, and those of `extra`, as arrays."""
        return HostValues({**_tensors_of(self.extra), **_tensors_of(vars(self))})

    @functools.cached_property
    def memo(self) -> dict[str, Any]:
        """What was worked out of this batch and is kept with it, such as its layout."""
        return {}

    def stage(self, device: torch.device | str) -> Batch:
        """Itself, ready to be copied to an accelerator: its layout worked out, and all in one buffer."""
        import torch as _torch

        kind = _torch.device(device).type
        if kind == "cpu" or self.parcel is not None or self.input_ids.device.type != "cpu":
            return self
        return dataclasses.replace(self, parcel=self.build_parcel(pinned=kind == "cuda"))

    def build_parcel(self, *, pinned: bool) -> Parcel:
        """Of all tensors of a batch on the host, and of what attention on a GPU reads of its layout."""
        import torch as _torch

        laid_out = lay_out(self.cu_seqlens.diff().tolist(), self.fixed_length)
        grid = {name: _torch.from_numpy(x) for name, x in laid_out.items()}
        groups = {"fields": _tensors_of(vars(self)), "extra": _tensors_of(self.extra), "grid": grid}
        return Parcel(groups, pinned=pinned)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on `device` (itself when it is already there); to an accelerator by one copy."""
        import torch as _torch

        away = _torch.device(device).type != "cpu"
        if away and (parcel := self.stage(device).parcel) is not None:
            return self.unpack(parcel.to(device), device)
        if not away and self.input_ids.device.type == "cpu" and self.parcel is None:
            return self
        fields = {name: x.to(device, non_blocking=True) for name, x in _tensors_of(vars(self)).items()}
        extra = {name: _move(x, device) for name, x in self.extra.items()}
        host, grid = (self.on_host, self.grid) if away else (None, None)
        return dataclasses.replace(self, **fields, extra=extra, host=host, grid=grid, parcel=None)

    def unpack(self, there: Mapping[str, Mapping[str, Any]], device: torch.device | str) -> Batch:
        """The batch on the device. there: what its parcel brought."""
        extra = {name: there["extra"].get(name, x) for name, x in self.extra.items()}
        moved = {name: _move(x, device) for name, x in extra.items()}
        return dataclasses.replace(self, **there["fields"], extra=moved, host=self, grid=there["grid"], parcel=None)

    def without_special(self) -> Batch:
        """The batch without its special tokens; a text that has no others has none. Itself where they are not known."""
        import torch as _torch

        if self.special_mask is None:
            return self
        kept = ~self.special_mask
        before = _torch.cat((kept.new_zeros(1, dtype=_torch.int64), kept.cumsum(0)))
        bounds = before[self.cu_seqlens]
        longest = int(bounds.diff().max()) if self.rows else 0
        tokens = {name: getattr(self, name)[kept] for name in ("input_ids", "segment_ids", "position_ids")}
        return dataclasses.replace(
            self, **tokens, cu_seqlens=bounds, max_length=longest, special_mask=self.special_mask[kept], host=None,
            grid=None, parcel=None,
        )  # fmt: skip


def _tensors_of(values: Mapping[str, Any]) -> dict[str, Tensor]:
    import torch as _torch

    return {name: x for name, x in values.items() if isinstance(x, _torch.Tensor)}


def _move(value: Any, device: torch.device | str) -> Any:
    return value.to(device) if hasattr(value, "to") else value


Layers = bool | frozenset[int]
"""Of which layers something is read: of none, of all, or of these, counted from 0."""


def reads_layer(layers: Layers, layer: int) -> bool:
    """Whether something is read of this layer."""
    return layers if isinstance(layers, bool) else layer in layers


@dataclass(frozen=True)
class Needs:
    """What a caller reads of the encoder's output; nothing else need be computed or kept.

    hidden_states: of layers, -1 the embedding output.  last_hidden: an encoder gives it unasked; who answers from
    memory keeps it only when it is named.
    mlm: vocabulary logits: None (none), "masked" (at batch.mlm_positions) or "all" (every real token).
    temperatures: at which the probabilities of those logits are read, where that is known.
    """

    hidden_states: Layers = False
    attentions: Layers = False
    attention_scores: Layers = False
    projections: Layers = False  # queries, keys, values
    pooled: bool = False
    logits: bool = False  # the task head
    pair_logits: bool = False  # the NSP/SOP head
    mlm: str | None = None
    replaced: bool = False  # the replaced-token head
    last_hidden: bool = False
    temperatures: frozenset[float] = frozenset()

    def __or__(self, other: Needs) -> Needs:
        mlm = "all" if "all" in (self.mlm, other.mlm) else self.mlm or other.mlm
        return Needs(
            _either(self.hidden_states, other.hidden_states),
            _either(self.attentions, other.attentions),
            _either(self.attention_scores, other.attention_scores),
            _either(self.projections, other.projections),
            self.pooled or other.pooled,
            self.logits or other.logits,
            self.pair_logits or other.pair_logits,
            mlm,
            self.replaced or other.replaced,
            self.last_hidden or other.last_hidden,
            self.temperatures | other.temperatures,
        )


def _either(first: Layers, second: Layers) -> Layers:
    if isinstance(first, bool) or isinstance(second, bool):
        return True if True in (first, second) else first or second
    return first | second


@dataclass
class VocabularyOutput:
    """The masked-LM head before the last matrix, so that a loss can compute logits in chunks and only where read.

    features: (M, E) output of the head's transform.  weight: (V, E), tied to the embedding table.  bias: (V,).
    positions: (M,) indices into T, or None for all T tokens in order.
    """

    features: Tensor
    weight: Tensor
    bias: Tensor | None
    positions: Tensor | None = None
    _shared: Tensor | None = field(default=None, init=False, repr=False, compare=False)

    def logits(self) -> Tensor:
        """(M, V)."""
        import torch.nn.functional as F

        return F.linear(self.features, self.weight.to(self.features.dtype), _cast(self.bias, self.features))

    def shared_logits(self, compute: Callable[[VocabularyOutput], Tensor] | None = None) -> Tensor:
        """(M, V), computed at the first call and kept: several losses of one step read the same product.

        compute: another way to compute `logits`.
        """
        import torch

        kept = self._shared
        if kept is None or (torch.is_grad_enabled() and self.features.requires_grad and not kept.requires_grad):
            kept = self._shared = self.logits() if compute is None else compute(self)
        return kept


@dataclass
class TopLogits:
    """The k largest vocabulary logits of a position, and how much all others weigh together.

    ids: (M, k) int64.  logits: (M, k), less the position's largest.  tails: temperature t → (M,) log of the sum of
    exp(logit / t) over all other pieces, less the position's largest logit / t; -inf where k is the whole vocabulary.
    positions: as in VocabularyOutput.  vocabulary: V.
    """

    ids: Tensor
    logits: Tensor
    tails: Mapping[float, Tensor]
    vocabulary: int
    positions: Tensor | None = None


def _cast(bias: Tensor | None, like: Tensor) -> Tensor | None:
    return None if bias is None else bias.to(like.dtype)


@dataclass
class EncoderOutput:
    """What a model computed, by name. A field that was not asked for is None.

    last_hidden: (T, D).  hidden_states: N+1 tensors (T, D), the embedding output first.
    attentions: per layer, B tensors (H, l, l) of probabilities, none of layers that nobody asked for;
        attention_scores the same before softmax.
    queries, keys, values: per layer (T, H, K).  pooled: (B, D).
    logits: (B, C), or (T, C) for token tasks.  pair_logits: (B, 2).  replaced: (T,).
    vocabulary: of the masked-LM head; `likeliest` stands in its place where only the largest logits were kept.
    """

    last_hidden: Tensor
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Sequence[Tensor], ...] | None = None
    attention_scores: tuple[Sequence[Tensor], ...] | None = None
    queries: tuple[Tensor, ...] | None = None
    keys: tuple[Tensor, ...] | None = None
    values: tuple[Tensor, ...] | None = None
    pooled: Tensor | None = None
    logits: Tensor | None = None
    pair_logits: Tensor | None = None
    vocabulary: VocabularyOutput | None = None
    replaced: Tensor | None = None
    likeliest: TopLogits | None = None


class Teacher(Protocol):
    """A frozen model: called without gradient, in evaluation mode, possibly in another precision.

    One that has `count_operations(batch, needs) -> int | None` knows the operations of its products.
    """

    def __call__(self, batch: Batch, needs: Needs) -> EncoderOutput: ...


class BatchSource(Protocol):
    """Batches whose order is a pure function of (seed, epoch): any position can be rebuilt without replay."""

    fingerprint: str  # sha256 of data, tokenizer, encoding, order rule

    def steps(self, epoch: int) -> int:
        """Optimizer steps in this epoch."""
        ...

    def step(self, epoch: int, index: int) -> Sequence[Batch]:
        """The micro-batches of one optimizer step; masking and augmentation depend on (seed, epoch, index) alone."""
        ...


SPECIAL_TOKENS: Mapping[str, Sequence[str]] = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
"""Role → the names that its token goes by, most usual first."""
