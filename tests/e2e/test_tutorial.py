"""docs/tutorial.md, every command and every line of Python as it stands there, with fewer steps on a toy."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path

import pytest
from docpages import page
from e2e_toy import Cli, opinions

from compress.data import embedded

TUTORIAL = page("docs/tutorial.md")
QUICK = {
    "data.max_length": 24,
    "evaluation.bootstrap": 100,
    "evaluation.latency": "{length: 16, warmup: 0, repeats: 5, seconds: 1}",
    "evaluation.throughput_rows": 16,
}
STEPS = {"training.steps": 2, "training.epochs": "null", "training.batch_rows": 8}
SMALL = {"layers": 6, "hidden": 16, "heads": 2, "intermediate_size": 32, "max_positions": 64}
TOY: dict[str, dict[str, object]] = {
    "run": {
        **QUICK,
        "corpus.source": "corpus.txt",
        "corpus.max_length": 24,
        "stages.0.vocabulary_size": 150,
        **{f"stages.1.encoder.{key}": value for key, value in SMALL.items()},
        **{f"stages.{stage}.{key}": value for stage in (1, 2) for key, value in STEPS.items()},
    },
    "distill": {**QUICK, **{f"stages.0.{key}": value for key, value in STEPS.items()}},
    "quantize": {**QUICK, "stages.0.rows": 16, "stages.0.scan_rows": 8},
}
"""By command: what makes it quick. Said after the command's own values, so that these count."""
WORDS = {"evaluate": ["--bootstrap", "100", "--max-length", "24"], "benchmark": ["--repeats", "5"]}


def quick(words: list[str]) -> list[str]:
    changes = TOY.get(words[0], {})
    return [
        *words,
        *WORDS.get(words[0], []),
        *(w for key, value in changes.items() for w in ("--set", f"{key}={value}")),
    ]


def test_it_works_from_top_to_bottom(work: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(itertools.chain.from_iterable(part for split, part in opinions().items() if split != "unlabelled"))
    monkeypatch.setattr(embedded, "generate", lambda name: {"train": rows} if name == "opinions" else {})
    (code,) = TUTORIAL.blocks("python")
    exec(compile(code, TUTORIAL.name, "exec"), {})
    assert Path("reviews.csv").read_text(encoding="utf-8").startswith("text,label\n")
    Path("reviews.txt").write_text("the film was great\n", encoding="utf-8")
    commands = TUTORIAL.ours()
    assert len(commands) >= 9
    for line in commands:
        done = compress(*quick(shlex.split(line)[1:]))
        assert done.code == 0 or ("--check" in line and done.code == 3), f"{line}\n{done.err}"
        assert done.out, line
    assert Path("runs/student/student/model.safetensors").is_file()
    assert Path("runs/int8/model/model.onnx").is_file()
    assert "runs/student/student" in TUTORIAL.plain
