"""Every shipped recipe runs, by the command at its head, with a few steps on toy data.

`smoke` and `smoke-teacher` run in test_river.py, on generated data below; those of embedding models and rerankers in
test_embeddings.py and test_rerankers.py, and `pretrain-further`, which has no task, in test_verbs.py.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from e2e_toy import Cli

from compress.recipe import load_recipe
from compress.recipe.library import folder, names
from compress.storage import atomic

pytestmark = pytest.mark.thorough

QUICK = {
    "data.max_length": 24,
    "data.limit": 16,
    "evaluation.bootstrap": 100,
    "evaluation.latency": "{length: 16, warmup: 0, repeats: 5, seconds: 1}",
    "evaluation.throughput_rows": 4,
}
CORPUS = {"corpus.source": "corpus.txt", "corpus.text_column": "null", "corpus.max_length": 24}
CONTROLLED = ("tinybert", "qat")
"""Recipes that also train their control here; one in each of two commands shows that a recipe's control runs."""
SMALL = {"layers": 2, "hidden": 16, "heads": 2, "intermediate_size": 32, "max_positions": 64}


def command(name: str) -> list[str]:
    """What the recipe's first line says to type, for the model folder `mine` and the data `data`."""
    head = (folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    head = head.removeprefix("# compress ")
    for word, toy in (
        ("FOLDER", "mine"),
        ("OTHER", "other"),
        ("DATA", "data"),
        ("CORPUS", "corpus.txt"),
        ("TEXT", "corpus.txt"),
        ("PRETRAINED", "mine"),
        ("WORDS", "words.txt"),
    ):
        head = head.replace(word, toy)
    words = shlex.split(head)
    recipe = load_recipe(name)
    starts_from_a_model = words[0] in (
        "prune-layers",
        "prune-vocab",
        "prune-width",
        "drop-tokens",
        "share",
        "factorize",
        "sparsify",
        "quantize",
    )
    if recipe.teacher is not None and not {"--teacher", "--model"} & {*words} and not starts_from_a_model:
        words += ["--teacher", "mine"]
    if "--data" not in words:
        words += ["--data", "data"]
    changes = {**QUICK, **(CORPUS if recipe.corpus else {})}
    if recipe.sweep is not None:
        grid = "{stages.0.pattern.groups: [2], stages.0.embedding.size: [8], stages.0.residual_rank: [2]}"
        changes["sweep"] = grid
    for index, stage in enumerate(recipe.stages):
        if hasattr(stage, "training"):
            changes |= {f"stages.{index}.training.steps": 2, f"stages.{index}.training.epochs": "null"}
        if hasattr(getattr(stage, "importance", None), "steps"):
            changes |= {f"stages.{index}.importance.steps": 2}
        if stage.kind == "share":
            changes |= {f"stages.{index}.residual_rank": min(4, stage.residual_rank)}
            changes |= {f"stages.{index}.embedding": "{size: 8}"} if stage.embedding is not None else {}
        if stage.kind == "drop_tokens":  # a toy is too small for its tokens to take time
            changes |= {f"stages.{index}.max_drop": "null", f"stages.{index}.keep_tokens": "50"}
        if getattr(getattr(stage, "student", None), "hidden", None) is not None:
            changes |= {f"stages.{index}.student.hidden": 8}
        if stage.kind == "distill" and stage.level == "task_specific" and name not in CONTROLLED:
            changes |= {f"stages.{index}.control": "false"}
        if hasattr(stage, "encoder"):
            changes |= {f"stages.{index}.encoder.{key}": value for key, value in SMALL.items()}
    return words + [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]


ELSEWHERE = ("smoke", "embed-", "rerank-", "text-", "pretrain-further")


@pytest.mark.parametrize("name", [name for name in names() if not name.startswith(ELSEWHERE)])
def test_a_shipped_recipe_runs(name: str, own_model: Path, other_model: Path, compress: Cli) -> None:
    Path("words.txt").write_text("film\nplot\n", encoding="utf-8")
    done = compress(*command(name))
    assert done.code == 0, done.err
    assert re.search(r"^\s+accuracy +\d", done.out, re.MULTILINE)
    (model,) = (Path(line.split()[1]) for line in done.out.splitlines() if line.startswith("model "))
    assert atomic.verify_folder(model) == []


@pytest.mark.slow
def test_the_smoke_recipe_as_it_stands(work: Path, compress: Cli) -> None:
    """On the embedded opinions, teacher and all, from an empty folder."""
    shutil.rmtree(work / "mlruns")
    done = compress("distill", "--recipe", "smoke")
    assert done.code == 0, done.err
    assert (work / "runs/smoke/student/model.safetensors").is_file()
    assert (work / "mlruns/mlflow.db").is_file()
