"""Typing mistakes in the text that a student learns from: one text for student, teacher and control."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e_toy import DISTILL, PRETRAINED, QUICK, Cli, Server, sha

from compress.stages.distill import general, live_teacher
from compress.training.module import StageModule

pytestmark = pytest.mark.thorough

NOISE = ("--set", "stages.0.noise={rate: 0.3}")
QUIETLY = ("--set", "stages.0.checks=off")  # their probes read too, and are not what is looked at

CORPUS = f"""
extends: replay-distilbert
method: distill
description: the corpus step on a toy
data: {{max_length: 24}}
corpus: {{source: corpus.txt, max_length: 24}}
{QUICK}
stages:
  - kind: distill
    level: general
    student: {{layers: [0, 2]}}
    objectives: [{{kind: soft_targets, on: vocabulary}}, {{kind: hidden_mse}}]
    training: {{steps: 6, batch_rows: 8, learning_rate: 1e-3, checkpoint_every: 2, validate_every: 3}}
"""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[torch.Tensor]]:
    """What teacher and students read while training, in order."""
    found: dict[str, list[torch.Tensor]] = {"teacher": [], "student": []}

    def prepared(model: Any, precision: str, make: Callable[..., Any] = general.prepare_teacher) -> Any:
        teacher = make(model, precision)

        def told(batch: Any, needs: Any) -> Any:
            found["teacher"].append(batch.input_ids)
            return teacher(batch, needs)

        return told

    def forward(module: StageModule, batch: Any, run: Callable[..., Any] = StageModule.forward) -> Any:
        found["student"].append(batch.input_ids)
        return run(module, batch)

    monkeypatch.setattr(general, "prepare_teacher", prepared)
    monkeypatch.setattr(live_teacher, "prepare", prepared)
    monkeypatch.setattr(StageModule, "forward", forward)
    return found


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(torch.equal(a, b) for a, b in zip(ours, theirs))


def test_student_teacher_and_control_read_the_same_mistakes(taught: Path, compress: Cli, read: Any) -> None:
    words = (*DISTILL, *QUIETLY, "--set", "stages.0.control=true", "--output")
    assert compress(*words, "runs/clean").code == 0
    clean = read["student"][:6]
    for part in read.values():
        part.clear()
    done = compress(*words, "runs/noisy", *NOISE)
    assert done.code == 0, done.err
    student, control = read["student"][:6], read["student"][6:]
    assert same(student, read["teacher"])
    assert same(student, control)
    assert not same(student, clean)


def test_rows_without_labels_are_mistyped_too(taught: Path, compress: Cli, read: Any) -> None:
    changes = ("--set", "stages.0.use_unlabelled=true", "--set", "stages.0.training.batch_rows=88")
    words = (*DISTILL, *QUIETLY, *changes, "--output")
    assert compress(*words, "runs/noisy", *NOISE).code == 0
    first, second = read["student"][:2]
    assert not torch.equal(first, second), "other mistakes in another epoch"
    assert same(read["student"], read["teacher"])


def test_layers_are_compared_on_mistyped_running_text(taught: Path, compress: Cli, read: Any) -> None:
    Path("corpus.yaml").write_text(CORPUS, encoding="utf-8")
    words = ("distill", "--recipe", "./corpus.yaml", "--teacher", "runs/teacher/model", "--general-teacher", PRETRAINED)
    words += QUIETLY
    done = compress(*words, "--output", "runs/noisy", *NOISE)
    assert done.code == 0, done.err
    assert same(read["student"], read["teacher"])
    noisy = list(read["student"])
    read["student"].clear()
    assert compress(*words, "--output", "runs/clean").code == 0
    assert not same(noisy, read["student"])

    done = compress(*words, "--output", "runs/x", *NOISE, "--set", "stages.0.masking={strategy: static}")
    assert (done.code, "typo noise changes the tokens every epoch" in done.line) == (2, True)


def test_a_stopped_run_goes_on_with_the_same_mistakes(taught: Path, server: Server) -> None:
    words = (*DISTILL, *NOISE, "--quiet", "--output")
    assert server.run(taught, *words, "runs/whole").code == 0
    assert server.run(taught, *words, "runs/cut", signal_at=(4, "SIGTERM")).code == 75
    assert server.run(taught, *words, "runs/cut", "--resume").code == 0
    assert sha(Path("runs/cut/student/model.safetensors")) == sha(Path("runs/whole/student/model.safetensors"))
