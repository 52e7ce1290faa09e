"""The stage that shares layers: what it plans, what it rejects before a model is loaded, and what it measures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from compress.contracts import LayerGroups
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.stages.share import stage as module
from compress.stages.share.spec import Spec
from compress.stages.share.stage import Stage
from compress.stages.shared.model_shape import ModelShape

CYCLE = {"kind": "cyclic", "groups": 2}
CONFIG = EncoderConfig.uniform(vocabulary=60, hidden=16, layers=4, heads=4, feed_forward=24, max_positions=32)


def stage(said: list[str] | None = None, **keys: Any) -> Stage:
    context: Any = SimpleNamespace(say=([] if said is None else said).append)
    return Stage(Spec.model_validate({"kind": "share", "pattern": CYCLE, **keys}), context)


def test_the_plan_says_what_is_shared() -> None:
    (line,) = stage().plan()
    assert line.startswith("share layers by cyclic (")
    assert "groups 2" in line
    assert line.endswith(", starting from mean, norms and biases of their own")
    assert (
        stage(share_norms_and_biases=True, residual_rank=3)
        .plan()[0]
        .endswith(", norms and biases shared, residuals of rank 3")
    )


@pytest.mark.parametrize(
    ("embedding", "text"), [({"size": 8}, "width 8"), ({"error": 0.1}, "error 0.1"), ({"max_mb": 2.5}, "2.5 MB")]
)
def test_the_plan_says_how_small_the_tables_become(embedding: dict[str, Any], text: str) -> None:
    assert f"; embeddings factorized to {text}, rows weighted by frequency" in stage(embedding=embedding).plan()[0]


def shape(layers: int = 4) -> ModelShape:
    config = EncoderConfig.uniform(
        vocabulary=60, hidden=16, layers=layers, heads=4, feed_forward=24, max_positions=32
    )  # fmt: skip
    return ModelShape(layers, 32, "words", config=config)


def test_the_result_is_the_model_with_another_config() -> None:
    made = stage().plan_shape(None, shape(), shape(6))
    assert made == ModelShape(4, 32, "words", config=None)
    assert stage(level="general").plan_shape(None, shape(), shape(6)) == ModelShape(6, 32, "words", config=None)
    assert stage().plan_shape(None, None, shape()) is None


@pytest.mark.parametrize(
    ("keys", "blamed"),
    [
        ({"pattern": {"kind": "cyclic", "groups": 5}}, r"pattern\.groups"),
        ({"residual_rank": 17}, "residual_rank"),
        ({"embedding": {"size": 16}}, r"embedding\.size"),
        ({"embedding": {"max_mb": 1e-4}}, r"embedding\.max_mb"),
    ],
)
def test_sizes_that_do_not_fit_are_rejected_before_a_model_is_loaded(keys: dict[str, Any], blamed: str) -> None:
    with pytest.raises(UserError, match=blamed):
        stage(**keys).plan_shape(shape(), None, None)


@pytest.mark.parametrize(
    ("reads", "measured"), [("nothing", None), ("inputs", "inputs of 32"), ("gradients", "fisher of 1")]
)
def test_only_what_the_start_reads_is_measured(
    reads: str, measured: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    original: Any = SimpleNamespace(batches=lambda rows: rows, objective=lambda: None)
    monkeypatch.setattr(module.statistics, "inputs", lambda model, rows: f"inputs of {rows}")
    monkeypatch.setattr(module.statistics, "fisher", lambda model, objective, rows: f"fisher of {rows}")
    start: Any = SimpleNamespace(reads=reads)
    model: Any = None
    found = stage()._known(start, model, original)
    assert [value for value in (found.inputs, found.fisher) if value] == ([measured] if measured else [])


def test_groups_are_counted_over_both_halves_of_a_layer() -> None:
    said: list[str] = []
    made = Model(CONFIG, {"mlm": HeadConfig("masked_lm")})
    notes: list[str] = []
    original: Any = SimpleNamespace(
        loaded=SimpleNamespace(config=CONFIG, tokenizer_files={}), meta=lambda *found: notes.extend(found)
    )
    groups = LayerGroups((0, 0, 0, 0), (0, 1, 2, 2))
    factors: Any = SimpleNamespace(size=8, error=0.125)
    found = stage(said)._prepared(original, made, groups, factors)
    assert found.params["share.groups"] == 3
    assert (found.params["student.layers"], found.params["share.embedding"]) == (4, 16)
    assert notes[1] == "embeddings factorized to width 8, error 12.5 %"
    count = f"{CONFIG.count_parameters():,}"
    assert said == [f"{count} parameters became {count} (heads apart)"]
