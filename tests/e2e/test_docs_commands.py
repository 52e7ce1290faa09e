"""Every command of the pages on methods and how-to, page by page and in their order, on a toy. Minutes: `-m slow`.

That they parse is held in every run by tests/test_readme.py; README and tutorial are run in test_readme_commands.py and
test_tutorial.py.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from docpages import README, WRITTEN, Page
from e2e_toy import Cli, opinions, write_rows

from compress.recipe import load_recipe

ELSEWHERE = ("README.md", "docs/tutorial.md", "docs/howto/store.md", "docs/howto/fit.md", "docs/howto/hub.md")
ELSEWHERE += ("docs/howto/embeddings.md", "docs/howto/rerankers.md", "docs/howto/cascade.md", "docs/howto/cluster.md")
ELSEWHERE += ("docs/howto/registry.md", "docs/methods/calibration.md")
"""README and tutorial have tests of their own; so have searches, workers, what deletes runs, what needs a hub and what
needs more rows than a toy has, in the tests of their verbs."""
PAGES = [one for one in WRITTEN if one.name not in ELSEWHERE and one.ours()]
EARLIER = {
    "docs/howto/compare.md": (
        "compress distill --recipe distilbert-task --teacher FOLDER --data DATA",
        "compress quantize FOLDER --mode qat --recipe qat --data DATA --output runs/qat --no-onnx",
    ),
}
"""What a page takes for granted beside models and files: runs in the store."""
NOT_HERE = re.compile(
    r"^compress (ui|convert|drop-tokens .*--max-drop|fit .*--train)\b|https://|s3://|--suite gpu|torch-sparse"
    r"|--max-gap|--group-column|--curve|--teacher-column|--file - "
)
"""What serves until it is ended, is on another machine, or needs a GPU, a pipe, another file or more rows."""

TOY = {
    r"\bFOLDER\b": "mine",
    r"--teacher OTHER\b": "--teacher other",
    r"\bOTHER\b": "twin",
    r"\b(PRETRAINED|TEACHER)\b": "mine",
    r"\bDATA\b": "data",
    r"\b(TEXT|CORPUS)\b": "corpus.txt",
    r"\b(reviews|wikipedia)\.txt\b": "corpus.txt",
    r"\breviews\.csv\b(?! --text-column)": "data",
    r"\bWORDS_WITH_TAGS\b": "tags",
    r"\bPAIRS\b": "pairs",
    "--criterion all --keep 5,4,3 --seeds 3": "--criterion cka,uniform --keep 5,4 --seeds 2 --no-recover",
    "--min-confidence 0.6": "--min-confidence 0.1",
    "--device cuda": "--device cpu",
    r"--(num|keep)-heads 6": r"--\1-heads 1",
    r"--(intermediate-size|keep-ffn) 768": r"--\1 16",
    r"--hidden(-size)? 192": r"--hidden\1 8",
    "--embedding-size 104": "--embedding-size 8",
    "--residual-rank 16": "--residual-rank 2",
    "--embedding-error 0.1": "--embedding-error 0.5",
    r"--(max-mb|mb) 60": r"--\1 0.05",
    "--size 12000": "--size 75",
    "--dimensions 256": "--dimensions 4",
    r"--target-latency 3ms --(non-uniform|uneven)": r"--target-flops 80% --\1",
    "--target-latency 5ms": "--target-latency 1000ms",
    "--max-positions 4096 --window 256": "--max-positions 256 --window 8",
    "--max-length 4096": "--max-length 64",
    "encoder.layers.0": "encoder.layers.1",
}
QUICK = {
    "evaluation.bootstrap": "100",
    "evaluation.latency": "{length: 16, warmup: 0, repeats: 5, seconds: 1}",
    "evaluation.throughput_rows": "16",
    "stages.*.training.steps": "2",
    "stages.*.training.epochs": "null",
    "stages.*.training.batch_rows": "8",
    "stages.*.training.validate_every": "2",
}
SMALL = {"layers": 2, "hidden": 16, "heads": 2, "intermediate_size": 32, "max_positions": 64}
TRAINS = ("finetune", "distill", "prune-layers", "prune-width", "share", "factorize", "sparsify", "pretrain", "run")


def toy(line: str) -> list[str]:
    """The command with toy names and sizes, and two steps of training."""
    for pattern, value in TOY.items():
        line = re.sub(pattern, value, line)
    words = shlex.split(line)[1:]
    changes: dict[str, str] = {}
    if words[0] in TRAINS or "--mode qat" in line:
        changes |= QUICK
    if words[0] in ("pretrain", "run"):
        recipe = load_recipe(words[1] if words[0] == "run" else "teacher")
        for place in (i for i, stage in enumerate(recipe.stages) if stage.kind == "pretrain"):
            changes |= {f"stages.{place}.encoder.{key}": f"{value}" for key, value in SMALL.items()}
        if words[0] == "run" and recipe.corpus is not None:
            changes |= {"corpus.text_column": "null", "corpus.max_length": "24", "data.max_length": "24"}
    return [*words, *(word for key, value in changes.items() for word in ("--set", f"{key}={value}"))]


@pytest.fixture
def desk(own_model: Path, other_model: Path) -> Path:
    """What the pages take for granted: models and files."""
    shutil.copytree("mine", "twin")
    rows = opinions()["train"]
    Path("texts.txt").write_text("".join(f"{row['text']}\n" for row in rows), encoding="utf-8")
    write_rows(Path("rows.jsonl"), rows)
    body = "".join(f'"{row["text"]}",{row["label"]}\n' for row in rows)
    Path("reviews.csv").write_text(f"body,stars\n{body}", encoding="utf-8")
    for split, part in opinions().items():
        words = [row["text"].split() for row in part]
        if split != "unlabelled":
            tagged = [{"tokens": one, "ner_tags": ["THE" if w == "the" else "O" for w in one]} for one in words]
            write_rows(Path("tags", f"{split}.jsonl"), tagged)
            pairs = [{"sentence1": one["text"], "sentence2": "it was fine", "label": one["label"]} for one in part]
            write_rows(Path("pairs", f"{split}.jsonl"), pairs)
    return own_model


@pytest.mark.slow
@pytest.mark.store
@pytest.mark.parametrize("one", [pytest.param(one, id=one.name) for one in PAGES])
def test_the_commands_of_a_page_work(one: Page, desk: Path, compress: Cli) -> None:
    if "recipes copy" not in one.text:
        assert compress("recipes", "copy", "distilbert-task", "mine.yaml").code == 0
    places = ("runs/distilbert-task/student", "runs/prune-layers/student", "runs/distilbert/student", "runs/int8/model")
    for made in places:  # by the command of an earlier page
        if made in one.text:
            shutil.copytree("mine", made)
    for line in EARLIER.get(one.name, ()):
        assert compress(*toy(line)).code == 0, line
    for line in one.ours():
        if NOT_HERE.search(line):
            continue
        done = compress(*toy(line))
        if "--resume" in line:  # nothing was stopped, and that is what it says
            assert "there is no unfinished run" in done.err
            continue
        assert done.code == 0 or ("--check" in line and done.code == 3), f"{one.name}: {line}\n{done.err}"


def test_pages_are_seen() -> None:
    assert len(PAGES) >= 15
    assert README not in PAGES
