"""`compress extend` through the real command line: a folder in, a folder out, and the verbs that read it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from compress.cli.main import main
from compress.contracts import Needs
from compress.data.batches.examples import collate
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.modelfolder.folder import FolderMeta, fingerprint, inspect, load_model, save_model
from compress.predict.predictor import Predictor

LONG = "the film was not very good and i think " * 20


@pytest.fixture
def short(tmp_path: Path, tiny_config: EncoderConfig, toy_tokenizer_files: dict[str, bytes]) -> Path:
    """A tiny BERT of 32 positions with a task head."""
    model = Model(tiny_config, {"task": HeadConfig("classification", labels=2)}).initialize(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.2)
    meta = FolderMeta(task="classification", label_names=("bad", "good"), max_length=32)
    return save_model(tmp_path / "short", model, tokenizer_files=toy_tokenizer_files, meta=meta)


def test_a_windowed_model_reads_more_and_says_what_it_is(
    short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "long"
    args = ["extend", str(short), "--max-positions", "200", "--window", "16", "--output", str(target), "--json"]
    assert main(args) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["max_positions"] == {"before": 32, "after": 200}
    assert told["windows"] == [16, 16]
    assert told["new_parameters"] == (200 - 32) * 32
    info = inspect(target)
    assert info.stock_class is None
    assert (info.config.max_positions, info.config.windows, info.config.global_tokens) == (200, (16, 16), 1)
    assert info.meta.label_names == ("bad", "good")
    assert [(p.role, p.name, p.fingerprint) for p in info.meta.lineage] == [("base", "short", fingerprint(short))]
    card = (target / "README.md").read_text()
    assert "positions extended from 32 to 200: the learned embeddings are repeated" in card
    assert "it has sliding-window attention" in card
    assert json.loads((target / "tokenizer_config.json").read_text())["model_max_length"] == 200
    predictor = Predictor(target)
    examples = predictor.task.encode_texts(predictor.tokenizer, [LONG], max_length=200)
    assert examples.lengths.tolist() == [182]
    expected = load_model(target).model(collate(examples, np.array([0])), Needs(logits=True)).logits
    assert expected is not None
    torch.testing.assert_close(torch.from_numpy(predictor.logits(examples)), expected, rtol=1e-4, atol=1e-4)


def test_without_a_window_it_stays_a_stock_folder(
    short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "long"
    assert main(["extend", str(short), "--max-positions", "64", "--output", str(target)]) == 0
    out = capsys.readouterr().out
    assert "it loads with BertForSequenceClassification" in out
    assert inspect(target).config.max_positions == 64
    with torch.no_grad():
        a, b = load_model(short).model, load_model(target).model
    assert torch.equal(b.encoder.embeddings.position.weight[32:], a.encoder.embeddings.position.weight)


def test_a_dry_run_writes_nothing(short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["extend", str(short), "--max-positions", "64", "--window", "4", "--dry-run"]
    assert main([*args, "--output", str(tmp_path / "no")]) == 0
    assert "would extend" in capsys.readouterr().out
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--max-positions", "16"], "16 positions are fewer than the model's 32"),
        (["--max-positions", "64"], "an output folder is required; add --output FOLDER"),
        (["--max-positions", "64", "--window", "0"], "0 is not in the range"),
        (["--max-positions", "64", "--global-tokens", "1"], "add --window"),
        (["--window", "8"], "missing option '--max-positions'"),
    ],
)
def test_bad_requests(args: list[str], message: str, short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extend", str(short), *args]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_an_existing_folder_is_not_replaced(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extend", str(short), "--max-positions", "64", "--output", str(short)]) != 0
    assert "exists" in capsys.readouterr().err
