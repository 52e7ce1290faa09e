"""`compress prune-layers` through the real command line, at toy scale."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e_toy import QUICK, Cli

from compress.contracts import Batch, Needs
from compress.encoder.config.encoder import HeadConfig, LayerShape
from compress.encoder.config.schemes import QuantizationSpec
from compress.encoder.config.sharing import Sharing
from compress.encoder.integers.convert import plan_quantization, quantize_model
from compress.encoder.modules.model import Model
from compress.modelfolder.folder import inspect, load_model, save_model
from compress.stages.prune_layers.gates import apply_layer_gates
from compress.storage import atomic

RECIPE = f"""
extends: prune-layers
description: cut a toy
data: {{max_length: 24}}
{QUICK}
stages:
  0: {{rows: 48}}
  1: {{training: {{epochs: null, steps: 2, batch_rows: 8, learning_rate: 1e-3}}}}
"""


@pytest.fixture
def prune(own_model: Path, compress: Cli) -> Cli:
    """`compress prune-layers mine …` on the toy data."""
    Path("cut.yaml").write_text(RECIPE, encoding="utf-8")

    def run(*args: str | Path):
        return compress("prune-layers", "mine", "--recipe", "./cut.yaml", "--data", "data", "--threads", "1", *args)

    return run


def test_cut_recover_measure_and_explain(prune: Cli) -> None:
    done = prune("--keep", "4", "--explain")
    assert done.code == 0, done.err
    assert re.search(r"layers 0\.\.5: \d, \d dropped, \d, \d, \d, \d kept", done.err)
    header = next(line for line in done.out.splitlines() if "after cutting" in line)
    assert header.split() == ["teacher", "after", "cutting", "cut"]
    assert "accuracy against teacher" in done.out
    why = r"CKA -?\d\.\d{3} with (?:the embeddings|layer \d), the highest"
    reasons = re.findall(rf"layer (\d) was removed: {why}", done.out)
    rows = json.loads(Path("runs/cut/stages/0-prune_layers/layers.json").read_text(encoding="utf-8"))
    fates = {row[rows["columns"].index("stays or goes")]: row[0] for row in rows["data"]}
    assert reasons == [fates["goes, 1 of 2"], fates["goes, 2 of 2"]], "in the order in which they went"
    assert "CKA of layer outputs, debiased, all tokens" in done.out
    student, middle = Path("runs/cut/student"), Path("runs/cut/stages/0-prune_layers")
    assert inspect(student).config.depth == inspect(middle / "model").config.depth == 4
    assert inspect(student).stock_class == "BertForSequenceClassification"
    assert atomic.verify_folder(student) == []
    assert (middle / "cka.svg").read_text(encoding="utf-8").startswith("<svg")
    rows = json.loads((middle / "layers.json").read_text(encoding="utf-8"))
    assert len(rows["data"]) == 6
    assert "chosen by cka" in (middle / "model/README.md").read_text(encoding="utf-8")
    assert {p.role for p in inspect(middle / "model").meta.lineage} == {"parent"}


@pytest.mark.thorough
def test_a_latency_is_met_or_the_best_possible_told(prune: Cli) -> None:
    done = prune("--target-latency", "10000ms", "--no-recover", "--criterion", "first")
    assert done.code == 0, done.err
    assert inspect("runs/cut/model").config.depth == 5, "as few as bring it to the target"
    assert "depths tried" in done.out
    done = prune("--target-latency", "0.000001", "--no-recover")
    assert (done.code, len(done.err.strip().splitlines()) > 0) == (3, True)
    assert re.search(
        r"--target-latency 1e-06: no model with 1 or more layers runs in 1e-06 ms or less here: the fastest takes ",
        done.line,
    )


@pytest.mark.thorough
def test_points_that_may_be_lost(prune: Cli) -> None:
    done = prune("--max-drop", "100", "--no-recover", "--criterion", "leave-one-out", "--protect", "0,5")
    assert done.code == 0, done.err
    assert inspect("runs/cut/model").config.depth == 2
    done = prune("--max-drop", "0", "--no-recover", "--criterion", "last")
    assert done.code in (0, 3), done.err
    if done.code:
        assert "no layer can be dropped within 0 points: the cheapest removal, of layer 0, costs" in done.line


@pytest.mark.thorough
def test_a_schedule_recovers_between_cuts(prune: Cli) -> None:
    done = prune("--drop", "3", "--layers-per-round", "2", "--criterion", "block-influence")
    assert done.code == 0, done.err
    stages = sorted(path.name for path in Path("runs/cut/stages").iterdir())
    assert stages == ["0-prune_layers", "1-distill", "2-prune_layers", "3-distill"]
    assert [inspect(f"runs/cut/stages/{s}/model").config.depth for s in stages[:3]] == [4, 4, 3]
    assert inspect("runs/cut/student").config.depth == 3
    assert "after cutting 1" in done.out
    assert "after cutting 2" in done.out


KINDS: dict[str, dict[str, Any]] = {
    "shared": {"layer_groups": (0, 0, 1, 1, 0, 0)},
    "shared in parts": {"sharing": Sharing((0, 0, 0, 1, 1, 1), (0, 1, 2, 0, 1, 2), residual_rank=2)},
    "narrow": {"layers": tuple(LayerShape(heads, 8, 5 + 3 * heads) for heads in (2, 1, 2, 1, 2, 1))},
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_models_answer_as_with_the_gates_of_the_lost_layers_shut(kind: str, prune: Cli) -> None:
    mine = load_model("mine")
    config = dataclasses.replace(mine.config, **KINDS[kind])
    parent = Model(config, {"task": HeadConfig("classification", labels=2)}).initialize(0).eval()
    with torch.no_grad():  # far from zero, so that a lost layer is missed
        for parameter in parent.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7)), alpha=0.2)
    shutil.rmtree("mine")
    save_model(Path("mine"), parent, tokenizer_files=mine.tokenizer_files, meta=mine.meta)
    done = prune("--keep", "3", "--no-recover", "--criterion", "leave-one-out")
    assert done.code == 0, done.err
    cut = load_model("runs/cut/model")
    table = json.loads(Path("runs/cut/stages/0-prune_layers/layers.json").read_text(encoding="utf-8"))
    stays = ["stays" in row for row in table["data"]]
    assert (cut.config.depth, sum(stays)) == (3, 3)
    lengths = torch.tensor([0, 9, 14])
    batch = Batch(
        torch.arange(14) + 5, torch.zeros(14, dtype=torch.long), torch.tensor([*range(9), *range(5)]), lengths, 9,
        torch.arange(2),
    )  # fmt: skip
    with torch.no_grad():
        whole = parent(batch, Needs(logits=True)).logits
        with apply_layer_gates(parent, lambda layer: torch.tensor(float(stays[layer]))):
            wanted = parent(batch, Needs(logits=True)).logits
        found = cut.model.eval()(batch, Needs(logits=True)).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    assert (whole - wanted).abs().max() > 1e-3


def test_a_quantized_model_is_refused_before_anything_is_computed(prune: Cli) -> None:
    mine = load_model("mine")
    made = quantize_model(mine.model, plan_quantization(QuantizationSpec(scheme="per-token"), mine.model))
    shutil.rmtree("mine")
    save_model(Path("mine"), made, tokenizer_files=mine.tokenizer_files, meta=mine.meta)
    done = prune("--keep", "3")
    assert done.code == 2
    assert "mine: the model is quantized already, and cutting it needs float weights; start from its float" in done.line
    assert not Path("runs").exists()


@pytest.mark.thorough
def test_the_contest(prune: Cli) -> None:
    done = prune("--criterion", "first,last", "--keep", "5,4", "--dry-run")
    assert (done.code, done.out.splitlines()) == (
        0, ["would compare at 5 layers: first, last", "would compare at 4 layers: first, last"]
    )  # fmt: skip
    assert not Path("runs").exists()
    done = prune(
        "--criterion", "all", "--keep", "5", "--protect", "0,1,2,3", "--random-subsets", "9", "--json", "--set",
        "stages.0.criterion={kind: learned_gates, steps: 2}",
    )  # fmt: skip
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["folder"] == "runs/cut-contest"
    entries = {e["criterion"]: e for e in told["entries"]}
    assert len(entries) == 14
    assert told["entries"][0]["behind"]["value"] == 0
    assert all(e["behind"]["value"] <= 1e-12 for e in told["entries"])
    assert entries["exhaustive"]["sets"] == 2
    assert all(e["regret"] >= -1e-9 for e in told["entries"])
    assert entries["first"]["layers"] == [[0, 1, 2, 3, 4]]
    assert re.match(r"5 layers: (no winner; not measurably worse than|\w+ is best)", told["notes"][0])
    notes = "\n".join(told["notes"])
    assert re.search(r"5 layers: measurably better than the random baseline: \w+", notes)
    assert "share of layer sets that are worse before recovery training, mean over depths (random: 50 %): " in notes
    same = "the criteria chose on the same 48 training texts and recovery training with the same 2 steps of 8 rows"
    assert same in notes
    assert entries["exhaustive"]["rank"] in (1, 2)
    assert "5 layers: the random baseline: all 2 sets" in told["notes"], "there are no more to draw"
    for entry in told["entries"]:
        assert (entry["rank_after"], entry["regret_after"] >= 0) in ((1, True), (2, True))
    runs = list(Path(told["folder"]).glob("keep-5/*/seed-*/student"))
    assert len(runs) <= 2, "one for each set and seed, not for each criterion"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--keep", "0"), "--keep: 0 is not possible; give a number above 0"),
        (("--keep", "6"), "--keep 6: cannot keep 6 of 6 layers: the model has layers 0..5; use keep 1..5"),
        (("--drop", "6"), "--drop 6: all 6 layers would be dropped: the model has layers 0..5; use drop 1..5"),
        (("--keep", "3", "--drop", "2"), "--keep and --drop together: each sets how many layers stay"),
        (("--keep", "3", "--criterion", "cca"), "--criterion: unknown criterion 'cca'; did you mean 'cka'?"),
        (("--keep", "3", "--protect", "7"), "--protect 7: layer 7 does not exist: allowed: 0..5"),
        (("--keep", "1", "--protect", "0,5"), "--protect 0,5: 2 layers are protected but only 1 would be kept"),
        (("--keep", "4,3"), "--keep: several numbers of layers: one model is made; use --criterion all, or give one"),
        (("--keep", "three"), "--keep three: not a list of whole numbers; e.g. --keep 3"),
        (
            ("--max-drop", "1", "--layers-per-round", "1"),
            "--layers-per-round: needs a number of layers; add --keep or --drop",
        ),
        (("--target-latency", "soon"), "'soon' is not a time in milliseconds"),
        (("--keep", "3", "--criterion", "cka,cca"), "--criterion: unknown criterion 'cca'; did you mean 'cka'?"),
        (
            ("--keep", "3", "--random-subsets", "2"),
            "--random-subsets: only applies when criteria are compared; use --crit",
        ),
        (
            ("--criterion", "all", "--random-subsets", "2", "--no-recover"),
            "--random-subsets: only applies with recovery training",
        ),
        (("--criterion", "all", "--drop", "2"), "--drop: does not apply when criteria are compared; give the numbers"),
    ],
)
def test_what_cannot_be(prune: Cli, flags: tuple[str, ...], message: str) -> None:
    done = prune(*flags)
    assert done.code == 2
    assert message in done.line
    assert "Traceback" not in done.err
    assert not Path("runs").exists()
