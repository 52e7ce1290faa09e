"""`compress finetune --tune`: few parameters are trained, and the folder is an ordinary one."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from e2e_toy import PRETRAINED, QUICK, Cli, Server, sha

from compress.modelfolder import folder as modelfolder
from compress.storage import safe

RECIPE = "finetune", "--recipe", "./quick.yaml", "--model", PRETRAINED, "--data", "data", "--tune", "lora"


def write_recipe(folder: Path) -> None:
    text = f"extends: finetune\n{QUICK}\nstages:\n  0: {{training: {{steps: 6, checkpoint_every: 1}}}}\n"
    (folder / "quick.yaml").write_text(text, encoding="utf-8")


@pytest.mark.thorough
def test_lora_resumes_bit_exactly_and_leaves_an_ordinary_folder(taught: Path, server: Server, compress: Cli) -> None:
    write_recipe(taught)
    done = compress(*RECIPE, "--lora-rank", "4", "--output", "runs/whole", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    plain = modelfolder.load_model(taught / PRETRAINED, keep=())
    tuned = modelfolder.load_model(taught / "runs/whole/model")
    layers, hidden, inner = plain.config.depth, plain.config.hidden, plain.config.layers[0].feed_forward
    adapters = 4 * (layers * (4 * 2 * hidden + 2 * (hidden + inner)) + 2 * hidden * plain.config.pooler)
    head = sum(p.numel() for p in tuned.model.heads["task"].parameters())
    if tuned.config.pooler and not plain.config.pooler:
        head += hidden * hidden + hidden
    assert next(iter(found["stages"].values()))["trained_parameters"] == adapters + head
    assert f"fine-tuned {adapters + head:,} parameters" in (taught / "runs/whole/model/README.md").read_text()

    before, after = (dict(one.model.encoder.named_parameters()) for one in (plain, tuned))
    assert {n for n in after if n in before and not before[n].equal(after[n])} == {
        f"layers.{n}.{part}.weight"
        for n in range(layers)
        for part in (*(f"attention.{p}" for p in ("query", "key", "value", "output")), "feed_forward.up",
                     "feed_forward.down")
    } | ({"pooler.dense.weight"} if "pooler.dense.weight" in before else set())  # fmt: skip

    run = (*RECIPE, "--lora-rank", "4", "--output", "runs/cut", "--quiet")
    done = server.run(taught, *run, signal_at=(3, "SIGKILL"))
    assert done.code == -signal.SIGKILL
    moments = sorted((taught / "runs/cut/stages/0-finetune/checkpoints").glob("step-*/optimizer.safetensors"))
    names = safe.load_safetensors(moments[-1], max_tensors=10_000, max_header=1 << 20)
    assert names
    assert all(".adapter." in name or ".heads.task." in name or ".pooler." in name for name in names)
    done = server.run(taught, *run, "--resume")
    assert done.code == 0, done.err
    assert sha(taught / "runs/cut/model/model.safetensors") == sha(taught / "runs/whole/model/model.safetensors")


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        (["--tune", "last-7"], "last-7 is more than the model"),
        (["--tune", "last"], "last needs a number of layers; e.g. --tune last-2"),
        (["--tune", "last-0"], "last needs a number of layers"),
        (["--tune", "lorra"], "unknown tuning 'lorra'; did you mean 'lora'?"),
        (["--lora-rank", "0"], "--lora-rank: 0 is not possible"),
        (["--lora-rank", "4000"], "LoRA rank 4000 is too large"),
        (["--tune", "bitfit", "--lora-alpha", "2"], "--lora-alpha: has no effect with --tune bitfit"),
    ],
)
def test_what_cannot_be_tuned_is_said_before_anything_is_made(
    tune: list[str], message: str, taught: Path, compress: Cli
) -> None:
    done = compress("finetune", "--model", PRETRAINED, "--data", "data", "--output", "runs/no", *tune)
    assert done.code == 2
    assert message in done.err
    assert not (taught / "runs/no").exists()
