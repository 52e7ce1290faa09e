"""Tiny models gain nothing from threads, and bits are compared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from training_toy import Server, prints, run


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an undisturbed run leaves."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole")
    _, module = run(folder)
    return prints(folder, module)
