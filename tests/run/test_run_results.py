"""What stages leave for those after them, what a run reports, and which model it selects."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from measured_models import measured_model

from compress.contracts import StageResult
from compress.recipe import load_recipe
from compress.run.choice import Candidate, best_of, sentences
from compress.run.results import ChainState, RunReport, read_done, read_findings, work_folder
from compress.storage import atomic

TRAINING = {"steps": 2}
RECIPE = load_recipe(
    {
        "name": "x",
        "corpus": {"source": "c"},
        "data": {"source": "d"},
        "stages": [
            {"kind": "tokenizer", "vocabulary_size": 300},
            {
                "kind": "pretrain",
                "encoder": {"layers": 2, "hidden": 32, "heads": 2, "intermediate_size": 64},
                "training": TRAINING,
            },
            {"kind": "finetune", "training": TRAINING},
        ],
    }
)
TOKENIZER, PRETRAIN, FINETUNE = RECIPE.stages


def test_a_stage_goes_on_from_what_those_before_it_made() -> None:
    state = ChainState().add_stage(0, "0-tokenizer", TOKENIZER, StageResult(Path("t"), 0, 1.0))
    assert (state.model, state.tokenizer, state.last, state.figures) == (None, Path("t"), None, {})
    first = StageResult(Path("p"), 2, 1.0, {"loss": 3.0})
    state = state.add_stage(1, "1-pretrain", PRETRAIN, first)
    assert (state.model, state.before, state.tokenizer, state.last) == (Path("p"), None, Path("t"), first)
    second = StageResult(Path("f"), 2, 1.0, {"accuracy": 0.9}, source=Path("runs/other"))
    state = state.add_stage(2, "2-finetune", FINETUNE, second)
    assert (state.model, state.before, state.last) == (Path("f"), Path("p"), second)
    assert state.folders == {1: Path("p"), 2: Path("f")}
    assert state.figures == {"1-pretrain": {"loss": 3.0}, "2-finetune": {"accuracy": 0.9}}
    assert (state.reused, state.resumed) == ({"2-finetune": Path("runs/other")}, ())
    resumed = ChainState().add_stage(0, "0-tokenizer", TOKENIZER, StageResult(Path("t"), 0, 0.0, resumed=True))
    assert (resumed.reused, resumed.resumed) == ({}, ("0-tokenizer",))
    resumed = resumed.add_stage(2, "2-finetune", FINETUNE, dataclasses.replace(second, resumed=True))
    assert (resumed.reused, resumed.resumed) == ({"2-finetune": Path("runs/other")}, ("0-tokenizer",))


def test_findings_are_read_back_with_their_stage(tmp_path: Path) -> None:
    work = work_folder(tmp_path, 1, "distill")
    assert read_findings(work) == []
    rows = {"columns": ["step", "finding", "do"], "data": [[0, "it is random", "name layers"]]}
    atomic.write_json(work / "findings.json", rows)
    assert read_findings(work) == [{"stage": "1-distill", "step": 0, "finding": "it is random", "do": "name layers"}]


def test_a_stage_that_was_done_takes_no_time(tmp_path: Path) -> None:
    atomic.write_json(tmp_path / "steps.json", {"steps": 7, "figures": {"loss": 1.0}})
    found = read_done(tmp_path, Path("m"))
    assert (found.folder, found.steps, found.seconds) == (Path("m"), 7, 0.0)
    assert (found.best, found.start) == ({"loss": 1.0}, {}), "folders of older versions have no figures of the start"


def test_what_json_prints() -> None:
    report = RunReport(Path("runs/x"), Path("runs/x/student"), [measured_model("student")], ["a line"], {"0-cut": {}})
    told = report.as_json()
    assert (told["folder"], told["model"], told["notes"]) == ("runs/x", "runs/x/student", ["a line"])
    assert (told["models"][0]["role"], told["models"][0]["folder"]) == ("student", "m")
    assert not {"waterfall", "reused"} & told.keys(), "those are of chains"
    chain = RunReport(Path("a"), Path("b"), waterfall=[{"stage": "total"}], reused={"0-cut": Path("runs/y")}).as_json()
    assert (chain["waterfall"], chain["reused"]) == ([{"stage": "total"}], {"0-cut": "runs/y"})
    assert json.dumps(chain)


# --- the best -------------------------------------------------------------------------------------------------------


def candidates(*values: float) -> list[Candidate]:
    names = ("augmented", "augmented alone", "augmented + distillation")
    return [Candidate(name, name, Path(name), value) for name, value in zip(names, values, strict=False)]


def test_what_was_there_first_stays_unless_it_is_beaten() -> None:
    assert best_of(candidates(0.9, 0.9, 0.9)).name == "augmented"
    assert best_of(candidates(0.9, 0.9, 0.901)).name == "augmented + distillation"


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        (
            (0.8, 0.85, 0.9),
            [
                "selected: augmented + distillation, accuracy 90.00 % on validation; augmented 80.00, "
                "augmented alone 85.00"
            ],
        ),
        (
            (0.9, 0.85, 0.9),
            [
                "selected: augmented, accuracy 90.00 % on validation; augmented alone 85.00, augmented + distillation "
                "90.00",
                "training did not improve it: augmented alone and augmented + distillation did not score higher than "
                "augmented on validation",
            ],
        ),
    ],
)
def test_the_lines_on_what_was_selected(values: tuple[float, ...], lines: list[str]) -> None:
    assert sentences(candidates(*values), "accuracy") == lines
