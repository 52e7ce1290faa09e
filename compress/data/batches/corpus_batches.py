"""Training batches of running text: masked tokens, and sentence pairs."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence

import numpy as np

from compress.contracts import Batch
from compress.data.batches.assembly import AssembledRows
from compress.data.batches.epoch_order import EpochOrder, micro_batches
from compress.data.batches.randomness import stream
from compress.data.text import masking, pairs
from compress.data.text.masking import Rule
from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokens import Blocks, Tokens, pack_blocks, with_separators
from compress.errors import UserError, did_you_mean


class CorpusBatches(EpochOrder):
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
        self.longest = block_length
        """Tokens that a row has at most."""
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
        return self._batches(self.step_rows(epoch, index), None, self.max_tokens, epoch, index)

    def batches_of(self, rows: np.ndarray, max_tokens: int) -> Sequence[Batch]:
        """Any rows of a static source, as every epoch gives them."""
        assert self._static
        return self._batches(rows, np.arange(len(rows)), max_tokens, 0, 0)

    def _batches(
        self, rows: np.ndarray, own: np.ndarray | None, max_tokens: int, epoch: int, index: int
    ) -> Sequence[Batch]:
        """The micro-batches of those of `rows` that are at the places `own`; None: of those that this process reads."""
        if self._pairer is None:
            ranges, labels = [(self.blocks.starts[rows], self.blocks.ends[rows])], None
        else:
            cut = self._pairer.segments(rows, self._row_draws(epoch, rows))
            ranges, labels = [(cut.a_start, cut.a_end), (cut.b_start, cut.b_end)], cut.labels
        whole = AssembledRows(ranges, self._cls, self._sep, self._between, self._tokens, self._is_special)
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
        own = self._own(lengths) if own is None else own
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
