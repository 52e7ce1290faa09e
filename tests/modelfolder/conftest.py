"""Stock models of every class, random and tiny, as transformers itself saves them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import family_cases
import pytest
import torch


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
        family = "bert" if name.startswith("Bert") else "distilbert"
        return family_cases.stock(hf, family, name, tmp_path / name, **changes), tmp_path / name

    return make
