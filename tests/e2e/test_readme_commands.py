"""The README's commands for a model and data of one's own, as they stand there, on a toy model and toy data."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from e2e_toy import ROOT, Cli

from compress.encoder.config import EncoderConfig, HeadConfig
from compress.encoder.model import Model
from compress.modelfolder.folder import FolderMeta, save_model

BLOCK = next(
    text
    for text in re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    if "compress evaluate" in text
)
COMMANDS = [line.partition(" #")[0].strip() for line in BLOCK.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.fixture
def model(work: Path, toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str]) -> Path:
    """Six layers, as the recipe expects, for the toy data's labels."""
    config = EncoderConfig.uniform(
        vocabulary=len(toy_vocabulary), hidden=16, layers=6, heads=2, feed_forward=32, max_positions=128
    )
    made = Model(config, {"task": HeadConfig("classification", labels=2)}).initialize(3)
    meta = FolderMeta(task="classification", label_names=("negative", "positive"))
    return save_model(work / "mine", made, tokenizer_files=toy_tokenizer_files, meta=meta)


def test_they_work_one_after_the_other(model: Path, compress: Cli) -> None:
    assert len(COMMANDS) >= 4
    for line in COMMANDS:
        words = shlex.split(line.replace("FOLDER", "mine").replace("DATA", "data"))
        assert words[0] == "compress"
        done = compress(*words[1:])
        assert done.code == 0, f"{line}\n{done.err}"
        assert done.out
