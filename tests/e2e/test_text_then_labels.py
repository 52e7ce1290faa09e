"""A student that learns on text first, then on labels: who teaches it, and what it is compared with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_toy import PRETRAINED, QUICK, TEACHER, Cli

pytestmark = pytest.mark.thorough

ON_TEXT = f"""
name: on-text
method: chain
data: {{source: data, max_length: 24}}
corpus: {{source: corpus.txt, max_length: 24}}
{QUICK}
stages:
  - kind: distill
    level: general
    student: {{layers: [0, 2]}}
    objectives: [{{kind: cosine_hidden}}]
    training: {{steps: 2, batch_rows: 8, learning_rate: 1e-3}}
  - {{kind: finetune, training: {{steps: 2, batch_rows: 8, learning_rate: 1e-3}}}}
"""


def test_a_teacher_without_the_task_teaches_on_text_and_is_not_measured(taught: Path, compress: Cli) -> None:
    """The chain went through both stages, and then asked the pretrained encoder for answers."""
    Path("on-text.yaml").write_text(ON_TEXT, encoding="utf-8")
    done = compress("run", "./on-text.yaml", "--teacher", PRETRAINED, "--output", "runs/a", "--json", "--quiet")
    assert done.code == 0, done.err
    assert [(model["name"], model["role"]) for model in json.loads(done.out)["models"]] == [("a", "teacher")]
    both = ("--teacher", TEACHER, "--general-teacher", PRETRAINED)
    done = compress("run", "./on-text.yaml", *both, "--output", "runs/b", "--json", "--quiet")
    assert done.code == 0, done.err
    roles = [model["role"] for model in json.loads(done.out)["models"]]
    assert roles == ["teacher", "student"], "compared with the fine-tuned teacher"


def test_a_smaller_encoder_from_text_alone(taught: Path, compress: Cli) -> None:
    words = ("distill", "--recipe", "text-distil", "--corpus", "corpus.txt", "--steps", "3", "--layers", "0,2")
    words = (*words, "--set", "corpus.max_length=24")
    done = compress(*words, "--teacher", PRETRAINED, "--output", "runs/a")
    assert done.code == 0, done.err
    assert "0-distill: masked-LM loss " in done.err, "of the head that it takes over"
    assert "use it   compress finetune --model runs/a/student --data DATA" in done.out
    done = compress("finetune", "--model", "runs/a/student", "--data", "data", "--steps", "2", "--output", "runs/b")
    assert done.code == 0, done.err
    done = compress(*words, "--teacher", TEACHER, "--output", "runs/c")
    needs = "recipe text-distil first trains on a corpus, which needs the teacher's pretrained encoder"
    assert done.line.startswith(f"error: --teacher {TEACHER}: {needs}")
