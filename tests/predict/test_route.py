"""The way of rows through a cascade: who answers which row, and what the later models are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from compress.contracts import Batch, Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.cascade import Stage
from compress.predict.route import CascadeModel, Route

SURE, UNSURE = [5.0, 0.0], [0.1, 0.0]


def batch(rows: int = 3) -> Batch:
    """Rows of two tokens: row i holds token i + 5, twice."""
    ids = torch.arange(5, 5 + rows).repeat_interleave(2)
    positions = torch.tensor([0, 1] * rows)
    ends = torch.arange(0, 2 * rows + 1, 2)
    return Batch(ids, torch.zeros_like(ids), positions, ends, 2, torch.arange(rows))


def route(*thresholds: float | None, temperatures: tuple[float, ...] = (1.0, 1.0, 1.0), other: Any = None) -> Route:
    stages = [
        Stage(name=f"m{i}", folder=f"stage-{i + 1}", temperature=temperatures[i], threshold=threshold)
        for i, threshold in enumerate(thresholds)
    ]
    return Route(stages, [None, *[other] * (len(stages) - 1)])


def answers(*logits: list[list[float]]) -> tuple[list[Any], list[list[int]]]:
    """Models that answer so; the tokens that each was given."""
    given: list[list[int]] = []

    def answer(rows: list[list[float]], batch: Batch) -> torch.Tensor:
        given.append(batch.input_ids[::2].tolist())
        return torch.tensor(rows)

    return [lambda b, rows=rows: answer(rows, b) for rows in logits], given


def test_each_row_is_answered_by_the_first_that_is_sure() -> None:
    models, given = answers([SURE, UNSURE, UNSURE], [UNSURE, [0.0, 5.0]], [[0.0, 0.2]])
    logits, places = route(0.9, 0.9, None).follow(batch(), models)
    assert places.tolist() == [0, 2, 1]
    torch.testing.assert_close(logits, torch.tensor([SURE, [0.0, 0.2], [0.0, 5.0]]))
    assert given == [[5, 6, 7], [6, 7], [6]], "a model reads the rows that are left alone"


def test_nobody_else_is_asked_once_all_are_answered() -> None:
    models, given = answers([SURE, SURE, SURE], [])
    _, places = route(0.9, None).follow(batch(), models)
    assert (places.tolist(), len(given)) == ([0, 0, 0], 1)


def test_a_temperature_counts_before_the_threshold() -> None:
    """At temperature 10 the logit 5 is a probability of 0.62."""
    models, _ = answers([SURE, SURE, UNSURE], [SURE, SURE, SURE])
    logits, places = route(0.9, None, temperatures=(10.0, 2.0)).follow(batch(), models)
    assert places.tolist() == [1, 1, 1]
    assert logits[0].tolist() == [2.5, 0.0], "each row's logits by the temperature of its own model"


def test_a_probability_at_the_threshold_is_not_above_it() -> None:
    models, _ = answers([[0.0, 0.0]], [SURE])
    assert route(0.5, None).follow(batch(1), models)[1].tolist() == [1]


def test_random_tokens_have_no_text_for_another_tokenizer() -> None:
    models, _ = answers([UNSURE] * 3, [])
    with pytest.raises(UserError, match=r"different tokenizers.*--data instead of --length"):
        route(0.9, None, other=object()).follow(batch(), models)


def test_a_cascade_is_one_model(tiny_config: EncoderConfig) -> None:
    heads = {"task": HeadConfig("classification", labels=2)}
    first, second = (Model(tiny_config, heads).initialize(seed).eval() for seed in (0, 1))
    cascade = CascadeModel(route(1.0, None), [first, second])
    names = dict(cascade.named_parameters())
    assert {name.partition(".")[2].partition(".")[0] for name in cascade.embedding_parameter_names()} == {"0", "1"}
    assert set(cascade.embedding_parameter_names()) <= set(names)
    with torch.no_grad():
        found = cascade(batch(), Needs(logits=True)).logits
        theirs = second(batch(), Needs(logits=True)).logits
    np.testing.assert_allclose(found, theirs, atol=1e-6)
