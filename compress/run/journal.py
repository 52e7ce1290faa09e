"""The tracked runs of one run: its own, and one below it for each stage and each measured model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from compress.console import Console
from compress.contracts import RunOptions
from compress.recipe import Recipe
from compress.run.sources import Sources
from compress.tracking import Parent, TrackedRun, experiment, open_child, open_run, resolve_store


class Journal:
    """Opens the tracked runs of a recipe. parent: the run above its own; None: there is none.  tags, name:
    of its own run; the name is the folder's where none is given."""

    def __init__(
        self,
        recipe: Recipe,
        options: RunOptions,
        console: Console,
        sources: Sources,
        *,
        parent: Parent | None = None,
        tags: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> None:
        self.recipe, self.options, self.console, self.sources = recipe, options, console, sources
        self.name = name
        self.parent, self.tags = parent, dict(tags or {})
        self.experiment = experiment(options)

    def address(self) -> str:
        """Store and experiment. Raises UserError for an address that cannot be one."""
        return f"{resolve_store(self.options.tracking_uri).shown} {self.experiment}"

    def has_store(self) -> bool:
        """Whether the store of earlier runs is still there, as far as that can be seen from here."""
        database = resolve_store(self.options.tracking_uri).database
        return database is None or database.exists()

    def open(self, folder: Path, *, method: str, role: str) -> TrackedRun:
        """The run's own, in its folder. role: "student", or "teacher" of a run that makes one."""
        return open_run(
            folder,
            experiment=self.experiment,
            name=self.name or folder.name,
            method=method,
            role=role,
            parent=self.parent,
            tags={"compress.recipe": self.recipe.name, "compress.recipe_sha": self.recipe.hash(), **self.tags},
            store=resolve_store(self.options.tracking_uri),
            quality=self.sources.quality,
            warn=self.console.warn,
        )

    def child(self, log: TrackedRun, folder: Path, *, method: str, role: str) -> TrackedRun:
        """A run below `log`; one whose journal is in `folder` already is continued."""
        return open_child(
            log,
            folder,
            name=f"{self.name or log.folder.name}/{folder.name}",
            method=method,
            role=role,
            tags={"compress.recipe": self.recipe.name, "compress.parent_run": log.key},
            quality=self.sources.quality,
            warn=self.console.warn,
        )
