"""The energy of measured models: a figure where the machine has counters and is quiet, else nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.contracts import Measurement
from compress.data.tables.random_rows import draw_mixed_rows
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.measure import cost as cost_module
from compress.measure.cost import ENERGY, CostPlan, measure_cost
from compress.measure.measured_model import rename_simulated
from compress.modelfolder.folder import FolderMeta, save_model
from compress.predict.predictor import Predictor
from compress.report.rows import comparison, conditions
from evaluation.cost.energy import Counters

PLAN = CostPlan(length=8, repeats=2, warmup=0, throughput_rows=4, seconds=0.1)


class Steady:
    """A counter that grows by 2 J at each reading."""

    name, range = "package-0", None

    def __init__(self) -> None:
        self.joules = 0.0

    def read(self) -> float:
        self.joules += 2.0
        return self.joules


@pytest.fixture
def found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_config: EncoderConfig, toy_tokenizer_files: dict[str, bytes]
) -> Any:
    """Measures a tiny model once, with these counters, on a machine that is quiet or not."""
    model = Model(tiny_config, {"task": HeadConfig("classification", labels=2)})
    meta = FolderMeta(family="bert", task="classification", label_names=("no", "yes"))
    folder = save_model(tmp_path / "m", model, tokenizer_files=toy_tokenizer_files, meta=meta)

    def measure(counters: Counters, *, quiet: bool = True) -> Measurement:
        timing = SimpleNamespace(
            is_known=quiet, clock="wall time" if quiet else "processor time", p50=1.0, p95=1.0, p99=1.0, repeats=2
        )
        monkeypatch.setattr(cost_module, "find_counters", lambda device: counters)
        monkeypatch.setattr(cost_module, "measure_energy", lambda call, found: (call(), 3.0)[1])
        monkeypatch.setattr(cost_module, "measure_interleaved", lambda calls, **how: [timing] * len(calls))
        predictor = Predictor(folder)
        sample = draw_mixed_rows(predictor.config.vocabulary, 8)
        (cost,) = measure_cost([predictor], [sample], PLAN)
        assert len(sample.lengths) > 0
        return cost.measurement

    return measure


def test_joules_are_of_a_thousand_texts(found: Any) -> None:
    measured = found(Counters((Steady(),)))
    rows = int(measured.context["throughput_mix"].split()[0])
    assert measured.values[ENERGY] == pytest.approx(1000 * 3.0 / rows)
    assert measured.context["energy_of"] == "package-0"
    assert any(row[0] == "energy per 1,000 texts" for row in comparison(["m"], [measured])[1])
    assert "energy: of package-0, with idle power and whatever else ran" in conditions(measured)
    assert ENERGY not in rename_simulated(measured.values), "simulated integers have no energy"


@pytest.mark.parametrize(("counters", "quiet"), [(Counters((), "none"), True), (Counters((Steady(),)), False)])
def test_nothing_is_said_without_counters_or_on_a_busy_machine(counters: Counters, quiet: bool, found: Any) -> None:
    measured = found(counters, quiet=quiet)
    assert ENERGY not in measured.values
    assert "energy_of" not in measured.context
    assert not [row for row in comparison(["m"], [measured])[1] if row[0].startswith("energy")]
