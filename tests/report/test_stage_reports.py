"""What the reports of cutting and quantizing stages print and log: tables, sentences, warnings."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from compress.contracts import LayerChoice, WidthScores
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.reshape.cut import KeptUnits
from compress.errors import UserError
from compress.stages.prune_layers.report import Report as LayerReport
from compress.stages.prune_vocab.report import Report as VocabularyReport
from compress.stages.prune_vocab.selection import Choice
from compress.stages.prune_vocab.usage import Loss
from compress.stages.prune_width.report import Report as WidthReport
from compress.stages.prune_width.report import SizeTrial
from compress.stages.quantize.report import Report as QuantizeReport
from compress.stages.quantize.sensitivity import Damage, FallbackTrial


class Log:
    """What was logged."""

    def __init__(self) -> None:
        self.tables: dict[str, list[Any]] = {}
        self.values: dict[str, float] = {}
        self.artifacts: list[str] = []
        self.tagged: dict[str, str] = {}

    def table(self, path: Path, columns: Any, rows: list[Any]) -> None:
        assert all(len(row) == len(columns) for row in rows)
        self.tables[path.name] = rows

    def metrics(self, values: dict[str, float]) -> None:
        self.values |= values

    def artifact(self, path: Path) -> None:
        self.artifacts.append(path.name)

    def tags(self, values: dict[str, str]) -> None:
        self.tagged |= values


@pytest.fixture
def context(tmp_path: Path) -> Any:
    """Of a stage; `shown` holds what it printed."""
    shown: dict[str, list[Any]] = {}
    return SimpleNamespace(
        folder=tmp_path, shown=shown, said=[], show=lambda title, _, rows: shown.update({title: rows}),
        say=lambda line: shown.setdefault("", []).append(line),
    )  # fmt: skip


# --- width ----------------------------------------------------------------------------------------------------------


def test_widths_before_and_after_and_what_of_the_scores_went(tiny_config: EncoderConfig, context: Any) -> None:
    first, second = tiny_config.layers
    after = dataclasses.replace(
        tiny_config, layers=(dataclasses.replace(first, heads=1, feed_forward=12), dataclasses.replace(second, heads=1))
    )
    scores = WidthScores(
        [torch.tensor([3.0, 1.0], dtype=torch.float64), torch.tensor([1.0, 1.0], dtype=torch.float64)],
        [torch.ones(48, dtype=torch.float64), torch.ones(48, dtype=torch.float64)],
    )
    kept = KeptUnits(((0,), (1,)), (tuple(range(12)), tuple(range(48))))
    trials = [SizeTrial(2_500_000, 3.0, 3.5, 8.0, False), SizeTrial(2_000_000, 2.0, 2.5, 8.0, True)]
    one = WidthReport("taylor", tiny_config, after, kept, scores, 0.25, 100, (4e9, 1e9), trials, context)
    log: Any = Log()
    one.tell(log)
    assert log.tables["widths.json"] == [
        ("0", "1", "2", "16", "12", "48", "25.0 %", "75.0 %"), ("1", "1", "2", "16", "48", "48", "50.0 %", "0.0 %"),
    ]  # fmt: skip
    assert [row[-1] for row in log.tables["targets.json"]] == ["no", "yes"]
    assert log.values["prune_width/operations_kept"] == 0.25
    assert log.values["prune_width/parameters_kept"] == after.count_parameters() / tiny_config.count_parameters()
    assert "kept.json" in log.artifacts
    sizes, moved = one.sentences()
    assert sizes.endswith("operations 4 G became 1 G")
    assert not sizes.startswith("hidden")
    assert moved == "before recovery training: KL divergence to the parent: 0.25 nats, on 100 validation rows"


def test_hidden_states_that_became_narrower_have_no_scores(tiny_config: EncoderConfig, context: Any) -> None:
    wide = dataclasses.replace(tiny_config, hidden=64)
    one = WidthReport("pca", wide, tiny_config, None, None, 0.0, 10, (1e9, 1e9), (), context)
    log: Any = Log()
    one.tell(log)
    assert one.sentences()[0].startswith("hidden 64 became 32, ")
    assert log.tables.keys() == {"widths.json"}
    assert log.tables["widths.json"][0][-2:] == ("0.0 %", "0.0 %")


# --- vocabulary -----------------------------------------------------------------------------------------------------


def vocabulary(context: Any, **changed: Any) -> VocabularyReport:
    lost = dataclasses.replace(Loss(200, 0.99, 0.05, (3, 4), (2, 2), (20.0, 21.5)), **changed)
    choice = Choice(np.arange(500), 120, 1000, 0.9987)
    return VocabularyReport(choice, lost, (4.0, 2.0), {"accuracy": (0.9, 0.89)}, context)


def test_what_the_smaller_vocabulary_costs(context: Any) -> None:
    log: Any = Log()
    vocabulary(context).tell(log)
    rows = {row[0]: row[1:] for row in log.tables["vocabulary.json"]}
    assert rows["rows of the word table"] == ("1,000", "500")
    assert rows["tokens of the counted text kept"] == ("", "99.87 %")
    assert rows["tokens of 200 held-out texts kept"] == ("", "99.00 %")
    assert rows["unknown tokens"] == ("3", "4")
    assert rows["accuracy on validation"] == ("90.00 %", "89.00 %")
    assert log.values["prune_vocab/held_out_changed_pct"] == 5.0
    assert log.values["prune_vocab/validation_accuracy_before"] == 0.9


@pytest.mark.parametrize(
    ("unknown", "changed", "said"),
    [
        (0.01, {}, []),
        (0.011, {}, ["1.10 % of the counted text's tokens are unknown"]),
        (0.0, {"coverage": 0.949}, ["only 94.90 % of the held-out text's tokens are kept"]),
        (0.0, {"affected": (2, 5)}, ["3 held-out texts have an unknown token that had none before"]),
    ],
)
def test_what_must_not_be_missed_is_a_warning(
    context: Any, caplog: pytest.LogCaptureFixture, unknown: float, changed: dict[str, Any], said: list[str]
) -> None:
    caplog.set_level(logging.WARNING)
    vocabulary(context, **changed).warn(unknown)
    assert len(caplog.messages) == len(said)
    assert all(message.startswith(begin) for message, begin in zip(caplog.messages, said, strict=True))


# --- quantization ---------------------------------------------------------------------------------------------------


def test_modules_are_told_the_most_damaging_first(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compress.stages.quantize.report.integer_megabytes", lambda _: 1.5)
    names = [f"encoder.layers.{layer}.attention.{part}" for layer in range(5) for part in ("query", "key")]
    damage = Damage({name: float(place) for place, name in enumerate(names)}, 0.5)
    tried = [FallbackTrial(1, 2.0, False), FallbackTrial(2, 0.5, True)]
    model: Any = None
    log: Any = Log()
    QuantizeReport(names, damage, frozenset(names[-2:]), tried, context, model, "float").tell(log)
    rows = log.tables["sensitivity.json"]
    assert rows[0] == (names[-1], "9.00e+00", "back to float")
    assert rows[2] == (names[-3], "7.00e+00", "")
    assert len(rows) == 10
    assert len(context.shown["sensitivity of each module quantized alone, the worst 8 of 10"]) == 8
    assert log.tables["fallen-back.json"] == [("1", "2.00", "no"), ("2", "0.50", "yes")]
    assert log.values == {"quantize/integer_mb": 1.5, "quantize/kl": 0.5, "quantize/kl_worst_module": 9.0}
    assert log.artifacts == ["sensitivity.svg"]


def test_a_scheme_that_was_not_examined_has_its_size_alone(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compress.stages.quantize.report.integer_megabytes", lambda _: 1.5)
    model: Any = None
    log: Any = Log()
    QuantizeReport(["a"], None, frozenset(), (), context, model, "float").tell(log)
    assert (log.values, log.tables) == ({"quantize/integer_mb": 1.5}, {})


# --- layers ---------------------------------------------------------------------------------------------------------


def study(matrix: np.ndarray, interval: Exception | float = 0.01) -> Any:
    masked = np.ma.masked_invalid(matrix)

    def ends() -> tuple[Any, Any]:
        if isinstance(interval, Exception):
            raise interval
        return masked - interval, masked + interval

    return SimpleNamespace(cka=lambda: SimpleNamespace(matrix=lambda: masked, interval=ends))


CKA = np.array([[1.0, 0.8, 0.5], [0.8, 1.0, 0.9], [0.5, 0.9, 1.0]])
LAYERS = LayerChoice((0,), {1: "most like the layer before"}, {0: 0.8, 1: 0.9}, {(0,): 0.2, (1,): 0.1}, "similarity")


def test_each_layer_with_its_score_and_fate(context: Any) -> None:
    log: Any = Log()
    LayerReport("cka", LAYERS, 2, study(CKA), None, context).tell(log)
    assert log.tables["layers.json"] == [
        ("0", "0.8000", "0.800", "0.790 to 0.810", "stays", ""),
        ("1", "0.9000", "0.900", "0.890 to 0.910", "goes, 1 of 1", "most like the layer before"),
    ]
    assert log.tables["layer-sets.json"] == [("1", "0.1000"), ("0", "0.2000")], "the least loss first"
    assert ("1", "emb", "0.500", "0.490", "0.510") in log.tables["cka.json"]
    assert len(log.tables["cka.json"]) == 6, "each pair once"
    assert log.tagged == {"compress.layers_kept": "0"}


def test_cka_that_is_undefined_costs_no_report(context: Any) -> None:
    masked = np.where(CKA == 0.9, np.nan, CKA)
    log: Any = Log()
    LayerReport("cka", LAYERS, 2, study(masked), None, context).tell(log)
    assert [row[2:4] for row in log.tables["layers.json"]] == [("0.800", "0.790 to 0.810"), ("undefined", "")]
    LayerReport("cka", LAYERS, 2, study(CKA, UserError("too few texts")), None, context).tell(log)
    assert [row[2:4] for row in log.tables["layers.json"]] == [("0.800", ""), ("0.900", "")]
    assert context.shown[""] == ["no interval of CKA: too few texts"]
