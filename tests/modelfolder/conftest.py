"""Stock models of every class, random and tiny, as transformers itself saves them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

VOCABULARY, POSITIONS = 61, 24

BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.3,  # large, so that a wrong wiring cannot hide in small numbers
}
DISTILBERT = {
    "vocab_size": VOCABULARY,
    "dim": 32,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.3,
}


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    """What a power cut leaves is tested with the writer; here a flush is only slow."""
    patch = pytest.MonkeyPatch()
    patch.setattr(os, "fsync", lambda descriptor: None)
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products do not gain from threads, and on a busy machine they wait for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def hf() -> ModuleType:
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


@pytest.fixture
def stock(hf: ModuleType, tmp_path: Path) -> Callable[..., tuple[Any, Path]]:
    """stock("BertForMaskedLM", **config changes) → (the transformers model, the folder it was saved to)."""

    def make(name: str, **changes: Any) -> tuple[Any, Path]:
        bert = name.startswith("Bert")
        config = (hf.BertConfig if bert else hf.DistilBertConfig)(**{**(BERT if bert else DISTILBERT), **changes})
        torch.manual_seed(5)
        model = getattr(hf, name)(config).eval()
        with torch.no_grad():  # biases and norms start at 0 and 1, where a swap would not show
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        folder = tmp_path / name
        model.save_pretrained(folder)
        return model, folder

    return make


@pytest.fixture(scope="session")
def padded() -> dict[str, torch.Tensor]:
    """Four sequences of different lengths, right-padded, some with a second segment."""
    lengths = torch.tensor([24, 1, 7, 16])
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(1, VOCABULARY, (4, 24), generator=generator)
    mask = (torch.arange(24) < lengths[:, None]).long()
    segments = (torch.arange(24) >= lengths[:, None] // 2).long() * mask
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": segments}
