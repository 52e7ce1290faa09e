"""Students of other widths and of other checkpoints, through the real command line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from e2e_toy import DISTILL, PRETRAINED, TEACHER, Cli
from example_counts import thorough_but

from compress.encoder.modules.model import Model
from compress.modelfolder.folder import inspect, load_model, save_model
from compress.predict.predictor import Predictor

NARROW = (*DISTILL, "--layers", "0,2", "--hidden-size", "16")
TEXTS = ["she said the film was good", "he said the plot was not dull"]


def told(folder: Path) -> tuple[int, int, int]:
    shape = inspect(folder).config.layers[0]
    return shape.heads, shape.head_width, shape.feed_forward


@pytest.mark.parametrize("start", thorough_but(["selection"], ["teacher", "selection"]))
def test_a_narrower_student_with_its_control(start: str, taught: Path, compress: Cli) -> None:
    teacher = inspect(taught / TEACHER).config
    done = compress(*NARROW, "--init", start, "--set", "stages.0.control=true", "--output", "runs/s")
    assert done.code == 0, done.err
    method = "svd" if start == "teacher" else start
    assert f"the student is narrowed by {method}: 2 layers x {teacher.hidden} (" in done.err
    assert "gain from the teacher" in done.out or "measurable" in done.out
    for name in ("student", "control"):
        folder = taught / "runs/s" / name
        info = inspect(folder)
        assert (info.config.depth, info.config.hidden) == (2, 16)
        assert told(folder)[2] == teacher.layers[0].feed_forward * 16 // teacher.hidden
        assert info.stock_class == "BertForSequenceClassification"
    check_alike(taught / "runs/s/student")


def check_alike(folder: Path) -> None:
    """Here and in transformers the same logits."""
    hf = pytest.importorskip("transformers")
    predictor = Predictor(folder)
    examples = predictor.task.encode_texts(predictor.tokenizer, TEXTS, max_length=24)
    ours = torch.as_tensor(predictor.logits(examples))
    model = hf.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        theirs = model(**tokenizer(TEXTS, return_tensors="pt", padding=True)).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_uneven_heads_are_a_folder_of_our_own_and_reload_to_the_bit(taught: Path, compress: Cli) -> None:
    done = compress(
        *DISTILL, "--layers", "0,2", "--num-heads", "2,1", "--intermediate-size", "40,24", "--output", "runs/s"
    )
    assert done.code == 0, done.err
    folder = taught / "runs/s/student"
    info = inspect(folder)
    assert [shape.heads for shape in info.config.layers] == [2, 1]
    assert [shape.feed_forward for shape in info.config.layers] == [40, 24]
    assert info.stock_class is None
    assert "transformers" in (folder / "README.md").read_text(encoding="utf-8")
    first, again = (load_model(folder).model.state_dict() for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.thorough
def test_random_weights_may_be_wider_and_are_told(taught: Path, compress: Cli) -> None:
    wide = 2 * inspect(taught / TEACHER).config.hidden
    done = compress(*DISTILL, "--layers", "0", "--hidden-size", str(wide), "--init", "random", "--output", "runs/s")
    assert done.code == 0, done.err
    assert "the student is randomly initialized, as the recipe requests" in done.err
    assert inspect(taught / "runs/s/student").config.hidden == wide


@pytest.mark.thorough
def test_a_student_from_another_checkpoint(taught: Path, compress: Cli) -> None:
    done = compress(*DISTILL, "--student", PRETRAINED, "--layers", "uniform:2", "--output", "runs/s")
    assert done.code == 0, done.err
    assert "layer map (student layers from checkpoint, which has 0..3): 0 from 0, 1 from 3" in done.err
    assert "the student's task head is randomly initialized: " in done.err
    folder = taught / "runs/s/student"
    assert inspect(folder).config.depth == 2
    assert [p.role for p in inspect(folder).meta.lineage] == ["start", "teacher"]
    model = load_model(folder).model
    start = load_model(taught / PRETRAINED).model
    assert not torch.equal(model.encoder.pooler.dense.weight, start.encoder.embeddings.word.weight)  # pyright: ignore


@pytest.mark.thorough
def test_a_student_that_answers_the_labels_already_keeps_its_head(taught: Path, compress: Cli) -> None:
    first = compress(*DISTILL, "--output", "runs/first")
    assert first.code == 0, first.err
    done = compress(*DISTILL, "--student", "runs/first/student", "--output", "runs/s")
    assert done.code == 0, done.err
    assert "randomly initialized" not in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--layers", "0,9"), "--layers 0,9: student.layers: layer 9 does not exist: allowed: 0..3"),
        (("--layers", "0,x"), "--layers 0,x: not a list of whole numbers; separate them with commas, e.g. 0,2,4"),
        (("--layers", "frist:2"), "did you mean 'first'?"),
        (("--layers", "first:9"), "--layers first:9: student.count: 9 layers cannot be taken from a teacher with 4"),
        (("--hidden-size", "33"), "student.hidden: hidden 33 is not divisible by"),
        (("--hidden-size", "haf"), "--hidden-size haf: not a hidden size; give half, or a number such as 192"),
        (("--hidden-size", "0"), "--hidden-size 0: stages.0.student.hidden: found 0, allowed: a whole number from 1"),
        (
            ("--hidden-size", "32", "--num-heads", "5"),
            "student.heads: hidden 32 is not divisible by 5 heads; use hidden 30 or 35",
        ),
        (("--num-heads", "0"), "allowed: a whole number from 1, or a list of them"),
        (("--num-heads", "2,2,2"), "student.heads: 3 numbers for 2 layers"),
        (("--hidden-size", "4096"), "student.hidden: hidden would be 4096, but the weights are copied from one of"),
        (("--student", "nowhere"), "model folder 'nowhere' not found"),
        (("--init", "svg"), "'svg' is not one of 'teacher', 'selection', 'svd', 'projection', 'random'"),
    ],
)
def test_a_student_that_cannot_be_is_refused(words: tuple[str, ...], message: str, taught: Path, compress: Cli) -> None:
    done = compress(*DISTILL, *words, "--output", "runs/s")
    assert (done.code, done.out) == (2, ""), done.err
    assert message in done.err, done.err
    assert not (taught / "runs/s").exists()


def test_a_student_with_fewer_positions_than_the_length_is_found_before_any_work(taught: Path, compress: Cli) -> None:
    parent = load_model(taught / PRETRAINED)
    made = Model(dataclasses.replace(parent.config, max_positions=16), parent.heads).initialize(1)
    save_model(taught / "short", made, tokenizer_files=parent.tokenizer_files, meta=parent.meta)
    done = compress(*DISTILL, "--student", "short", "--max-length", "17", "--dry-run")
    assert (done.code, done.out) == (2, ""), done.err
    assert "data.max_length: a maximum length of 17 tokens is above the model's 16 positions" in done.err
