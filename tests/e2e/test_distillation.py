"""Layer maps, controls and seeds through the real command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_toy import DISTILL, TASK, Cli
from example_counts import thorough_but

from compress.tracking import Store

LEARNED = ("learned", "compared layers (learned): each with all of 0..3, by trained weights")
LAYERS = "stages.0.objectives=[{kind: hidden_mse}, {kind: soft_targets}]"


@pytest.mark.parametrize(
    ("rule", "line"),
    thorough_but(
        [LEARNED],
        [
            ("uniform", "compared layers (uniform): 0 with 1, 1 with 3"),
            ("first", "compared layers (first): 0 with 0, 1 with 1"),
            ("start", "compared layers (start): 0 with 0, 1 with 2"),
            ("[1, 2]", "compared layers (listed): 0 with 1, 1 with 2"),
            ("[[1, 3]]", "compared layers (listed): 1 with 3"),
            ("smallest", "compared layers (smallest): at each step the one of 0..3 with the smallest loss"),
            LEARNED,
            ("cka", "compared layers (cka): 0 with 0, 1 with "),
        ],
    ),
)
def test_the_layer_map_is_told_before_training(rule: str, line: str, taught: Path, compress: Cli) -> None:
    done = compress(*DISTILL, "--set", LAYERS, "--set", f"stages.0.layer_map={rule}", "--output", "runs/s")
    assert done.code == 0, done.err
    assert line in done.err
    assert done.err.index(line) < done.err.index("0-distill 1/")
    names = json.loads(_header(taught / "runs/s/student/model.safetensors"))
    assert not [name for name in names if "objective" in name or "maps" in name], "projections are dropped"


@pytest.mark.thorough
def test_attention_maps_are_told_to_cost(taught: Path, compress: Cli) -> None:
    """Fused kernels hold none: the layers that are read are computed another way, and that is said."""
    for kind, told in (("attention_maps", True), ("hidden_mse", False)):
        rows = f"stages.0.objectives=[{{kind: {kind}}}, {{kind: soft_targets}}]"
        done = compress(*DISTILL, "--no-control", "--set", rows, "--output", f"runs/{kind}")
        assert done.code == 0, done.err
        assert ("attention_maps reads attention maps, which fused attention kernels do not return" in done.err) == told


def _header(file: Path) -> bytes:
    data = file.read_bytes()
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("unifrm", "did you mean 'uniform'?"),
        ("[0, 9]", "layer_map.1: layers [1, 9] do not exist: allowed: student 0..1, teacher 0..3"),
        ("[0]", "layer_map: 1 teacher layers for a student of 2"),
        ("[[0, 1], [0, 2]]", "layer_map: student layer 0 is listed twice"),
        ("[x]", "allowed in the list: teacher layers, or pairs"),
        ("3", "found 3, allowed: uniform, first"),
    ],
)
def test_a_wrong_layer_map_is_refused(rule: str, message: str, taught: Path, compress: Cli) -> None:
    done = compress(*DISTILL, "--set", LAYERS, "--set", f"stages.0.layer_map={rule}", "--output", "runs/s")
    assert (done.code, done.out) == (2, "")
    assert message in done.err, done.err
    assert not (taught / "runs/s").exists()


def test_a_control_unless_it_is_declined(taught: Path, compress: Cli) -> None:
    done = compress(*DISTILL, "--set", "stages.0.control=null", "--output", "runs/with")
    assert done.code == 0, done.err
    assert "a verdict on the method needs three seeds or more" in done.out
    assert "KL to teacher, nats" in done.out
    plot = (taught / "runs/with/reliability.svg").read_text(encoding="utf-8")
    assert all(f">{name}<" in plot for name in ("teacher", "with", "control", "perfect calibration"))
    (taught / "task.yaml").write_text(TASK.replace("control: false", "control: null"), encoding="utf-8")
    done = compress(*DISTILL, "--no-control", "--output", "runs/without")
    assert done.code == 0, done.err
    assert "its control" not in done.out
    assert not (taught / "runs/without/control").exists()


@pytest.mark.store
@pytest.mark.thorough
def test_several_seeds_tell_mean_and_spread(taught: Path, compress: Cli) -> None:
    words = (*DISTILL, "--set", "stages.0.control=true", "--seeds", "2", "--output", "runs/many")
    done = compress(*words, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["seeds"] == [0, 1]
    by_seed = [{m["role"]: m["values"]["quality/accuracy"] for m in run["models"]} for run in told["runs"]]
    summary = told["summary"]
    for role in ("teacher", "student", "control"):
        scores = [run[role] for run in by_seed]
        assert summary[f"seeds/{role}_accuracy_mean"] == pytest.approx(sum(scores) / 2)
    gains = [run["student"] - run["control"] for run in by_seed]
    assert summary["seeds/gain"] == pytest.approx(sum(gains) / 2)
    half = 12.7062047 * abs(gains[0] - gains[1]) / 2  # Student's t of one degree of freedom
    assert summary["seeds/gain_low"] == pytest.approx(sum(gains) / 2 - half)
    assert any("the best student of 2:" in line for line in told["notes"])
    client = Store(f"sqlite:///{taught / 'mlruns' / 'mlflow.db'}").client()
    experiment = client.get_experiment_by_name("compress")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], "tags.`compress.role` = 'summary'")
    assert [run.data.metrics["seeds/count"] for run in runs] == [2.0]

    again = compress(*words)
    assert again.code == 3, "the folders hold runs"
    again = compress(*words, "--resume")
    assert again.code == 0, again.err
    assert "gain from the teacher" in again.out
    assert "already done" in again.err


def test_seeds_of_a_dry_run_tell_the_plan_once(taught: Path, compress: Cli) -> None:
    done = compress(*DISTILL, "--seeds", "3", "--dry-run", "--output", "runs/many")
    assert done.code == 0, done.err
    assert done.out.count("0-distill: distil on the task") == 1
    assert not (taught / "runs/many").exists()


@pytest.mark.thorough
def test_a_curve_answers_how_many_labels_are_needed(taught: Path, compress: Cli) -> None:
    words = (*DISTILL, "--set", "stages.0.control=true", "--output", "runs/curve")
    sizes = ("--curve-labelled", "8,all", "--curve-unlabelled", "0,4")
    done = compress(*words, *sizes, "--json")
    assert done.code == 0, done.err
    cells = json.loads(done.out)["cells"]
    assert [(c["labelled"], c["unlabelled"]) for c in cells][:2] == [(8, 0), (8, 4)]
    assert [("control" in c) for c in cells] == [c["unlabelled"] == 0 for c in cells], "one control for each line"
    assert "4 of " in done.err, "unlabelled rows are drawn"
    assert (taught / "runs/curve/summary/curve.svg").exists()
    again = compress(*words, *sizes, "--resume")
    assert again.code == 0, again.err
    assert "student, 4 texts" in again.out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--curve-labelled", "0"), "'0' is not a number of rows"),
        (("--curve", "--seeds", "2"), "cannot be combined with --curve"),
        (("--curve", "--check"), "cannot be combined with --check"),
    ],
)
def test_a_curve_that_cannot_be_is_one_line(words: tuple[str, ...], line: str, taught: Path, compress: Cli) -> None:
    done = compress(*DISTILL, *words, "--output", "runs/c")
    assert (done.code, done.out) == (2, "")
    assert line in done.err
    assert not (taught / "runs/c").exists()
