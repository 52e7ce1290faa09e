"""`compress prune-vocab` through the real command line, at toy scale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_toy import QUICK, Cli

from compress.data.text.tokenizer import Tokenizer
from compress.modelfolder.folder import inspect, load_model
from compress.storage import atomic

RECIPE = f"""
extends: prune-vocab
description: a toy's vocabulary
data: {{max_length: 24}}
{QUICK}
"""
COMMAND = ("prune-vocab", "mine", "--recipe", "./cut.yaml", "--data", "data", "--threads", "1")


@pytest.fixture
def prune(own_model: Path, compress: Cli) -> Cli:
    """`compress prune-vocab mine ...` on the toy data."""
    Path("cut.yaml").write_text(RECIPE, encoding="utf-8")
    return lambda *args: compress(*COMMAND, *args)


def test_cut_measure_reload_and_go_on(prune: Cli, compress: Cli) -> None:
    done = prune("--coverage", "90", "--characters", "used", "--output", "runs/v", "--json")
    assert done.code == 0, done.err
    models = json.loads(done.out)["models"]
    before, after = (m["values"] for m in models)
    assert after["size/disk_mb"] < before["size/disk_mb"]
    assert after["size/params_no_embedding_m"] < before["size/params_no_embedding_m"], "the masked-LM head's bias"
    assert {"quality/accuracy", "vs_teacher/agreement_pct"} <= after.keys()
    # On a machine too busy to tell, a run says so in the place of a latency.
    assert ("speed/latency_p50_ms" in after) == (models[1]["context"]["contaminated"] == "no")
    folder = Path("runs/v/model")
    assert not atomic.verify_folder(folder)
    made, old = inspect(folder), inspect("mine")
    assert made.config.vocabulary == made.vocabulary_tokens < old.config.vocabulary
    assert (made.stock_class, set(made.heads)) == (old.stock_class, {"mlm", "task"})
    assert (
        f"vocabulary cut from {old.config.vocabulary} to {made.config.vocabulary} rows by coverage 90 %"
        in (made.meta.notes[-1])
    )
    assert "[PAD]" in Tokenizer.from_files(load_model(folder).tokenizer_files).vocabulary
    told = json.loads((Path("runs/v/stages/0-prune_vocab") / "vocabulary.json").read_text(encoding="utf-8"))
    names = [row[0] for row in told["data"]]
    assert names[0] == "rows of the word table"
    assert {"texts tokenized differently", "unknown tokens", "tokens per text, mean"} <= set(names)
    assert names[-1] == "accuracy on validation"

    shown = compress("predict", folder, "the film was not good")
    assert shown.code == 0, shown.err
    again = compress("prune-vocab", folder, *COMMAND[2:], "--size", "62", "--characters", "used", "--output", "runs/w")
    assert again.code == 0, again.err
    assert "effect of the smaller vocabulary" in again.out + again.err
    assert inspect("runs/w/model").config.vocabulary == 62


@pytest.mark.thorough
def test_a_pretrained_model_and_text_in_another_language(prune: Cli, compress: Cli) -> None:
    flags = ("--size", "64", "--characters", "used", "--output", "runs/p")
    own = ("prune-vocab", "mine", "--recipe", "./cut.yaml", "--threads", "1")
    done = compress(*own, "--pretrained", "--corpus", "corpus.txt", *flags)
    assert done.code == 0, done.err
    assert "mlm" in inspect("runs/p/model").heads
    assert "rows of the word table" in done.out + done.err
    Path("other.txt").write_text("wir dachten der streifen sei schlimm\n\nhör mal 早上好 nein\n" * 20, encoding="utf-8")
    done = prune("--corpus", "other.txt", "--characters", "used", "--output", "runs/x")
    assert done.code == 0, done.err
    assert "warning: only " in done.err
    assert "of the held-out text's tokens are kept" in done.err
    assert "of the counted text's tokens are unknown to the tokenizer: the text is probably in a language" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--coverage", "0"), "--coverage 0: stages.0.coverage: found 0"),
        (("--coverage", "101"), "--coverage 101: stages.0.coverage: found 101"),
        (("--min-count", "0"), "--min-count 0: stages.0.min_count: found 0"),
        (("--size", "9"), "--size 9: a vocabulary of 9 tokens: the minimum is "),
        (("--size", "4000"), "--size 4000: a vocabulary of 4,000 tokens: the model has "),
        (("--coverage", "90", "--size", "40"), "--coverage and --size together: each sets how much is kept; give one"),
        (("--pretrained",), "--pretrained: a pretrained model has no labelled data; add --corpus TEXT"),
        (("--corpus", "empty.txt"), "empty.txt: the file has no text"),
        (
            ("--corpus", "snow.txt"),
            "the text contains no token of the tokenizer's vocabulary; give text in the model",
        ),
        (("--recipe", "distilbert-task"), "--recipe: recipe distilbert-task has no prune_vocab stage"),
        (("--set", "stages.0.size=40"), "set exactly one of coverage, min_count, size; found coverage and size"),
    ],
)
def test_bad_input(prune: Cli, words: tuple[str, ...], message: str) -> None:
    Path("empty.txt").write_text("\n\n", encoding="utf-8")
    Path("snow.txt").write_text("☃ ☃\n\n☃\n", encoding="utf-8")
    done = prune(*words, "--output", "runs/bad")
    assert (done.code, done.out) == (2, ""), done.err
    assert message in done.line
    assert not Path("runs/bad").exists()


def test_a_tokenizer_that_does_not_fit_the_table(prune: Cli) -> None:
    path = Path("mine/tokenizer.json")
    values = json.loads(path.read_text(encoding="utf-8"))
    values["model"]["vocab"] |= {f"more{i}": 1000 + i for i in range(3)}
    path.write_text(json.dumps(values), encoding="utf-8")
    done = prune("--coverage", "90", "--output", "runs/bad")
    assert done.code == 2
    assert "the tokenizer's highest id is 1002" in done.line
    assert "use the tokenizer that belongs to this model" in done.line
