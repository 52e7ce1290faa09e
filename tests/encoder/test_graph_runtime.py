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
    ("tokens", "rows", "longest", "positions", "bucket"),
    [
        (1, 1, 1, 512, (16, 2, 16)),
        (16, 1, 16, 512, (16, 1, 16)),  # nothing is padded
        (17, 1, 17, 512, (32, 2, 32)),
        (15, 3, 9, 512, (16, 4, 16)),
        (60, 5, 30, 512, (64, 6, 32)),
        (64, 5, 30, 512, (96, 6, 32)),  # a sixth row has to have a token
        (721, 32, 70, 512, (768, 48, 128)),
        (8192, 64, 128, 512, (8192, 64, 128)),
        (8193, 64, 129, 512, None),
        (600, 256, 9, 512, None),  # no row is left for padding
        (8000, 100, 400, 512, None),  # padded to the longest, 65,536 tokens
        (513, 1, 513, 1024, None),
        (40, 1, 40, 40, (48, 2, 40)),  # no longer than the model's positions
    ],
)
def test_buckets(tokens: int, rows: int, longest: int, positions: int, bucket: tuple[int, int, int] | None) -> None:
    assert choose_bucket(tokens, rows, longest, positions) == bucket


def test_a_bucket_holds_any_rows_that_it_is_chosen_for() -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        lengths = random.integers(1, random.integers(2, 65), random.integers(1, 60))
        found = choose_bucket(int(lengths.sum()), len(lengths), int(lengths.max()), 64)
        assert found is not None
        bounds = lay_in_bucket(batch(lengths.tolist(), UNIFORM), found).cu_seqlens
        assert (int(bounds[-1]), len(bounds) - 1) == found[:2]
        assert 1 <= int(bounds.diff().min()) <= int(bounds.diff().max()) <= found.length


def test_rows_lie_before_the_padding_in_a_bucket() -> None:
    given = batch([2, 3], UNIFORM)
    made = lay_in_bucket(given, Bucket(8, 4, 5))
    assert made.cu_seqlens.tolist() == [0, 2, 5, 7, 8]
    assert made.position_ids.tolist() == [0, 1, 0, 1, 2, 0, 1, 0]
    for name in ("input_ids", "segment_ids"):
        assert getattr(made, name).tolist() == [*getattr(given, name).tolist(), 0, 0, 0]
    assert made.max_length == 5
    other = lay_in_bucket(batch([4], UNIFORM), Bucket(8, 4, 5))
    assert made.build_parcel(pinned=False).places == other.build_parcel(pinned=False).places


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
    assert captures.count == 4, "one for each bucket: two sizes with two rows, three and six rows"
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
    many, hidden = batch([2] * 257, UNIFORM), Needs(logits=True, hidden_states=True)
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
