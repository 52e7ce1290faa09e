"""A distance of answers is called what it is: a score has no probabilities, and a vector neither."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compress.contracts import Batch, Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.fit.request.case import LOSS_WORDS
from compress.stages.quantize.sensitivity import Scan
from compress.stages.shared.divergence import OF_CLASSES, OF_SCORES, OF_VECTORS, divergence, name_distance

SHAPE: dict[str, Any] = {"vocabulary": 30, "hidden": 8, "layers": 1, "heads": 2, "feed_forward": 12}
HEADS = {
    "classes": (HeadConfig("classification", labels=3), OF_CLASSES),
    "one of several labels": (HeadConfig("classification", labels=1, problem="multi_label"), OF_CLASSES),
    "tags": (HeadConfig("token_classification", labels=4), OF_CLASSES),
    "a score": (HeadConfig("classification", labels=1, problem="regression"), OF_SCORES),
    "a reranker's score": (HeadConfig("classification", labels=1, problem="ranking"), OF_SCORES),
    "vectors": (HeadConfig("embedding"), OF_VECTORS),
}


def model(head: HeadConfig) -> Model:
    return Model(EncoderConfig.uniform(**SHAPE), {"task": head}).initialize(0).eval()


@pytest.mark.parametrize("kind", HEADS)
def test_the_distance_has_the_name_of_its_kind(kind: str) -> None:
    head, expected = HEADS[kind]
    assert name_distance(model(head)) == expected
    assert expected in LOSS_WORDS
    assert Scan(model(head), [], lambda: None).distance == expected


def test_of_a_score_it_is_the_squared_difference() -> None:
    first, second = model(HEADS["a score"][0]), model(HEADS["a score"][0])
    with torch.no_grad():
        second.heads["task"].classifier.bias += 0.5  # type: ignore[union-attr]
    batch = Batch(
        input_ids=torch.tensor([2, 5, 3]), segment_ids=torch.zeros(3, dtype=torch.long), position_ids=torch.arange(3),
        cu_seqlens=torch.tensor([0, 3]), max_length=3, row_ids=torch.tensor([0]), labels=torch.tensor([1.0]),
    )  # fmt: skip
    with torch.no_grad():
        apart = [one(batch, Needs(logits=True)).logits for one in (first, second)]
    assert apart[0] is not None
    assert apart[1] is not None
    assert divergence(second, first, [batch]) == pytest.approx(float((apart[0] - apart[1]).square()), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (OF_CLASSES, "KL divergence to the parent: 0.0123 nats"),
        (OF_SCORES, "squared difference to the parent: 0.0123"),
        (OF_VECTORS, "1 - cosine to the parent: 0.0123"),
    ],
)
def test_a_distance_in_words(name: Any, said: str) -> None:
    assert name.describe(0.01234, "the parent") == said
