"""Says what is being imported, where that takes seconds: the first line of a long command does not wait for torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SLOW = ("torch", "mlflow", "transformers")
"""Packages whose import takes more than a second."""


class Announcer:
    """A finder of modules that calls `say` before each package of `SLOW` is imported for the first time."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that Python finds, of packages of `SLOW`; None of all others."""
        if fullname not in SLOW:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        create = loader.create_module

        def announce(
            spec: ModuleSpec,
        ) -> ModuleType | None:  # who only asks whether there is such a package says nothing
            self.say(f"loading {fullname} …")
            return create(spec)

        loader.create_module = announce
        return spec

    def install(self) -> None:
        """From now on, before all other finders."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """No longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
