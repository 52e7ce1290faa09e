"""A student of another checkpoint, with another tokenizer than its teacher, through the real command line."""

from __future__ import annotations

import json
from pathlib import Path

import e2e_toy as toy
import foreign_tokenizers
import pytest
from e2e_toy import DISTILL, TEACHER, Cli

from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.modules.model import Model
from compress.modelfolder.folder import inspect, load_model, save_model

pytestmark = pytest.mark.thorough

TOKENS = (
    "stages.0.objectives=[{kind: soft_targets}, {kind: hidden_mse}, {kind: minilmv2}, {kind: cosine_hidden}, "
    "{kind: pkd}, {kind: contrastive}, {kind: similarity}, {kind: cka}]"
)

LATER = """
  - kind: distill
    level: task_specific
    objectives: [{kind: soft_targets}, {kind: hidden_mse}]
    training: {steps: 3, batch_rows: 8, learning_rate: 1e-3}
    control: false
"""


@pytest.fixture
def foreign(taught: Path) -> Path:
    """The folder `foreign`: an encoder of three layers over bytes, without a task head."""
    texts = [row["text"] for rows in toy.opinions().values() for row in rows]
    files = foreign_tokenizers.of_family("modernbert", texts)
    size = Tokenizer(files).vocabulary_size
    config = EncoderConfig.uniform(vocabulary=size, hidden=16, layers=3, heads=2, feed_forward=32, max_positions=64)
    save_model(taught / "foreign", Model(config, {}).initialize(2), tokenizer_files=files)
    return taught


def student(*more: str) -> tuple[str, ...]:
    return (*DISTILL, "--student", "foreign", "--layers", "0,2", *more, "--output", "runs/s")


def test_answers_alone_then_measured_against_the_teacher(foreign: Path, compress: Cli) -> None:
    done = compress(*student("--set", "stages.0.control=true", "--set", "stages.0.use_unlabelled=true"))
    assert done.code == 0, done.err
    assert "teacher and student have different tokenizers: " in done.err
    assert "tokens on the training texts, compared by task logits only" in done.err
    folder = foreign / "runs/s/student"
    assert inspect(folder).config.depth == 2
    assert [p.role for p in inspect(folder).meta.lineage] == ["start", "teacher"]
    mine, theirs = (load_model(f).tokenizer_files["tokenizer.json"] for f in (folder, foreign / "foreign"))
    assert mine == theirs
    assert "agreement" in done.out
    again = compress("evaluate", folder, "--against", TEACHER, "--data", "data", "--json")
    assert again.code == 0, again.err
    assert "agreement" in json.dumps(json.loads(again.out))
    asked = compress("predict", folder, "she said the film was good")
    assert asked.code == 0, asked.err


def test_layers_on_common_spans_with_copies_of_the_texts(foreign: Path, compress: Cli) -> None:
    copies = "stages.0.augmentation={method: neighbours, copies: 1}"
    done = compress(*student("--set", TOKENS, "--set", copies, "--set", "stages.0.layer_map=[0, 3]"))
    assert done.code == 0, done.err
    line = next(line for line in done.err.splitlines() if "different tokenizers" in line)
    assert "common spans" in line
    spans = int(line.split("compared on ")[1].split()[0].replace(",", ""))
    theirs, ours = _counts(line)
    assert 0 < spans <= min(theirs, ours)
    assert "4 projections of hidden states initialized by least squares" in done.err


def _counts(line: str) -> tuple[int, int]:
    theirs, ours = line.split("tokenizers: ")[1].split(" on the ")[0].split(" and ")
    theirs, ours = theirs.split()[0], ours.split()[0]
    return int(theirs.replace(",", "")), int(ours.replace(",", ""))


def test_a_later_stage_goes_on_with_the_student(foreign: Path, compress: Cli) -> None:
    recipe = toy.TASK.replace("{layers: [0, 2]}", "{model: foreign, layers: [0, 2]}") + LATER
    (foreign / "two.yaml").write_text(recipe, encoding="utf-8")
    run = ("distill", "--recipe", "./two.yaml", "--teacher", TEACHER, "--data", "data")
    done = compress(*run, "--output", "runs/s")
    assert done.code == 0, done.err
    assert "compared by task logits only" in done.err
    assert "common spans" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--set", "stages.0.objectives=[{kind: attention_maps}]"),
            "objective attention_maps: cannot be compared across tokenizers: the tokenizer of foreign is not that of "
            "the teacher of this stage; use minilmv2, whose relations are compared on common spans",
        ),
        (("--set", "stages.0.objectives=[{kind: embeddings}]"), "objective embeddings: cannot be compared across"),
        (("--set", "stages.0.noise={rate: 0.1}"), "noise: noise needs one tokenizer for both: "),
        (("--teacher-cache", "kept"), "cache: cache needs one tokenizer for both: "),
        (
            ("--set", "data.long_text=chunk"),
            "data.long_text: the two tokenizers split a text into different chunks; use cut",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_with_advice(
    words: tuple[str, ...], message: str, foreign: Path, compress: Cli
) -> None:
    done = compress(*student(*words))
    assert (done.code, done.out) == (2, ""), done.err
    assert message in done.err, done.err
    assert not (foreign / "runs/s").exists()


def test_whether_it_can_learn_is_checked_too(foreign: Path, compress: Cli) -> None:
    done = compress(*DISTILL, "--student", "foreign", "--layers", "0,2", "--check")
    assert "teacher and student have different tokenizers: " in done.err
    assert "the student" in done.out + done.err
    assert done.code in (0, 3), done.err
