"""`compress run`: a chain is measured stage by stage, goes on where it stopped, and reuses what did not change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from e2e_toy import QUICK, Cli, Done, sha

from compress.tracking import Store

CHAIN = f"""
name: chain
method: chain
data: {{source: data, max_length: 24}}
{QUICK}
stages:
  - kind: distill
    level: task_specific
    student: {{layers: [0, 2, 4]}}
    objectives: [{{kind: soft_targets, on: task}}, {{kind: hard_labels}}]
    training: {{steps: 6, batch_rows: 8, learning_rate: 1e-3, checkpoint_every: 2, validate_every: 3}}
    checks: "off"
  - {{kind: prune_vocab, size: 70, characters: used}}
  - {{kind: prune_layers, drop: 1, criterion: {{kind: uniform}}, rows: 8}}
  - kind: distill
    level: task_specific
    objectives: [{{kind: soft_targets, on: task}}, {{kind: hidden_mse}}]
    training: {{steps: 4, batch_rows: 8, learning_rate: 1e-3, checkpoint_every: 2}}
    checks: "off"
    control: false
  - {{kind: quantize, scheme: static, rows: 16, sensitivity: false}}
"""
LABELS = ["0-distill", "1-prune_vocab", "2-prune_layers", "3-distill", "4-quantize"]
RUN = ("run", "./chain.yaml", "--model", "mine", "--no-onnx")


@pytest.fixture(autouse=True)
def chain_recipe(work: Path, own_model: Path) -> None:
    Path("chain.yaml").write_text(CHAIN, encoding="utf-8")


def made(done: Done) -> Done:
    assert done.code == 0, done.err
    return done


def weights(run: str) -> dict[str, str]:
    folders = [*(f"stages/{label}/model" for label in LABELS[:-1]), "model"]
    return {name: sha(Path(run) / name / "model.safetensors") for name in folders}


@pytest.mark.store
@pytest.mark.thorough
def test_a_chain_is_measured_stage_by_stage_and_reused_by_content(compress: Cli) -> None:
    first = made(compress(*RUN, "--output", "runs/a", "--until", "3-distill", "--quiet"))
    assert "model    runs/a/stages/3-distill/model" in first.out
    record = json.loads(Path("runs/a/compress-run.json").read_text())
    assert record["status"] == "done until 3-distill"
    done = made(compress(*RUN, "--output", "runs/a", "--resume"))
    assert "0-distill: already done" in done.err
    assert "tokenizers" not in done.err, "taught by the model of the vocabulary that it has"
    _check_told(done)
    _check_store(Path("runs/a"))
    told = made(compress("compare", "--experiment", "compress", "--mixed-conditions"))
    assert "not shown: 1 run of a last stage; the run above has the same figures" in told.out
    assert [f" a/{label}  " in told.out for label in LABELS] == [True, True, True, True, False], told.out

    # A changed last stage reruns only itself, wherever the other run lies; the rest are its bytes.
    shutil.move("runs/a", "elsewhere")
    moved = made(compress(*RUN, "--output", "runs/b", "--until", "0-distill"))
    assert "reused" not in moved.out, "what the index names is not there any more"
    for label in LABELS[1:4]:
        assert not (Path("runs/b/stages") / label).exists()
    again = made(compress(*RUN, "--output", "runs/c", "--set", "stages.4.rows=8", "--json"))
    said = json.loads(again.out)
    assert said["reused"] == {"0-distill": "runs/b"}
    assert [row["stage"] for row in said["waterfall"]] == ["teacher", *LABELS, "total"]
    assert weights("elsewhere") | {"model": ""} == weights("runs/c") | {"model": ""}
    last = made(compress(*RUN, "--output", "runs/d", "--quiet"))
    line = "reused: 0-distill from runs/b; 1-prune_vocab, 2-prune_layers, 3-distill from runs/c; run now: 4-quantize"
    assert line in last.out
    assert weights("runs/d") == weights("elsewhere")
    _check_altered(compress)


def _check_told(done: Done) -> None:
    table = done.out[done.out.index("cost and gain of each stage") :].splitlines()
    rows = [line.split()[0] for line in table[3:10]]
    assert rows == ["teacher", *LABELS, "total"]
    assert "change from previous" in table[1]
    assert "waterfall: latencies measured alternately in one session" in done.out
    assert Path("runs/a/waterfall.svg").read_text(encoding="utf-8").count("<rect") > 10


def _check_store(folder: Path) -> None:
    client: Any = Store(f"sqlite:///{Path('mlruns/mlflow.db').absolute()}").client()
    experiment = client.get_experiment_by_name("compress").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment])}
    parent = runs["a"]
    assert parent.info.status == "FINISHED"
    for label in LABELS:
        child = runs[f"a/{label}"]
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
        names = {key.removeprefix("fake_quantized/") for key in child.data.metrics}
        assert names & {"quality/accuracy", "accuracy"}, f"{label} has its own figures"
        assert "size/disk_mb" in names
        assert child.data.tags["measured.device"], f"{label} says under which conditions"
    assert {"waterfall/1-prune_vocab/points", "waterfall/1-prune_vocab/mb_saved"} <= parent.data.metrics.keys()
    artifacts = {a.path for a in client.list_artifacts(parent.info.run_id)}
    assert {"waterfall.svg", "waterfall.json", "recipe.yaml"} <= artifacts
    assert "4-quantize" in parent.data.tags["mlflow.note.content"]


def _check_altered(compress: Cli) -> None:
    """What was changed by hand is noticed and made again; a stage's name that is none is told."""
    file = Path("runs/d/stages/3-distill/model/model.safetensors")
    whole = file.read_bytes()
    file.unlink()  # not in place: the earlier run's file is this one under another name
    file.write_bytes(whole[:-4] + bytes(4))
    Path("runs/d/compress-run.json").write_text(
        Path("runs/d/compress-run.json").read_text().replace('"finished"', '"stopped"')
    )
    done = made(compress(*RUN, "--output", "runs/d", "--resume", "--until", "3-distill"))
    assert "3-distill is made again: model.safetensors" in done.err
    assert "reused: 0-distill from runs/b; 1-prune_vocab, 2-prune_layers, 3-distill from runs/c\n" in done.out
    assert Path("runs/d/stages/3-distill/model.changed-1").is_dir()
    assert file.read_bytes() == whole
    from_run = made(compress(*RUN, "--output", "runs/e", "--from", "quantize", "--quiet"))
    assert "run now: 4-quantize" in from_run.out
    never = compress(*RUN, "--output", "runs/f", "--from", "quantize", "--seed", "1")
    assert (never.code, "no earlier result of 0-distill" in never.line) == (2, True)
    unknown = compress(*RUN, "--until", "quantise")
    assert (unknown.code, "did you mean 'quantize'" in unknown.line) == (2, True)


def test_an_order_that_makes_no_sense_leaves_no_folder(compress: Cli) -> None:
    Path("chain.yaml").write_text(
        CHAIN.replace("stages:\n", "stages:\n  - {kind: quantize, scheme: per-token}\n", 1), encoding="utf-8"
    )
    done = compress(*RUN, "--output", "runs/x", "--set", "stages.1.student=null")
    assert done.code == 2
    assert "2-prune_vocab cannot come after 0-quantize" in done.line
    assert not Path("runs/x").exists()
