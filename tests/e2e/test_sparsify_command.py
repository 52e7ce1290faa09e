"""`compress sparsify` on a toy: cut, recover, measure; zeros live through training, and the command says what for."""

from __future__ import annotations

import json
from pathlib import Path

import e2e_toy as toy
from e2e_toy import TEACHER, Cli

from compress.encoder.modules.masks import is_semi_structured, sparse_parts
from compress.modelfolder import folder as modelfolder

RECIPE = f"""
extends: sparsify
description: zeros on a toy
data: {{max_length: 24}}
{toy.QUICK}
stages:
  1:
    training: {{weight_decay: 0.1, batch_rows: 8, learning_rate: 1e-3, checkpoint_every: 2}}
"""
COMMAND = ("sparsify", TEACHER, "--recipe", "./zeros.yaml", "--data", "data")


def test_cut_and_recovered(taught: Path, compress: Cli) -> None:
    (taught / "zeros.yaml").write_text(RECIPE, encoding="utf-8")
    done = compress(*COMMAND, "--steps", "4", "--output", "runs/s", "--json")
    assert done.code == 0, done.err
    assert "the model is neither smaller nor faster on the CPU: the file stores the zeros" in done.err
    assert "stay dense because torch's kernels do not support their sizes" not in done.err
    roles = {m["role"]: m["values"] for m in json.loads(done.out)["models"]}
    assert roles["teacher"]["size/params_m"] == roles["stage-0"]["size/params_m"] == roles["student"]["size/params_m"]
    made = modelfolder.load_model(Path("runs/s/student"))
    before = modelfolder.load_model(Path("runs/s/stages/0-sparsify/model"))
    assert (made.family, made.config) == ("bert", before.config)
    for name, part in sparse_parts(made.model).items():
        assert is_semi_structured(part.weight)
        zero = sparse_parts(before.model)[name].weight == 0
        assert (part.weight[zero] == 0).all()
        assert (part.weight[~zero] != sparse_parts(before.model)[name].weight[~zero]).any()
    refused = compress("predict", "runs/s/student", "a fine film", "--runtime", "torch-sparse")
    assert refused.code != 0
    assert (
        "this device does not support sparse matrix products: they need CUDA capability 8.0 or more, this is a CPU"
        in refused.err
    )
    again = compress(*COMMAND[:1], "runs/s/student", *COMMAND[2:], "--no-recover", "--output", "runs/again")
    assert again.code == 2
    assert "2:4 sparse, and sparsifying them again would break the pattern" in again.err
