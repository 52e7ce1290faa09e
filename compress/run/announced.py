"""A stage as plain data, which one process announces and others prepare too: those that train it with the first one
under torchrun, and workers that share what it computes before its first step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from compress import registry
from compress.console import Console
from compress.contracts import ChainOptions, StageSpec
from compress.modelfolder.ensemble import Ensemble
from compress.predict.text_vectors import make_text_vectors
from compress.recipe import Recipe, load_recipe
from compress.run.selection import Selection
from compress.run.sources import Sources
from compress.stages.shared.stage import PreparedStage, Stage, StageContext
from compress.storage.sent import find_copy

_FOLDERS = tuple(f.name for f in dataclasses.fields(StageContext) if f.type in ("Path", "Path | None"))
"""What is a path in a context."""
_PLAIN = ("seed", "device", "precision")
_ENSEMBLE = TypeAdapter(Ensemble | None)


@dataclass(frozen=True)
class AnnouncedStage:
    """spec: of the stage.  context: what it was given, prepared from the same files.  prepared: the stage."""

    spec: StageSpec
    context: StageContext
    prepared: PreparedStage


def announce_stage(recipe: Recipe, spec: StageSpec, context: StageContext) -> dict[str, Any]:
    """What other processes must know to prepare the same stage: plain data. What a context calls, each has its own."""
    folders = {name: getattr(context, name) for name in _FOLDERS}
    return {
        "recipe": recipe.model_dump(mode="json"),
        "spec": spec.model_dump(mode="json"),
        "context": {
            **{name: None if path is None else str(path) for name, path in folders.items()},
            **{name: getattr(context, name) for name in _PLAIN},
            "ensemble": _ENSEMBLE.dump_python(context.ensemble, mode="json"),
        },
    }


def prepare_announced(
    announced: Mapping[str, Any], chain: ChainOptions | None, console: Console, **services: Any
) -> AnnouncedStage:
    """Prepare the stage that `announce_stage` described. services: what its context calls, beside data. Raises
    UserError as the stage does."""
    stage, spec, context = build_announced(announced, chain, console, **services)
    return AnnouncedStage(spec, context, stage.prepare())


def build_announced(
    announced: Mapping[str, Any], chain: ChainOptions | None, console: Console, **services: Any
) -> tuple[Stage, StageSpec, StageContext]:
    """The same stage, not prepared, with what it was given."""
    recipe = load_recipe(announced["recipe"])
    spec = registry.stage_spec(announced["spec"]["kind"]).model_validate(announced["spec"])
    given = dict(announced["context"])
    given |= {name: None if given[name] is None else find_copy(Path(given[name])) for name in _FOLDERS}
    given["ensemble"] = _find_members(_ENSEMBLE.validate_python(given["ensemble"]))
    folder, device = given["teacher"] or given["model"], given["device"]
    vectors = None if folder is None else lambda: make_text_vectors(folder, device)
    sources = Sources(Selection.of(recipe, None, chain), console.note, vectors)
    context = StageContext(recipe=recipe, table=lambda: sources.table, corpus=lambda: sources.corpus, **given)
    context = dataclasses.replace(context, **services)
    return registry.stage_class(spec.kind)(spec, context), spec, context


def _find_members(ensemble: Ensemble | None) -> Ensemble | None:
    if ensemble is None:
        return None
    members = (dataclasses.replace(one, folder=find_copy(one.folder)) for one in ensemble.members)
    return dataclasses.replace(ensemble, members=tuple(members))
