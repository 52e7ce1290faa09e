"""Heads: which one a description builds, how many parameters it has, and what each computes by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.heads import DenseShape
from compress.encoder.modules import heads
from compress.errors import UserError

CONFIG = EncoderConfig.uniform(vocabulary=11, hidden=8, layers=1, heads=2, feed_forward=12, activation="relu")
NARROW = dataclasses.replace(CONFIG, embedding=4)


def built(head: HeadConfig, config: EncoderConfig = CONFIG, seed: int = 0) -> Any:
    made = heads.build_head(config, head).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return made


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (HeadConfig("masked_lm"), heads.MaskedLMHead),
        (HeadConfig("masked_lm", tied_projection=True), heads.MaskedLMHead),
        (HeadConfig("classification", labels=3), heads.PooledHead),
        (HeadConfig("sentence_pair", style="roberta"), heads.PooledHead),
        (HeadConfig("classification", labels=3, style="distilbert"), heads.FirstTokenHead),
        *(
            (HeadConfig("classification", labels=3, style=s), heads.DenseHead)
            for s in ("roberta", "electra", "deberta")
        ),
        (HeadConfig("classification", labels=3, style="modernbert"), heads.TransformedHead),
        (HeadConfig("token_classification", labels=5, style="modernbert"), heads.TransformedHead),
        (HeadConfig("token_classification", labels=5, style="distilbert"), heads.TokenHead),
        (HeadConfig("question_answering", style="roberta"), heads.TokenHead),
        (HeadConfig("replaced_token"), heads.ReplacedTokenHead),
        (HeadConfig("embedding", labels=8), heads.EmbeddingHead),
        (HeadConfig("embedding", labels=3, denses=(DenseShape(5, False), DenseShape(3))), heads.EmbeddingHead),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "config", [CONFIG, NARROW, dataclasses.replace(CONFIG, bias=False)], ids=["", "narrow", "bare"]
)
def test_a_description_builds_its_head_with_as_many_parameters_as_it_counts(
    head: HeadConfig, kind: type[nn.Module], config: EncoderConfig
) -> None:
    made = heads.build_head(config, head)
    assert type(made) is kind
    assert sum(p.numel() for p in made.parameters()) == head.count_parameters(config)


@pytest.mark.parametrize("style", ["distilbert", "roberta", "electra", "deberta"])
def test_the_activation_of_a_first_token_head_is_its_styles_and_not_the_encoders(style: Any) -> None:
    made = built(HeadConfig("classification", labels=3, style=style))
    dense = made.pre_classifier if style == "distilbert" else made.dense
    wanted = {"distilbert": F.relu, "roberta": torch.tanh}.get(style, F.gelu)
    first = drawn(4, 8)
    torch.testing.assert_close(made(first, None), made.classifier(wanted(dense(first))))


@pytest.mark.parametrize(
    ("head", "config", "dropouts"),
    [
        (HeadConfig("classification"), CONFIG, [0.1]),
        (HeadConfig("classification", dropout=0.0), CONFIG, [0.0]),
        (HeadConfig("classification", dropout=0.5), CONFIG, [0.5]),
        (HeadConfig("sentence_pair"), CONFIG, [0.0]),
        (HeadConfig("sentence_pair", dropout=0.3), CONFIG, [0.3]),
        (HeadConfig("question_answering"), CONFIG, [0.0]),
        (HeadConfig("token_classification"), CONFIG, [0.1]),
        (HeadConfig("classification", style="distilbert"), CONFIG, [0.1]),
    ],
    ids=str,
)
def test_a_head_takes_the_encoders_dropout_where_its_class_does(
    head: HeadConfig, config: EncoderConfig, dropouts: list[float]
) -> None:
    made = heads.build_head(config, head)
    assert [module.p for module in made.modules() if isinstance(module, heads.Dropout)] == dropouts


def test_debertas_head_drops_nothing_before_its_dense_layer() -> None:
    for style, seen in (("deberta", False), ("electra", True)):
        made = built(HeadConfig("classification", style=style, dropout=0.999)).train()  # pyright: ignore[reportArgumentType]
        reached: list[Tensor] = []
        made.dense.register_forward_hook(lambda _, given, __, reached=reached: reached.append(given[0]))
        first = torch.ones(4, 8)
        torch.manual_seed(0)
        made(first, None)
        assert torch.equal(reached[0], first) is not seen


def test_masked_positions_are_read_in_their_order() -> None:
    made, hidden, table = built(HeadConfig("masked_lm")), drawn(6, 8), drawn(11, 8)
    everywhere, some = made(hidden, table, None), made(hidden, table, torch.tensor([4, 1, 4]))
    torch.testing.assert_close(some.features, everywhere.features[[4, 1, 4]])
    assert made(hidden, table, torch.zeros(0, dtype=torch.int64)).features.shape == (0, 8)
    assert made(hidden[None], table, None).features.shape == (1, 6, 8)


def test_a_tied_projection_gives_the_logits_of_the_product() -> None:
    made = built(HeadConfig("masked_lm", tied_projection=True), NARROW)
    projection, table, hidden = nn.Linear(4, 8), drawn(11, 4), drawn(3, 8)
    features = made(hidden, table, None, projection).features
    whole = table @ projection.weight.T  # (V, D): the words as the encoder reads them
    torch.testing.assert_close(features @ table.T, made.norm(made.act(made.dense(hidden))) @ whole.T)
    alone = built(HeadConfig("masked_lm", tied_projection=True))
    assert alone(hidden, drawn(11, 8), None).features.shape == (3, 8), "without a projection there is none to tie to"


def test_vectors_go_through_each_dense_module_to_length_one() -> None:
    head = HeadConfig("embedding", labels=3, denses=(DenseShape(5, False, True), DenseShape(3)), normalize=True)
    made, read = built(head), drawn(4, 8)
    first, second = made.denses
    assert first.bias is None
    wanted = torch.tanh(read @ first.weight.T) @ second.weight.T + second.bias
    torch.testing.assert_close(made(read), wanted / wanted.norm(dim=1, keepdim=True))
    assert not made(torch.zeros(0, 8)).numel()
    plain = built(HeadConfig("embedding", labels=8, normalize=True))
    assert bool(plain(torch.zeros(1, 8)).isfinite().all())


def test_a_score_for_every_token() -> None:
    made = built(HeadConfig("replaced_token"))
    assert made(drawn(6, 8)).shape == (6,)
    assert made(drawn(2, 3, 8)).shape == (2, 3)


@pytest.mark.parametrize(
    ("denses", "message"),
    [
        (None, "denses must be a list of objects"),
        ("x", "denses must be a list of objects"),
        ([3], "denses must be a list of objects"),
        ([{"width": 8, "bais": True}], "unknown key 'bais'; did you mean 'bias'?"),
        ([{"bias": True}], "missing key 'width'"),
        ([{"width": "8"}], "width must be an integer, not '8'"),
        ([{"width": 0}], "width is 0: it must be at least 1"),
        ([{"width": 8, "tanh": "no"}], "tanh must be true or false, not 'no'"),
    ],
    ids=str,
)
def test_dense_modules_of_a_hand_edited_file(denses: Any, message: str) -> None:
    values = {**HeadConfig("embedding", labels=8).to_dict(), "denses": denses}
    with pytest.raises(UserError) as error:
        HeadConfig.from_dict(values)
    assert error.value.line().startswith("head.denses")
    assert message in error.value.line()


def test_an_embedding_head_reads_back_what_it_wrote() -> None:
    head = HeadConfig("embedding", labels=3, denses=(DenseShape(5, False, True), DenseShape(3)), normalize=True)
    assert HeadConfig.from_dict(head.to_dict()) == head
