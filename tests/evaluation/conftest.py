"""The rounds in which calls are timed are what is tested here."""

import pytest


@pytest.fixture
def few_rounds() -> None:
    """All rounds."""
