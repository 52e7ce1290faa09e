"""Every verb on a Longformer: it does its work, also on the projections of the global token, or says by name that it
does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from e2e_toy import QUICK, Cli
from test_share_families import checkpoint

from compress.contracts import Needs
from compress.modelfolder.folder import inspect, load_model

pytestmark = pytest.mark.thorough

RECIPE = """
extends: {verb}
description: a verb alone on a toy
data: {{{{max_length: 24}}}}
{quick}
"""
DONE = {
    "factorize": ("--keep", "0.6", "--no-recover"),
    "sparsify": ("--no-recover",),
    "quantize": ("--scheme", "static", "--no-onnx"),
    "prune-width": ("--num-heads", "1", "--no-recover"),
    "prune-vocab": ("--coverage", "0.9"),
}
REJECTED = {
    "share": (("--groups", "2", "--no-recover"), "sharing its layers is not supported"),
    "fit": (("--max-mb", "0.04"), "fitting it is not supported"),
    "prune-width": (("--hidden-size", "8", "--no-recover"), "making it narrower is not supported"),
}


@pytest.fixture
def folder(work: Path) -> Path:
    return checkpoint(work, "longformer")


def run(compress: Cli, verb: str, folder: Path, flags: tuple[str, ...], output: str):
    recipe = ()
    if verb != "fit":
        Path(f"{verb}.yaml").write_text(RECIPE.format(verb=verb, quick=QUICK).replace("{{", "{").replace("}}", "}"))
        recipe = ("--recipe", f"./{verb}.yaml")
    return compress(verb, folder, *recipe, "--data", "data", *flags, "--output", output, "--threads", "1")


@pytest.mark.parametrize("verb", DONE)
def test_a_verb_that_works(verb: str, folder: Path, compress: Cli) -> None:
    done = run(compress, verb, folder, DONE[verb], "runs/made")
    assert done.code == 0, done.err
    made = next(path for name in ("student", "model") if (path := Path("runs/made", name)).is_dir())
    assert inspect(made).config.global_projections
    model = load_model(made).model
    ids = torch.arange(5, 14)[None]
    with torch.no_grad():
        before = model.forward_padded(ids, needs=Needs(logits=True)).logits
        model.encoder.layers[0].attention.globals.value.weight.mul_(3)  # pyright: ignore
        after = model.forward_padded(ids, needs=Needs(logits=True)).logits
    assert before is not None
    assert after is not None
    assert not torch.equal(before, after)
    done = compress("predict", made, "she said the film was good")
    assert done.code == 0, done.err


@pytest.mark.parametrize("verb", REJECTED)
def test_a_verb_that_does_not(verb: str, folder: Path, compress: Cli) -> None:
    flags, message = REJECTED[verb]
    done = run(compress, verb, folder, flags, "runs/none")
    assert done.code == 2, done.err
    assert f"this model's global tokens have projections of their own, as in Longformer: {message}" in done.err
    assert "Traceback" not in done.err
