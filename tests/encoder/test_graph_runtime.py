"""The CUDA graph runtime without a GPU: buckets, buffers, copies and fallbacks, with a capture that computes anew."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_helpers import UNIFORM, VARIATIONS, batch, model
from example_counts import thorough_but
from torch import Tensor

from compress.contracts import Needs
from compress.encoder.config.encoder import HeadConfig
from compress.encoder.infer.graphs import ANSWERS, Bucket, choose_bucket, lay_in_bucket, prepare_graphed
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.encoder.reshape.dropped_tokens import drop_tokens
from compress.errors import ExitCode, UserError
from compress.predict.predictor import Predictor

REASON = "operation not permitted when stream is capturing"


class Captures:
    """A capture that replays by computing again. count: of captures."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
        self.count += 1
        result = compute()
        return result, lambda: result.copy_(compute())


@pytest.mark.parametrize(
    ("rows", "length", "positions", "bucket"),
    [
        (1, 1, 512, (1, 16)),
        (1, 16, 512, (1, 16)),
        (3, 17, 512, (4, 32)),
        (32, 128, 512, (32, 128)),
        (32, 129, 512, None),  # 6,144 tokens with padding
        (33, 1, 512, None),
        (1, 513, 1024, None),
        (1, 40, 40, (1, 40)),  # no longer than the model's positions
        (1, 33, 40, (1, 40)),
        (1, 20, 40, (1, 32)),
    ],
)
def test_buckets(rows: int, length: int, positions: int, bucket: tuple[int, int] | None) -> None:
    assert choose_bucket(rows, length, positions) == bucket


def test_rows_lie_padded_in_a_bucket() -> None:
    given = batch([2, 3], UNIFORM)
    ids, mask, segments, places = lay_in_bucket(given, Bucket(4, 5))
    assert mask.tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    assert places.flatten()[:5].tolist() == [0, 1, 5, 6, 7]
    for plane, tokens in ((ids, given.input_ids), (segments, given.segment_ids)):
        assert plane.flatten()[[0, 1, 5, 6, 7]].tolist() == tokens.tolist()
        assert not plane.flatten()[[2, 3, 4, 8, 9]].any()
        assert not plane[2:].any()


@pytest.mark.parametrize("name", thorough_but(["bert"], list(VARIATIONS)))
def test_equals_the_plain_model(name: str) -> None:
    config = VARIATIONS[name]
    plain = model(config).eval()
    captures = Captures()
    made = prepare_graphed(plain, capture=captures)
    answers = []
    for lengths in ([20], [30, 1, 30], [3, 18], [17, 2, 5, 9], [31]):  # shorter rows after longer ones
        given = batch(lengths, config)
        answers.append((made(given, ANSWERS).logits, plain(given, ANSWERS).logits))
    assert captures.count == 3, "one for each bucket: of 1, 2 and 4 rows"
    for found, expected in answers:  # at the end: a replay leaves earlier answers alone
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_head_that_answers_tokens_gives_those_of_real_ones() -> None:
    plain = Model(UNIFORM, {"task": HeadConfig("token_classification", labels=3)}).initialize(0).eval()
    made = prepare_graphed(plain, capture=Captures())
    for lengths in ([7, 2, 11], [4, 4, 1, 9]):
        given = batch(lengths, UNIFORM)
        torch.testing.assert_close(made(given, ANSWERS).logits, plain(given, ANSWERS).logits, rtol=1e-4, atol=1e-4)


def test_what_has_no_graph_is_computed_as_before() -> None:
    plain, captures = model(UNIFORM).eval(), Captures()
    made, ready = prepare_graphed(plain, capture=captures), prepare(plain)
    many, hidden = batch([2] * 33, UNIFORM), Needs(logits=True, hidden_states=True)
    torch.testing.assert_close(made(many, ANSWERS).logits, ready(many, ANSWERS).logits, rtol=0, atol=0)
    few = batch([3], UNIFORM)
    states, expected = made(few, hidden).hidden_states, ready(few, hidden).hidden_states
    assert states is not None
    assert expected is not None
    torch.testing.assert_close(states[-1], expected[-1], rtol=0, atol=0)
    assert captures.count == 0


def test_a_failed_capture_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    plain = model(UNIFORM).eval()
    tried: list[Any] = []

    def fail(compute: Callable[[], Tensor]) -> Any:
        tried.append(compute)
        raise RuntimeError(f"{REASON}\nand more")

    made, given = prepare_graphed(plain, capture=fail), batch([3, 9], UNIFORM)
    with caplog.at_level(logging.WARNING):
        found = [made(given, ANSWERS).logits for _ in range(3)]
    assert len(tried) == 1
    (line,) = caplog.messages
    assert line == f"a CUDA graph could not be captured ({REASON}); computing without graphs"
    for logits in found:
        torch.testing.assert_close(logits, plain(given, ANSWERS).logits, rtol=1e-4, atol=1e-4)


def test_a_cpu_has_no_graphs() -> None:
    with pytest.raises(
        UserError, match=r"--runtime torch-graph: torch-graph only runs on a CUDA GPU; use --runtime"
    ) as it:
        Predictor(Path("nowhere"), runtime="torch-graph")
    assert it.value.code == ExitCode.ENVIRONMENT


def test_models_that_leave_early_have_no_graphs() -> None:
    early = model(UNIFORM)
    early.exits = torch.nn.ModuleList([torch.nn.Identity()])
    with pytest.raises(UserError, match="CUDA graphs do not support a model with early exits; use --runtime torch"):
        prepare_graphed(early)


def test_models_that_drop_tokens_have_no_graphs() -> None:
    fewer = drop_tokens(model(UNIFORM), (50,) * UNIFORM.depth)
    with pytest.raises(UserError, match="CUDA graphs do not support a model that drops tokens between its layers; use"):
        prepare_graphed(fewer)


def test_segments_and_mask_do_not_leak_into_the_next_batch() -> None:
    first, second = (lay_in_bucket(batch(lengths, UNIFORM), Bucket(2, 16)) for lengths in ([16, 16], [1]))
    assert first[1].all()
    assert second[1].sum() == 2
    assert np.count_nonzero(second[0]) <= 1
