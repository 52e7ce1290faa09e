"""Steps that are padded to a few sizes: what padding does to losses and gradients, and how many sizes there are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from step_cases import CASES, SMALL, Case, build_batch
from torch import Tensor

from compress.contracts import Batch
from compress.contracts.grid import MOST_PAIRS
from compress.encoder.infer.graphs import WARM_UPS
from compress.encoder.infer.prepare import PreparedModel
from compress.training.fixed_sizes import (
    FixedSizes,
    attends_to_real_tokens,
    choose_size,
    find_padding_obstacle,
    pad_rows,
    round_up_size,
)
from compress.training.graphed import MOST_GRAPHS
from compress.training.module import StageModule

LENGTHS, LONGEST = [3, 3, 4, 5, 6, 7, 9, 11], 12
PADDED = (
    "task", "tags", "answer spans", "scores", "multi-label", "DistilBERT", "TinyBERT", "attention KL", "sentence pairs",
    "vectors", "minilm", "minilmv2", "pkd",
)  # fmt: skip


def build(case: Case) -> StageModule:
    """Without dropout, in fp64; the teacher is wider where losses project."""
    projects = any(row["kind"] in ("cosine_hidden", "hidden_mse", "pkd") for row in case.objectives)
    sizes = ((4, {**SMALL, "hidden": 64} if projects else SMALL), (2, SMALL))
    teacher, student = (case.build_model(size, depth, 0.0).initialize(depth).double() for depth, size in sizes)
    return case.build_module(teacher, student, PreparedModel(teacher.eval(), "fp32")).double()


def weigh(module: StageModule, batch: Batch) -> tuple[dict[str, float], list[Tensor]]:
    """Each term of the loss of a step that is this batch, and the gradients of their sum."""
    module.zero_grad()
    totals, terms = module.counts(batch.without_padding), module(batch)
    shares: Mapping[str, object] = {name: term.count / totals[name] for name, term in terms.items()}
    if batch.shares is not None:
        shares = dict(zip(totals, batch.shares.unbind(), strict=True))
    parts = {name: term.value * shares[name] for name, term in terms.items()}
    torch.stack(list(parts.values())).sum().backward()
    return {name: x.item() for name, x in parts.items()}, [p.grad for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", PADDED)
def test_padding_changes_neither_losses_nor_gradients(name: str) -> None:
    case, batch = CASES[name], CASES[name].label(build_batch(LENGTHS, SMALL["vocabulary"]))
    if batch.labels is not None:  # a row, or a word, without a label
        batch.labels[-1] = torch.nan if batch.labels.is_floating_point() else -100
    module = build(case)
    assert find_obstacle(module) is None
    (padded,) = FixedSizes(module.counts, LONGEST).pad([batch])
    assert (padded.tokens, padded.rows, padded.max_length) == (56, 10, LONGEST)
    assert padded.unpadded is batch
    (values, gradients), (found, others) = weigh(module, batch), weigh(module, padded)
    assert found == pytest.approx(values, rel=1e-6)
    assert len(gradients) == len(others)
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-8)


def find_obstacle(module: StageModule, rows: int = 8, longest: int | None = LONGEST) -> str | None:
    return find_padding_obstacle(module, rows, longest)


def test_objectives_that_compare_rows_with_each_other_are_named() -> None:
    unpadded = {name for name in CASES if find_obstacle(build(CASES[name])) is not None}
    assert unpadded == CASES.keys() - set(PADDED)
    assert find_obstacle(build(CASES["similarity"])) == "objective similarity0 does not support padding"
    for longest in (LONGEST, None):  # a source of paired batches does not know it
        why = find_obstacle(build(CASES["two tokenizers"]), longest=longest)
        assert why == "teacher and student have different tokenizers"
    task = build(CASES["task"])
    task._teacher = (lambda batch, needs: None,)  # pyright: ignore[reportAttributeAccessIssue]
    assert find_obstacle(task) == "the teacher is several models, or its outputs are not computed in each step"
    module = build(CASES["tags"])
    assert find_obstacle(module, longest=None) == "the texts change from epoch to epoch"
    assert find_obstacle(module, 32, 512) == "32 rows of up to 512 tokens take too much memory when padded"


def test_padding_is_free_where_one_kernel_attends_to_rows_of_any_lengths() -> None:
    free = {name for name in PADDED if attends_to_real_tokens(build(CASES[name]), torch.bfloat16)}
    # The losses of the others read attention maps, or relate all pairs of tokens of a row.
    assert free == set(PADDED) - {"TinyBERT", "attention KL", "minilm", "minilmv2"}
    assert not any(attends_to_real_tokens(build(CASES[name]), torch.float32) for name in free)
    assert find_padding_obstacle(build(CASES["tags"]), 32, 512, math.inf) is None


def test_an_obstacle_is_named_exactly_where_no_step_of_so_many_rows_is_padded() -> None:
    module, longest = build(CASES["task"]), 64
    limit = MOST_PAIRS // longest**2
    for rows in (limit - limit // 7, limit - 1, limit):
        shortest = build_batch([1] * rows, SMALL["vocabulary"])
        is_padded = pad_rows(shortest, longest) is not shortest
        assert (find_obstacle(module, rows, longest) is None) == is_padded


def test_what_cannot_be_padded_stays_as_it_is() -> None:
    batch, counts = build_batch(LENGTHS, SMALL["vocabulary"]), {"loss": 1}
    sizes = FixedSizes(lambda batch: counts, LONGEST)
    assert sizes.pad([batch, batch]) == [batch, batch]
    of_queries = [replace(batch, extra={"queries": torch.zeros(8)})]
    assert sizes.pad(of_queries) is of_queries
    whole = [build_batch([LONGEST] * 4, SMALL["vocabulary"])]
    assert sizes.pad(whole) is whole
    too_long = int(MOST_PAIRS**0.5)
    assert pad_rows(batch, too_long) is batch
    assert pad_rows(batch, too_long, math.inf).rows > batch.rows
    size = sizes.pad([batch])[0].tokens
    for most, is_padded in ((size, True), (size - 1, False), (batch.tokens, False)):
        made = FixedSizes(lambda batch: counts, LONGEST, most_tokens=most).pad(alone := [batch])
        assert (made is not alone) == is_padded
    masked = CASES["DistilBERT"].label(whole[0])
    (padded,) = sizes.pad([masked])
    assert padded.real_rows is None
    assert padded.real_masked is not None
    assert len(padded.real_masked) == 18 > padded.real_masked.sum() == 10


def test_steps_of_mixed_lengths_are_nearly_all_replayed() -> None:
    """32 rows of log-normal lengths a step: the sizes that come first are captured."""
    assert [round_up_size(n) for n in (1, 7, 9, 17, 33, 800)] == [1, 7, 10, 20, 40, 896]
    random, longest, steps = np.random.default_rng(0), 128, 1000
    seen, captured = Counter[tuple[int, int]](), set[tuple[int, int]]()
    replayed = real = padding = 0
    for _ in range(steps):
        tokens = int(np.exp(random.normal(3.2, 0.6, 32)).round().clip(3, longest).sum())
        size, rows = choose_size(tokens, 32, longest)
        assert rows - 32 <= size - tokens <= (rows - 32) * longest
        assert size <= 1.26 * tokens
        if seen[size, rows] >= WARM_UPS and len(captured) < MOST_GRAPHS:
            captured.add((size, rows))
        replayed += (size, rows) in captured
        seen[size, rows] += 1
        real, padding = real + tokens, padding + size - tokens
    assert replayed > 0.95 * steps
    assert padding < 0.1 * real
