"""fit, prune-width, quantize and share as commands on the families with relative positions: MPNet and DeBERTa-v2."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from e2e_toy import QUICK, Cli
from test_share_families import checkpoint

from compress.contracts import Needs
from compress.modelfolder.folder import inspect, load_model

pytestmark = pytest.mark.thorough

RECIPE = f"""
description: a verb alone on a toy
data: {{max_length: 24}}
{QUICK}
"""
FLAGS = {
    "fit": (
        "--max-mb", "0.03", "--length", "24", "--plans", "1", "--runtime", "onnxruntime", "--uncertified",
    ),
    "prune-width": ("--num-heads", "1", "--intermediate-size", "16", "--no-recover"),
    "quantize": ("--scheme", "static"),
    "share": ("--groups", "2", "--no-recover"),
}  # fmt: skip
TEXT = "she said the film was good"


@pytest.mark.parametrize("family", ["mpnet", "deberta-v2"])
@pytest.mark.parametrize("verb", FLAGS)
def test_the_distances_stay_in_what_a_verb_makes(verb: str, family: str, work: Path, compress: Cli) -> None:
    folder, recipe = checkpoint(work, family), ()
    if verb != "fit":
        Path(f"{verb}.yaml").write_text(f"extends: {verb}\n{RECIPE}", encoding="utf-8")
        recipe = ("--recipe", f"./{verb}.yaml")
    done = compress(verb, folder, *recipe, "--data", "data", *FLAGS[verb], "--output", "runs/made", "--threads", "1")
    assert done.code == 0, done.err
    made = next(path for name in ("student", "model") if (path := Path("runs/made", name)).is_dir())
    config, before = inspect(made).config, inspect(folder).config
    assert inspect(made).family == family
    assert (config.relative_bias is None) == (before.relative_bias is None)
    assert (config.disentangled is None) == (before.disentangled is None)
    if verb in ("quantize", "fit"):
        assert config.quantization is not None
    if verb == "prune-width":
        assert {(shape.heads, shape.feed_forward) for shape in config.layers} == {(1, 16)}
    model, ids = load_model(made).model.eval(), torch.arange(5, 14)[None]
    # One table for all layers, or one each where the heads that are kept differ.
    tables = [
        p for name, p in model.named_parameters() if ".relative." in name or name.startswith("encoder.distances.")
    ]
    assert tables
    with torch.no_grad():
        first = model.forward_padded(ids, needs=Needs(logits=True)).logits
        for table in tables:
            table.mul_(3)
        second = model.forward_padded(ids, needs=Needs(logits=True)).logits
    assert first is not None
    assert second is not None
    assert not torch.equal(first, second), "the distances decide"
    done = compress("predict", made, TEXT)
    assert done.code == 0, done.err
