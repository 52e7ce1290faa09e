"""One optimizer step: micro-batches forward and backward, each weighed by its share of the step's counts, then the
optimizer. Where the plan allows it and it can be, as a CUDA graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from compress.contracts import Batch
from compress.contracts.grid import MOST_PAIRS
from compress.encoder.infer.graphs import MOST_TOKENS, WARM_UPS
from compress.training import precision
from compress.training.distributed import Alone, Team
from compress.training.fixed_sizes import FREE_PAIRS, FixedSizes, attends_to_real_tokens, find_padding_obstacle
from compress.training.graphed import MOST_GRAPHS, GraphedSteps, find_obstacle
from compress.training.meter import LOSS, NORM
from compress.training.module import StageModule, Term, Trainable
from compress.training.optimizer import Optimizer
from compress.training.prefetch import Prefetch


class MadeStep(NamedTuple):
    """figures: name → scalar on the device.  tokens: of all processes.  real: the micro-batches of this one, on the
    host, without padding."""

    figures: dict[str, Tensor]
    tokens: int
    real: Sequence[Batch]


class StepMaker:
    """Makes the optimizer steps of `module`, which is on `device`.

    before_update: called before weights and moments change.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        team: Team | Alone,
        computed_in: precision.Resolved,
        device: torch.device,
        before_update: Callable[[], None],
    ) -> None:
        self._module, self._optimizer, self._team = module, optimizer, team
        self._precision: precision.Resolved = computed_in
        self._device, self._before_update = device, before_update
        self._graphs: GraphedSteps | None = None
        self._open_graphs: Callable[[Callable[[str], None] | None], GraphedSteps]

    def set_pace(self, step: int, total: int) -> None:
        """Tell losses that change from step to step which step is next, from 0, of how many."""
        pace: Callable[[int, int], None] | None = getattr(self._module, "pace", None)
        if pace is not None:
            pace(step, total)

    def make_step(self, batches: Sequence[Batch], rate: float, *, stop: bool) -> MadeStep:
        """Gradients of all micro-batches added exactly, then the optimizer. stop: whether this process was asked to."""
        real = [batch.without_padding for batch in batches]
        totals, tokens = self._team.totals(self._count(real), sum(batch.tokens for batch in real), stop)
        return MadeStep(self._compute_figures(batches, totals, rate), tokens, real)

    def _compute_figures(self, batches: Sequence[Batch], totals: Mapping[str, int], rate: float) -> dict[str, Tensor]:
        self._optimizer.set_rate(rate)
        if self._graphs is not None:
            self._before_update()
            return self._graphs.make_step(batches, totals)
        there = (batch.to(self._device) for batch in batches)
        return self._compute(there, len(batches), totals, self._before_update)

    def count_terms(self, batch: Batch) -> Mapping[str, int]:
        """What each term of the loss counts in a micro-batch on the host."""
        return cast(Trainable, self._module).counts(batch)

    # --- CUDA graphs ---

    def use_graphs(
        self, source: Prefetch, longest: int | None, batch_rows: int, say: Callable[[str], None] | None
    ) -> None:
        """Replay steps from now on, where they can be; else `say` why not. source: whose steps are padded to a few
        sizes, where they can be.  longest: tokens of the longest sequence of the data, where known.  say: None where
        only steps are to be replayed that it makes faster, and nothing is to be said."""
        has_team = not isinstance(self._team, Alone)
        if (why := find_obstacle(self._module, self._device, has_team)) is not None:
            if say is not None:
                say(f"training.cuda_graphs has no effect: {why}")
            return
        assert isinstance(self._module, StageModule)
        kind = torch.bfloat16 if self._precision == "bf16" else torch.float32
        is_free = attends_to_real_tokens(self._module, kind)
        most_pairs = FREE_PAIRS if is_free else MOST_PAIRS
        why = find_padding_obstacle(self._module, batch_rows, longest, most_pairs)
        if say is None and (why is not None or not is_free):
            return
        most_tokens = MOST_TOKENS if say is None else math.inf
        self._optimizer.keep_rate_on(self._device)
        if why is None:
            assert longest is not None
            sizes = FixedSizes(self._module.counts, longest, most_tokens=most_tokens, most_pairs=most_pairs)
            source.pad = sizes.pad
        elif say is not None:
            say(f"training.cuda_graphs: only steps of equal shapes are replayed, since {why}")

        def compute(batch: Batch, totals: Mapping[str, int]) -> dict[str, Tensor]:
            return self._compute([batch], 1, totals, lambda: None)

        def compute_plainly(batches: Sequence[Batch], totals: Mapping[str, int]) -> dict[str, Tensor]:
            return self._compute((batch.to(self._device) for batch in batches), len(batches), totals, lambda: None)

        self._open_graphs = lambda said: GraphedSteps(
            compute, compute_plainly, self._device, said, most_tokens=most_tokens
        )
        self._graphs = self._open_graphs(say)

    @contextmanager
    def rehearse_graphs(self) -> Iterator[None]:
        """Steps inside are replayed as later ones are, but by graphs of their own: these go on with moments that the
        optimizer forgets afterwards."""
        graphs = self._graphs
        if graphs is not None:
            self._graphs = self._open_graphs(None)
        try:
            yield
        finally:
            self._graphs = graphs

    def count_warm_ups(self) -> int:
        """Steps after which the next ones take as long as all others."""
        return 1 if self._graphs is None else MOST_GRAPHS * (WARM_UPS + 1)

    def summarize_graphs(self) -> str | None:
        """How many steps were replayed, for people; None where there is nothing to say."""
        return None if self._graphs is None else self._graphs.summarize()

    # --- the computation ---

    def _compute(
        self, batches: Iterable[Batch], count: int, totals: Mapping[str, int], before_update: Callable[[], None]
    ) -> dict[str, Tensor]:
        """The step on batches that are on the device: nothing in here reads a number of this step from the host, but
        for the counts of a batch without padding."""
        self._optimizer.clear()
        values: dict[str, Tensor] = {}
        loss = torch.zeros((), device=self._device)
        # Until the outermost context ends, autocast keeps its bf16 copies of the weights: one for all micro-batches.
        with precision.autocast(self._precision, self._device):
            for number, batch in enumerate(batches, 1):
                terms = cast(Trainable, self._module)(batch)
                with torch.autocast(self._device.type, enabled=False):
                    shares = _find_shares(batch, terms, totals)
                    loss = loss + self._add_gradients(terms, shares, values, is_last=number == count)
        figures = self._team.add({**values, LOSS: loss}, [*totals, LOSS])
        before_update()
        return {**figures, NORM: self._optimizer.step(figures[LOSS])}

    def _add_gradients(
        self, terms: Mapping[str, Term], shares: Mapping[str, Any], values: dict[str, Tensor], *, is_last: bool
    ) -> Tensor | float:
        """Of one micro-batch, in the proportion of its counts; its values are added to `values`, its loss returned."""
        parts = {name: term.value * shares[name] for name, term in terms.items() if term.count}
        if not parts:
            return 0.0
        share = _weighted(parts, terms)
        if is_last:
            self._team.expect_last_gradients()
        share.backward()
        for name, part in parts.items():
            values[name] = values[name] + part.detach() if name in values else part.detach()
        return share.detach()

    def _count(self, batches: Sequence[Batch]) -> dict[str, int]:
        """What each term counts in the whole step: a micro-batch's mean times its share of that adds up exactly."""
        totals: dict[str, int] = {}
        for batch in batches:
            for name, count in self.count_terms(batch).items():
                totals[name] = totals.get(name, 0) + count
        return totals


def _find_shares(batch: Batch, terms: Mapping[str, Term], totals: Mapping[str, int]) -> Mapping[str, Any]:
    """By what the value of each term is multiplied. Of a padded batch, which is its step's only one, on the device."""
    if batch.shares is not None:
        return dict(zip(totals, batch.shares.unbind(), strict=True))
    return {name: term.count / totals[name] for name, term in terms.items() if term.count}


def _weighted(parts: Mapping[str, Tensor], terms: Mapping[str, Term]) -> Tensor:
    """Scalar: the parts times their weights, summed."""
    return torch.stack([part * terms[name].weight for name, part in parts.items()]).sum()
