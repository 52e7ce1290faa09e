"""`compress fit --train full` for every kind of task: plans are made, trained, rounded, judged, and one is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_toy import Cli

from compress.data.reading.sources import open_table
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.fit.cost import block_table as blocktable
from compress.modelfolder.folder import FolderMeta, save_model

pytestmark = pytest.mark.thorough

# data set → (kind, head, label names, main metric)
KINDS = {
    "opinions-pairs": ("pair-classification", HeadConfig("classification", labels=3), "accuracy"),
    "opinions-tags": ("token-classification", HeadConfig("token_classification", labels=5), "entity_f1"),
    "opinions-similarity": (
        "regression", HeadConfig("classification", labels=1, problem="regression"), "spearman",
    ),
    "opinions-qa": ("question-answering", HeadConfig("question_answering", labels=2), "f1"),
}  # fmt: skip
QUICK = ("--threads", "1", "--length", "16", "--limit", "40", "--runtime", "onnxruntime", "--plans", "1")


@pytest.mark.slow
@pytest.mark.parametrize("data", KINDS)
def test_a_kind(
    data: str, work: Path, compress: Cli, toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    kind, head, metric = KINDS[data]
    config = EncoderConfig.uniform(
        vocabulary=len(toy_vocabulary), hidden=16, layers=2, heads=2, feed_forward=32, max_positions=64
    )
    made = Model(config, {"task": head}).initialize(3)
    meta = FolderMeta(task=kind, label_names=tuple(open_table(data).label_names))
    save_model(work / "mine", made, tokenizer_files=toy_tokenizer_files, meta=meta)
    monkeypatch.setattr(blocktable, "_least", lambda calls, *_: ([1.0 + 0.1 * i for i in range(len(calls))], False))
    asked = ("--max-mb", "0.025", "--uncertified", "--train", "full", "--steps", "2", "--output", "runs/fit", "--json")
    done = compress("fit", "mine", "--data", data, *QUICK, *asked)
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["certificate"]["quality"]["metric"] == metric
    names_made = [row["name"] for row in told["plans"]]
    assert any("recovery steps" in name for name in names_made), done.err
    assert any("of them quantized" in name for name in names_made), done.err
