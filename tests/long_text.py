"""How long a text other programs give to the model of a folder, by its files alone and in transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OFFSET = ("longformer", "camembert", "mpnet", "roberta", "xlm-roberta")
"""Families whose positions begin after the padding id."""
WORDS = 2_000


def usable_positions(folder: Path | str) -> int:
    """Tokens that the class of config.json has positions for."""
    config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    taken = config["pad_token_id"] + 1 if config["model_type"] in OFFSET else 0
    return config["max_position_embeddings"] - taken


def limits(folder: Path | str) -> dict[str, int]:
    """File → longest text in tokens that it gives."""
    found = {}
    for name, key in (("tokenizer_config.json", "model_max_length"), ("sentence_bert_config.json", "max_seq_length")):
        if (file := Path(folder, name)).is_file():
            found[name] = json.loads(file.read_text(encoding="utf-8"))[key]
    return found


def check_limits(folder: Path | str) -> None:
    """The files of a folder give no more than the model has positions for."""
    found = limits(folder)
    assert "tokenizer_config.json" in found, folder
    assert 0 < max(found.values()) <= usable_positions(folder), (folder, found, usable_positions(folder))


def check_in_transformers(transformers: Any, folder: Path | str, *, word: str = "film") -> int:
    """transformers truncates a long text to what its model reads; returns the tokens that it read."""
    import torch

    check_limits(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(" ".join([word] * WORDS), truncation=True, return_tensors="pt")
    length = batch["input_ids"].shape[1]
    assert length == limits(folder)["tokenizer_config.json"]
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    assert states.shape[1] == length
    assert states.isfinite().all()
    return length
