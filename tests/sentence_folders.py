"""Folders as sentence-transformers writes them, and the vectors that their files mean, computed from these alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from long_text import check_limits

from compress.contracts import Needs
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import encode_texts
from compress.data.text.tokenizer import Tokenizer
from compress.modelfolder.folder import inspect, load_model
from compress.modelfolder.sentence_pooling import Dense, SentenceParts, part_files
from compress.predict.embedder import Embedder

TEXTS = ["she said the film was good", "anna said the meal was not bad", "dull"]
PROMPTS = {
    "__version__": {"sentence_transformers": "5.1.0"},
    "prompts": {"query": "query: ", "document": "passage: "},
    "default_prompt_name": None,
    "similarity_fn_name": "cosine",
}
LONGEST = 20


def as_sentence_transformers(folder: Path, hidden: int, *, pooling: str = "cls", dense: int | None = None) -> Path:
    """Make a model folder one of sentence-transformers: [CLS] or mean, Dense if any, Normalize, a prompt."""
    generator = torch.Generator().manual_seed(0)
    denses = () if dense is None else (Dense(torch.randn(dense, hidden, generator=generator)),)
    parts = SentenceParts(pooling, denses, normalize=True, max_length=LONGEST)  # pyright: ignore[reportArgumentType]
    files = part_files(parts, hidden)
    settings = json.loads(files["sentence_bert_config.json"]) | {"do_lower_case": True}
    files["sentence_bert_config.json"] = json.dumps(settings).encode()
    config = json.loads(files["1_Pooling/config.json"]) | {"include_prompt": True}
    files["1_Pooling/config.json"] = json.dumps(config).encode()
    files["config_sentence_transformers.json"] = json.dumps(PROMPTS).encode()
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    for name in ("compress.json", "manifest.json", "README.md"):  # another program's folder has none of ours
        (folder / name).unlink(missing_ok=True)
    return folder


def module_files(folder: Path) -> dict[str, bytes]:
    """The files that turn hidden states into a vector, by name."""
    names = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "[0-9]_*/*")
    return {
        file.relative_to(folder).as_posix(): file.read_bytes() for name in names for file in sorted(folder.glob(name))
    }


def vectors(folder: Path, texts: list[str]) -> np.ndarray:
    """(N, width) as modules.json and the files that it names say, read here."""
    loaded = load_model(folder, keep=())
    tokenizer = Tokenizer(dict(loaded.tokenizer_files))
    settings = json.loads((folder / "sentence_bert_config.json").read_text())
    examples = encode_texts(tokenizer, texts, max_length=settings["max_seq_length"])
    rows: list[torch.Tensor] = [torch.empty(0)] * len(texts)
    for batch in evaluation_batches(examples, 4096):
        with torch.no_grad():
            states = loaded.model(batch, Needs()).last_hidden
        for row, part in zip(batch.row_ids.tolist(), states.split(batch.cu_seqlens.diff().tolist()), strict=True):
            rows[row] = part
    for module in json.loads((folder / "modules.json").read_text())[1:]:
        kind, place = module["type"].rpartition(".")[2], folder / module["path"]
        if kind == "Pooling":
            config = json.loads((place / "config.json").read_text())
            assert config["word_embedding_dimension"] == loaded.config.hidden
            (mode,) = [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
            rows = [_pool(row, mode.removeprefix("pooling_mode_").removesuffix("_tokens")) for row in rows]
        elif kind == "Dense":
            from safetensors.torch import load_file

            rows = [row @ load_file(place / "model.safetensors")["linear.weight"].T for row in rows]
        else:
            assert kind == "Normalize"
            rows = [row / row.norm() for row in rows]
    return torch.stack(rows).numpy()


def _pool(states: torch.Tensor, mode: str) -> torch.Tensor:
    """(L, D) → (D,)"""
    if mode == "weightedmean":
        return sum((i * state for i, state in enumerate(states, 1)), torch.zeros(())) / sum(range(1, len(states) + 1))
    return {"cls_token": states[0], "lasttoken": states[-1], "max": states.max(0).values, "mean": states.mean(0)}[mode]


def check_carried(made: Path, source: Path, *, same_model: bool = True) -> None:
    """The folder `made` has the modules and prompts of `source` byte by byte, and gives the same kind of vectors; where
    sentence-transformers can load it and computes in floats as it was made to, the same as there.

    same_model: with the same numbers.
    """
    assert module_files(made) == module_files(source)
    check_limits(made)
    found = vectors(made, TEXTS)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(Embedder(made)(TEXTS), found, atol=1e-5)
    if same_model:
        np.testing.assert_allclose(found, vectors(source, TEXTS), atol=1e-5)
    info = inspect(made)
    if (made / "model.safetensors").is_file() and info.stock_class is not None and info.config.quantization is None:
        theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(str(made), device="cpu")
        np.testing.assert_allclose(theirs.encode(TEXTS), found, atol=1e-5)
