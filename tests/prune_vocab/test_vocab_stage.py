"""The stage that cuts a vocabulary: what it plans, which text is counted, and what is known of its result before."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compress.encoder.config.encoder import EncoderConfig
from compress.errors import UserError
from compress.stages.prune_vocab import stage as module
from compress.stages.prune_vocab.report import Report
from compress.stages.prune_vocab.spec import Spec
from compress.stages.prune_vocab.stage import Stage
from compress.stages.prune_vocab.usage import Loss
from compress.stages.shared.model_shape import ModelShape

CORPUS = {"level": "general", "text": "corpus"}


def stage(**keys: Any) -> Stage:
    context: Any = SimpleNamespace(corpus=lambda: "corpus", workshop=SimpleNamespace(stop=lambda: None))
    return Stage(Spec.model_validate({"kind": "prune_vocab", "size": 50, **keys}), context)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({}, "cut the vocabulary by size 50, tokens counted in the training texts; "),
        ({"text": "both"}, "cut the vocabulary by size 50, tokens counted in the training texts and the corpus; "),
        (
            {"size": None, "coverage": 99.5, **CORPUS},
            "cut the vocabulary by coverage 99.5 %, tokens counted in the corpus; ",
        ),
    ],
)
def test_the_plan_says_what_is_counted(keys: dict[str, Any], line: str) -> None:
    assert stage(**keys).plan()[0].startswith(line)


def test_a_cut_vocabulary_is_not_known_before(tiny_config: EncoderConfig) -> None:
    teacher, general, start = (ModelShape(depth, 16, "words", config=tiny_config) for depth in (1, 2, 3))
    for made, depth in (
        (stage().plan_shape(None, teacher, general), 1),
        (stage(**CORPUS).plan_shape(None, teacher, general), 2),
        (stage().plan_shape(start, teacher, general), 3),
    ):
        assert made == ModelShape(depth, 16, vocabulary=None, config=None)
    assert stage().plan_shape(None, None, general) is None


def test_a_quantized_model_is_rejected_before_any_stage_runs() -> None:
    quantized: Any = SimpleNamespace(quantization="int8")
    with pytest.raises(UserError, match="cutting its vocabulary"):
        stage().plan_shape(ModelShape(2, 16, config=quantized), None, None)


@pytest.mark.parametrize(("text", "counts"), [("data", [1, 0, 0]), ("corpus", [0, 10, 0]), ("both", [1, 10, 0])])
def test_tokens_are_counted_in_the_text_of_the_recipe(
    text: str, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stage(text=text)
    of_rows = SimpleNamespace(counts=lambda size: np.array([1, 0, 0]))
    monkeypatch.setattr(made, "_rows", lambda split, *_: of_rows if split == "train" else None)
    monkeypatch.setattr(module, "count_corpus", lambda *_: np.array([0, 10, 0]))
    config: Any = SimpleNamespace(vocabulary=3)
    tokenizer: Any = None
    assert made._counts(tokenizer, config).tolist() == counts


def test_losses_are_those_of_the_text_that_the_model_will_read(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    task, general = stage(text="corpus"), stage(**CORPUS)
    for made in (task, general):
        monkeypatch.setattr(made, "_rows", lambda split, *_: f"{split} rows")
    monkeypatch.setattr(module, "read_held_out", lambda corpus, _: f"held-out {corpus}")
    assert task._held_out(nothing, nothing) == "validation rows", "whatever the tokens were counted in"
    assert general._held_out(nothing, nothing) == "held-out corpus"


@pytest.mark.parametrize(("offset", "rows"), [(2, [0, 1]), (0, [1])])
def test_rows_that_positions_are_counted_from_stay(
    offset: int, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    monkeypatch.setattr(module, "always", lambda pieces, counts, spec, rows, where: asked.append(list(rows)))
    monkeypatch.setattr(module, "choose", lambda *_: None)
    config: Any = SimpleNamespace(pad_id=1, position_offset=offset)
    pieces: Any = None
    stage()._choice(pieces, np.zeros(3), config, "m")
    assert asked == [rows]


def test_megabytes_are_those_of_the_table(tiny_config: EncoderConfig) -> None:
    small = dataclasses.replace(tiny_config, vocabulary=tiny_config.vocabulary // 2)
    before, after = module._megabytes(tiny_config, small)
    assert before == pytest.approx(tiny_config.vocabulary * 32 * 4 / 1e6)
    assert after == pytest.approx(before * small.vocabulary / tiny_config.vocabulary)


def test_the_metric_of_the_table_has_the_name_and_form_of_other_tables(tmp_path: Path) -> None:
    choice: Any = SimpleNamespace(rows=9, kept=[1, 2], least=1, coverage=0.5)
    lost = Loss(3, 0.9, 0.1, (0, 1), (0, 1), (5.0, 6.0))
    shown: list[Any] = []
    context: Any = SimpleNamespace(folder=tmp_path, show=lambda *table: shown.append(table))
    log: Any = SimpleNamespace(table=lambda *_: None, metrics=lambda _: None)
    metrics = {"spearman": (0.81, 0.8), "accuracy": (0.9, 0.85)}
    Report(choice, lost, (2.0, 1.0), metrics, context).tell(log)
    ((_, _, rows),) = shown
    assert rows[-2:] == [
        ("Spearman on validation", "0.810", "0.800"),
        ("accuracy on validation", "90.00 %", "85.00 %"),
    ]
