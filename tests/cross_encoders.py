"""Folders as sentence-transformers writes CrossEncoders, and the scores that it computes with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from compress.encoder.config.encoder import HeadConfig
from compress.modelfolder.folder import inspect, load_model, save_model

CLASSES = {"sigmoid": "torch.nn.modules.activation.Sigmoid", "identity": "torch.nn.modules.linear.Identity"}
NEW_FILES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    ],
    "sentence_bert_config.json": {
        "transformer_task": "sequence-classification",
        "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
        "module_output_name": "scores",
    },
}
KEYS = ("sentence_transformers", "sbert_ce_default_activation_function", "problem_type")


def as_cross_encoder(
    folder: Path, *, layout: str = "old", activation: str = "sigmoid", longest: int = 40, seed: int = 3
) -> Path:
    """Make a model folder with a tokenizer a CrossEncoder with one label. layout: "old", before version 6, or "new"."""
    if inspect(folder).heads.get("task") != HeadConfig("classification", labels=1, problem="ranking"):
        head = HeadConfig("classification", labels=1, problem="ranking")
        loaded = load_model(folder, keep=(), new_heads={"task": head}, seed=seed)
        with torch.no_grad():
            for linear in (part for part in loaded.model.heads["task"].modules() if isinstance(part, torch.nn.Linear)):
                linear.weight.mul_(20)  # scores that differ
        save_model(folder, loaded.model, tokenizer_files=loaded.tokenizer_files, replace=True)
    for name in ("compress.json", "manifest.json", "README.md"):  # another program's folder has none of ours
        (folder / name).unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    values = {name: value for name, value in config.items() if name not in KEYS}
    if layout == "old":
        values["sentence_transformers"] = {"activation_fn": CLASSES[activation], "version": "5.1.0"}
    else:
        said = {"model_type": "CrossEncoder", "activation_fn": CLASSES[activation], "prompts": {}}
        files = NEW_FILES | {"config_sentence_transformers.json": {**said, "default_prompt_name": None}}
        for name, held in files.items():
            (folder / name).write_text(json.dumps(held))
    (folder / "config.json").write_text(json.dumps(values))
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**told, "model_max_length": longest}))
    return folder


def loaded_scores(folder: Path, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    """(N,) scores by sentence-transformers."""
    theirs = pytest.importorskip("sentence_transformers")
    return np.asarray(theirs.CrossEncoder(str(folder), device="cpu", local_files_only=True).predict(list(pairs)))
