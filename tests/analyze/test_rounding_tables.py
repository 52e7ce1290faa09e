"""`compress analyze --quantization`: outliers, the error of a product, and what the tables and lines say of them."""

from __future__ import annotations

import math

import pytest
import torch

from compress.analyze import quantization
from compress.analyze.rounding import SIGMAS, WAYS, Input, Product, Rounding
from compress.analyze.subject import Analysis

DEEP = "encoder.layers.{}.{}"


def given(reader: str, wide: int | None = None, tokens: int = 400, every: int = 1) -> Input:
    """An input of 64 dimensions, one of which is far out in one of `every` tokens."""
    x = torch.randn(tokens, 64, generator=torch.Generator().manual_seed(0))
    if wide is not None:
        x[::every, wide] = 60.0
    one = Input([reader])
    for part in x.split(150):
        one.add(part)
    for part in x.split(150):
        one.count(part)
    assert one.mean == pytest.approx(float(x.mean()), abs=1e-5)
    assert one.deviation == pytest.approx(float(x.std(unbiased=False)), rel=1e-4)
    return one


def product(weights: float, token: float, static: float) -> Product:
    return Product(30.0, power=4.0, noise=dict(zip(WAYS, (weights, token, static), strict=True)))


def test_outliers_are_counted_by_dimension_over_all_batches() -> None:
    assert given("a").outliers() == []
    ((dimension, share, widest),) = (one := given("a", wide=7, every=4)).outliers()
    assert (dimension, share) == (7, 0.25)
    assert widest == pytest.approx(60.0 / one.deviation)
    assert widest > SIGMAS


def test_the_dimension_of_the_most_tokens_comes_first() -> None:
    x = torch.randn(400, 64, generator=torch.Generator().manual_seed(0))
    x[:40, 3], x[:10, 5] = 60.0, 90.0
    one = Input(["a"])
    one.add(x)
    one.count(x)
    assert [(dimension, share) for dimension, share, _ in one.outliers()] == [(3, 0.1), (5, 0.025)]


def test_a_constant_input_has_no_outliers() -> None:
    one = Input(["a"])
    one.add(torch.full((4, 2), 3.0))
    one.count(torch.full((4, 2), 3.0))
    assert (one.deviation, one.outliers()) == (0.0, [])


def test_the_error_of_a_product_is_a_share_of_its_length() -> None:
    one = product(1.0, 0.04, 0.0)
    assert [one.error(way) for way in WAYS] == [0.5, 0.1, 0.0]
    assert Product(math.inf).error("static") == 0.0, "nothing was multiplied"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Analysis:
    query, up = DEEP.format(0, "attention.query"), DEEP.format(1, "feed_forward.up")
    one = given(query, wide=7, every=2)
    one.readers.append(DEEP.format(0, "attention.key"))
    inputs = [one, given(up, wide=9, every=200), given("encoder.embeddings.projection")]
    products = {
        query: product(0.04, 0.16, 0.36), up: product(0.01, 0.25, 0.64),
        "encoder.embeddings.projection": product(0.0, 0.01, 0.01),
    }  # fmt: skip
    analysis = Analysis()
    made = Rounding(inputs, products)
    quantization._ranges(made, analysis)
    quantization._outliers(made, analysis)
    quantization._errors(made, analysis)
    return analysis


def test_ranges_name_all_readers_of_an_input(found: Analysis) -> None:
    title, (columns, rows) = found.tables["quantization-ranges"]
    assert title == "inputs of the matrices, 400 tokens"
    assert [row[0] for row in rows] == ["0.attention.query, key", "1.feed_forward.up", "embeddings.projection"]
    assert all(len(row) == len(columns) for row in rows)
    assert rows[0][-2:] == ("1 of 64", "7, 50.0 %")
    assert rows[2][-2:] == ("0 of 64", "")


def test_hidden_dimensions_are_drawn_where_they_are_far_out_often_enough(found: Analysis) -> None:
    rows = found.tables["quantization-outliers"][1][1]
    assert [(row[0], row[1], row[2]) for row in rows] == [
        ("0.attention.query, key", "7", "50.00 %"), ("1.feed_forward.up", "9", "0.50 %"),
    ]  # fmt: skip
    assert found.values["quantization/outlier_hidden_dimensions"] == 1, "the other one is far out in too few tokens"
    assert found.lines[0] == (
        f"hidden dimension 7 exceeds {SIGMAS} standard deviations in up to 50.0 % of the tokens, in 1 of 2 inputs"
    )


def test_errors_come_worst_first_with_the_worst_and_the_mean(found: Analysis) -> None:
    rows = found.tables["quantization-errors"][1][1]
    assert [row[0] for row in rows] == ["1.feed_forward.up", "0.attention.query", "embeddings.projection"]
    assert rows[0][2:] == ("5.00 %", "25.00 %", "40.00 %")
    assert found.values["quantization/error_static_worst_pct"] == pytest.approx(40.0)
    assert found.values["quantization/error_per_token_mean_pct"] == pytest.approx((20 + 25 + 5) / 3)
    assert found.lines[1] == (
        "int8 products: the largest error is 40.0 % of the output with static ranges (1.feed_forward.up), 25.0 % with "
        "per-token scales (1.feed_forward.up)"
    )
    assert {f"quantization-errors-{way}" for way in WAYS} < found.plots.keys()


def test_a_model_without_outliers_says_so() -> None:
    analysis = Analysis()
    quantization._outliers(Rounding([given(DEEP.format(0, "attention.query"))], {}), analysis)
    assert analysis.lines == [f"no hidden dimension exceeds {SIGMAS} standard deviations in 1 % of the tokens"]
    assert "quantization-outliers" not in analysis.plots
