"""Batch sources: which rows make up step i of epoch e, a pure function of (seed, epoch), packed by a token budget."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self

import numpy as np
import torch

from compress.contracts import Batch
from compress.data.batches.buckets import bucket_rows
from compress.data.batches.examples import Examples, collate, pack
from compress.data.batches.ragged import gather
from compress.data.batches.randomness import LongOrder, stream
from compress.data.text import masking, pairs
from compress.data.text.masking import Rule
from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokens import Blocks, Tokens, pack_blocks, with_separators
from compress.errors import UserError, did_you_mean

RULE = "order-1"  # of order, steps and micro-batches; part of every fingerprint


def micro_batches(rows: np.ndarray, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """`rows` sorted by length and divided so that no part has more than `max_tokens` tokens.

    Like lengths side by side let attention run as a few dense groups. A row above the budget stands alone. As few parts
    as the budget allows, of about equal size: a small last part would waste the processor.
    """
    ranked = rows[np.argsort(lengths[rows], kind="stable")]
    sizes = lengths[ranked]
    parts = max(1, -(-int(sizes.sum()) // max_tokens))
    for goal in (-(-int(sizes.sum()) // parts), max_tokens):
        cuts = _greedy(sizes, min(goal + int(sizes[-1]) // 2, max_tokens))
        if len(cuts) + 1 <= parts or goal == max_tokens:
            break
    return np.split(ranked, cuts)


def _greedy(sizes: np.ndarray, budget: int) -> list[int]:
    cuts, held = [], 0
    for i, size in enumerate(sizes.tolist()):
        if held and held + size > budget:
            cuts.append(i)
            held = 0
        held += size
    return cuts


class _Ordered:
    """Rows in an order of their own each epoch, `rows_per_step` at a time; the last step takes what is left.

    rank, world: which of how many processes reads. Each has every world-th row of a step; what is drawn for a step is
    drawn for all its rows, so that the processes together see what one alone would, and share one fingerprint.
    """

    def __init__(
        self,
        rows: int,
        rows_per_step: int,
        max_tokens: int,
        seed: int,
        purpose: str,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        assert 0 <= rank < world, (rank, world)
        if rows < 1:
            raise UserError("there are no rows to train on")
        if rows_per_step < 1 or max_tokens < 1:
            raise UserError("batch_rows and max_tokens must be 1 or more", why=f"found {rows_per_step}, {max_tokens}")
        self.rows, self.rows_per_step, self.max_tokens = rows, rows_per_step, max_tokens
        self.seed, self._purpose = seed, purpose
        self._rank, self._world = rank, world
        self._held: tuple[int, LongOrder] | None = None

    def steps(self, epoch: int) -> int:
        """Optimizer steps in this epoch."""
        return -(-self.rows // self.rows_per_step)

    def step_rows(self, epoch: int, index: int) -> np.ndarray:
        """The rows of one step, in the epoch's order."""
        if not 0 <= index < self.steps(epoch):
            raise IndexError(f"step {index} of {self.steps(epoch)}")
        if self._held is None or self._held[0] != epoch:
            self._held = (epoch, LongOrder(self.rows, self._purpose, self.seed, epoch))
        return self._held[1][index * self.rows_per_step : (index + 1) * self.rows_per_step]

    def shard(self, rank: int, world: int) -> Self:
        """The same steps as read by one of `world` processes, under the same fingerprint."""
        assert 0 <= rank < world, (rank, world)
        twin = copy.copy(self)
        twin._rank, twin._world = rank, world
        return twin

    def _own(self, rows: np.ndarray) -> np.ndarray:
        """Those of a step's rows that this process reads; fewer rows than processes leave the last ones without."""
        return rows[self._rank :: self._world]

    def _mark(self, *parts: object) -> str:
        told = [RULE, self._purpose, self.rows, self.rows_per_step, self.max_tokens, self.seed, *parts]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()


class TaskBatches(_Ordered):
    """A BatchSource over encoded rows of a task; labelled and unlabelled rows may be mixed (`examples.join`).

    by_query: the documents of a query stay in one micro-batch, which may be larger than `max_tokens` then; a step has
    so many whole queries that its rows are `rows_per_step` on average.
    """

    def __init__(
        self,
        examples: Examples,
        rows_per_step: int,
        max_tokens: int,
        seed: int,
        *,
        by_query: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._bounds: np.ndarray | None = None
        count = len(examples)
        if by_query:
            assert examples.queries is not None
            starts = np.flatnonzero(np.diff(examples.queries, prepend=-1))
            self._bounds = np.append(starts, len(examples))
            count = len(starts)
            rows_per_step = max(1, round(rows_per_step * count / len(examples)))
        super().__init__(count, rows_per_step, max_tokens, seed, "task", rank, world)
        self.examples = examples
        self.fingerprint = self._mark(examples.fingerprint, *(["by query"] if by_query else []))

    def step(self, epoch: int, index: int) -> Sequence[Batch]:
        """The micro-batches of one optimizer step."""
        rows = self._own(self.step_rows(epoch, index))
        ends = self.examples.offsets if self._bounds is None else self.examples.offsets[self._bounds]
        parts = micro_batches(np.arange(len(rows)), ends[rows + 1] - ends[rows], self.max_tokens) if len(rows) else []
        if self._bounds is None:
            return [collate(self.examples, rows[part]) for part in parts]
        return [collate(self.examples, gather(self._bounds, rows[part])[0]) for part in parts]


class EvaluationBatches:
    """All rows once, in `parts`, shortest first. `row_ids` put results back: out[batch.row_ids] = result."""

    def __init__(self, examples: Examples, parts: Sequence[np.ndarray]) -> None:
        self._examples, self._parts = examples, parts

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> Batch:
        return collate(self._examples, self._parts[index])

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))


def evaluation_batches(examples: Examples, max_tokens: int) -> EvaluationBatches:
    """All rows once, for inference on real tokens only, by token budget; can be iterated again and again."""
    everything = np.arange(len(examples), dtype=np.int64)
    ranked = everything[np.argsort(examples.lengths, kind="stable")]
    return EvaluationBatches(examples, np.split(ranked, _greedy(examples.lengths[ranked], max_tokens)))


def bucketed_batches(examples: Examples, max_tokens: int, call_tokens: int) -> EvaluationBatches:
    """The same for a runtime that pads a batch to its longest row: rows of one length, or nearly (`bucket_rows`)."""
    return EvaluationBatches(examples, bucket_rows(examples.lengths, max_tokens, call_tokens))


def copy_to_host(tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Each as float32 on the host. Those on a GPU are gathered there and copied once: the host waits once for all."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [tensor.detach().float().numpy() for tensor in tensors]
    whole = torch.cat([tensor.detach().float().reshape(-1) for tensor in tensors]).cpu().numpy()
    ends = np.cumsum([tensor.numel() for tensor in tensors])
    return [part.reshape(tensor.shape) for part, tensor in zip(np.split(whole, ends[:-1]), tensors, strict=True)]


def restore_outputs(examples: Examples, parts: Sequence[tuple[np.ndarray, torch.Tensor]]) -> np.ndarray:
    """`restore_order` of outputs wherever they are, in float32; the host waits once."""
    rows = [row_ids for row_ids, _ in parts]
    return restore_order(examples, zip(rows, copy_to_host([output for _, output in parts]), strict=True))


def restore_order(examples: Examples, parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """What a model gave for batches, in the order of the examples.

    parts: (row_ids, output) of each batch; outputs are (B, C), one a row, or (T, C), one a token, which come back as
    (rows, C) or (all tokens, C).
    """
    out: np.ndarray | None = None
    for rows, given in parts:
        tokens, _ = gather(examples.offsets, rows)
        places = tokens if len(given) == len(tokens) else rows
        if out is None:
            out = np.zeros((len(examples.ids) if places is tokens else len(examples), *given.shape[1:]), given.dtype)
        out[places] = given
    assert out is not None, "no rows"
    return out


class CorpusBatches(_Ordered):
    """A BatchSource over blocks of running text: masked tokens, and sentence pairs where asked for.

    masking: "dynamic" draws anew at every step from (seed, epoch, index); "static" hides the same tokens
    in every epoch.
    choice: see `masking`.  pairs: "none", "nsp" or "sop".  rate: of tokens that are predicted; shares: of those,
    that become [MASK] or a random token.  ngrams: words that may
    be hidden together.  across_documents: blocks run on into the next document, a separator between
    them (RoBERTa's full sentences).
    """

    def __init__(
        self,
        tokens: Tokens,
        tokenizer: Tokenizer,
        *,
        block_length: int,
        rows_per_step: int,
        max_tokens: int,
        seed: int,
        masking: str = "dynamic",
        choice: str = "token",
        pairs: str = "none",
        rate: float = 0.15,
        shares: tuple[float, float] = (0.8, 0.1),
        across_documents: bool = False,
        ngrams: int = 1,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        _check(masking, choice, pairs, rate, shares, across_documents)
        if tokens.stored and masking == "static":
            raise UserError(
                "static masking keeps every masked token in memory, but this corpus is read from disk",
                do="use dynamic masking, or stream: false",
            )
        if across_documents:
            tokens = with_separators(tokens, tokenizer.sep_id)
        self._tokens, self._static = tokens, masking == "static"
        self._mask_seed = seed
        self._cls, self._sep = tokenizer.cls_id, tokenizer.sep_id
        self._between = tokenizer.between
        self._special_count = 2 if pairs == "none" else 2 + self._between
        self.blocks = pack_blocks(tokens, block_length, self._special_count, across_documents=across_documents)
        self._pairer = self._make_pairer(pairs, block_length)
        super().__init__(len(self.blocks), rows_per_step, max_tokens, seed, "corpus", rank, world)
        size = tokenizer.vocabulary_size
        counts = tokens.counts(size) if choice == "distilbert" else None
        self._rule = Rule(tokenizer.mask_id, size, choice, rate, counts, *shares, ngrams=ngrams)
        self._is_special = tokenizer.special_mask  # a corpus may spell out "[SEP]"
        self._hidden = self._hide_once() if self._static else None
        self.fingerprint = self._mark(
            tokens.fingerprint,
            tokenizer.fingerprint,
            block_length,
            masking,
            choice,
            pairs,
            rate,
            *shares,
            across_documents,
            *([ngrams] if ngrams > 1 else []),
        )

    def with_mask_seed(self, mask_seed: int) -> CorpusBatches:
        """The same text in the same steps, with other pieces hidden than the seed's own."""
        twin = copy.copy(self)
        twin._mask_seed = mask_seed
        twin._hidden = twin._hide_once() if twin._static else None
        twin.fingerprint = hashlib.sha256(f"{self.fingerprint} masked by {mask_seed}".encode()).hexdigest()
        return twin

    def _make_pairer(self, kind: str, block_length: int) -> pairs.Pairer | None:
        if kind == "none":
            return None
        keep = pairs.divisible(self._tokens, self.blocks)
        if not keep.any():
            raise UserError("no text of this corpus can be split into two segments", do="use pairs: none")
        self.blocks = Blocks(self.blocks.starts[keep], self.blocks.ends[keep], self.blocks.documents[keep])
        return pairs.Pairer(self._tokens, self.blocks, kind, block_length - self._special_count)

    def _hide_once(self) -> tuple[np.ndarray, np.ndarray]:
        """Static masking: (ids with tokens replaced, (T,) bool where), over the corpus, row by row of its blocks."""
        bounds = np.append(self.blocks.starts, self.blocks.ends[-1])
        inside = np.zeros(len(self._tokens.ids), dtype=bool)
        for start, end in zip(self.blocks.starts.tolist(), self.blocks.ends.tolist(), strict=True):
            inside[start:end] = True
        bounds[0] = 0
        bounds[-1] = len(inside)
        ids = self._tokens.ids[:]
        done = masking.mask(
            ids,
            bounds,
            self._is_special(ids) | ~inside,
            self._tokens.word_starts[:],
            self._rule,
            stream("static-mask", self._mask_seed),
        )
        where = np.zeros(len(inside), dtype=bool)
        where[done.positions] = True
        return done.ids, where

    @property
    def is_static(self) -> bool:
        """Whether a row is the same in every epoch, hidden pieces and all."""
        return self._static

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int64 tokens of each row, of sources without sentence pairs."""
        assert self._pairer is None
        return self.blocks.ends - self.blocks.starts + self._special_count

    def content(self) -> Sequence[np.ndarray]:
        """What the rows of a static source are made of: where they begin and end in the ids that follow, hidden ones
        replaced."""
        assert self._hidden is not None
        return self.blocks.starts, self.blocks.ends, *self._hidden

    def step(self, epoch: int, index: int) -> Sequence[Batch]:
        """The micro-batches of one optimizer step. Masking is drawn over the whole step, then divided."""
        rows = self.step_rows(epoch, index)
        return self._batches(rows, self._own(np.arange(len(rows))), self.max_tokens, epoch, index)

    def batches_of(self, rows: np.ndarray, max_tokens: int) -> Sequence[Batch]:
        """Any rows of a static source, as every epoch gives them."""
        assert self._static
        return self._batches(rows, np.arange(len(rows)), max_tokens, 0, 0)

    def _batches(self, rows: np.ndarray, own: np.ndarray, max_tokens: int, epoch: int, index: int) -> Sequence[Batch]:
        """The micro-batches of those of `rows` that are at the places `own`."""
        if self._pairer is None:
            ranges, labels = [(self.blocks.starts[rows], self.blocks.ends[rows])], None
        else:
            cut = self._pairer.segments(rows, self._row_draws(epoch, rows))
            ranges, labels = [(cut.a_start, cut.a_end), (cut.b_start, cut.b_end)], cut.labels
        whole = _Assembled(ranges, self._cls, self._sep, self._between, self._tokens, self._is_special)
        if self._hidden is None:
            random = stream("mask", self._mask_seed, epoch, index)
            done = masking.mask(whole.ids, whole.offsets, whole.special, whole.word_starts, self._rule, random)
            ids, chosen = done.ids, np.zeros(len(whole.ids), dtype=bool)
            chosen[done.positions] = True
        else:
            ids, chosen = whole.ids.copy(), np.zeros(len(whole.ids), dtype=bool)
            ids[whole.text] = self._hidden[0][whole.source]
            chosen[whole.text] = self._hidden[1][whole.source]
        lengths = np.diff(whole.offsets)
        parts = micro_batches(own, lengths, max_tokens) if len(own) else []
        return [whole.batch(part, rows, ids, chosen, labels) for part in parts]

    def _row_draws(self, epoch: int, rows: np.ndarray) -> np.ndarray:
        """(B, DRAWS): each row's random numbers for pairs; the same in every epoch when masking is static.

        Row r's are numbers r·DRAWS .. of one stream: Philox can start anywhere, in steps of DRAWS numbers.
        """
        key = 0 if self._static else epoch
        found = []
        for row in rows.tolist():
            random = stream("pairs", self.seed, key)
            random.bit_generator.advance(row)  # pyright: ignore[reportAttributeAccessIssue]
            found.append(random.random(pairs.DRAWS))
        return np.stack(found)


class _Assembled:
    """The rows of a step as [CLS] A [SEP] (B [SEP]), packed, without a Python loop over rows.

    between: how many separators stand between A and B.
    """

    def __init__(
        self,
        ranges: list[tuple[np.ndarray, np.ndarray]],
        cls: int,
        sep: int,
        between: int,
        tokens: Tokens,
        is_special: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        sizes = np.stack([end - start for start, end in ranges])  # (segments, B)
        lengths = sizes.sum(0) + 2 + between * (len(ranges) - 1)
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        total = int(self.offsets[-1])
        self.ids = np.full(total, sep, dtype=np.int32)
        self.ids[self.offsets[:-1]] = cls
        self.segments = np.zeros(total, dtype=np.uint8)
        places, origins = [], []
        at = self.offsets[:-1] + 1
        for number, (start, _) in enumerate(ranges):
            size = sizes[number]
            inner = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
            places.append(np.repeat(at, size) + inner)
            origins.append(np.repeat(start, size) + inner)
            if number:
                self.segments[places[-1]] = number
                self.segments[at + size] = number
            at = at + size + between
        self.text, self.source = np.concatenate(places), np.concatenate(origins)
        self.ids[self.text] = tokens.ids[self.source]
        self.special = np.ones(total, dtype=bool)
        self.special[self.text] = is_special(self.ids[self.text])
        self.word_starts = np.ones(total, dtype=bool)
        self.word_starts[self.text] = tokens.word_starts[self.source]

    def batch(
        self, part: np.ndarray, rows: np.ndarray, ids: np.ndarray, chosen: np.ndarray, labels: np.ndarray | None
    ) -> Batch:
        """The packed micro-batch of some of the rows."""
        tokens, offsets = gather(self.offsets, part)
        hidden = np.flatnonzero(chosen[tokens])
        return pack(
            ids[tokens],
            offsets,
            segments=self.segments[tokens],
            special=self.special[tokens],
            row_ids=rows[part],
            mlm_positions=hidden,
            mlm_labels=self.ids[tokens[hidden]],
            pair_labels=None if labels is None else labels[part],
        )


def _check(mode: str, choice: str, kind: str, rate: float, shares: tuple[float, float], across: bool) -> None:
    for value, known, what in (
        (mode, ("dynamic", "static"), "masking"),
        (choice, masking.CHOICES, "choice of tokens"),
        (kind, pairs.KINDS, "sentence pairs"),
    ):
        if value not in known:
            raise UserError(f"unknown {what} '{value}'", do=did_you_mean(value, known))
    if not 0 < rate < 1:
        raise UserError(f"invalid masking rate {rate}", why="allowed: above 0, below 1")
    if min(shares) < 0 or sum(shares) > 1:
        raise UserError(
            f"invalid shares of [MASK] and random tokens {shares}",
            why="each must be 0 or more, and their sum at most 1",
        )
    if mode == "static" and choice == "distilbert":
        raise UserError(
            "choice distilbert samples tokens over a whole batch, so it needs dynamic masking", do="use dynamic masking"
        )
    if across and kind != "none":
        raise UserError("sentence pairs need blocks that end with their document", do="set across_documents to false")
