"""How many tokens of a text a run reads, where no flag says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from compress.errors import UserError

if TYPE_CHECKING:
    from compress.recipe import LoadedRecipe
    from compress.stages.shared.flags import Edit


def read_as_long(loaded: LoadedRecipe, name: str, changed: Mapping[str, Any]) -> Iterator[Edit]:
    """The length of the model that is compressed, in place of that of a shipped recipe, unless a person chose another:
    what is made of a model reads what the model reads. changed: what the command line sets, by its path."""
    from compress.stages.shared.flags import Edit

    content = loaded.content
    if _is_chosen(loaded, name, changed):
        return
    rows = content["teachers"] if changed.get("teachers") else [{"model": changed.get("teacher")}]
    swept = (content.get("sweep") or {}).get("teacher")  # the runs of a sweep differ in what is swept alone
    rows = [{"model": one} for one in swept] if swept else rows
    teachers = [str(row["model"]) for row in rows if row.get("model")]
    if len(teachers) < len(rows):
        return
    from compress.modelfolder import folder as modelfolder
    from compress.modelfolder.resolve import resolve as find_model

    students = [(row.get("student") or {}).get("model") for row in content["stages"]]
    try:
        parents = [modelfolder.inspect(find_model(one)) for one in teachers]
        others = [modelfolder.inspect(find_model(one)) for one in students if one]
    except UserError:
        return  # the run says what is wrong with it
    if any(one.is_embedder or "task" not in one.heads for one in parents):
        return
    longest = [one.longest_text for one in parents]
    length = min(longest + [one.config.max_positions for one in others])
    if length != content["data"].get("max_length"):
        least = teachers[longest.index(min(longest))]
        yield Edit("data.max_length", length, f"the longest text that {least} reads")


def read_whole_texts(loaded: LoadedRecipe, name: str, changed: Mapping[str, Any]) -> Iterator[Edit]:
    """The length that truncates hardly any training text, in place of that of a shipped recipe that fine-tunes a model,
    unless a person chose another. changed: as of `read_as_long`."""
    from compress.stages.shared.flags import Edit

    if _is_chosen(loaded, name, changed) or not (changed.get("model") and changed.get("data.source")):
        return
    from compress.modelfolder.resolve import resolve as find_model
    from compress.stages.shared.text_length import choose_text_length

    try:
        length = choose_text_length(loaded.recipe, find_model(str(changed["model"])))
    except UserError:
        return  # the run says what is wrong with it
    if length != loaded.content["data"].get("max_length"):
        yield Edit("data.max_length", length, "the length of the training texts")


def fit_blocks(loaded: LoadedRecipe, changed: Mapping[str, Any]) -> Iterator[Edit]:
    """Blocks no longer than the positions of the model that is pretrained further, unless a person chose a length.
    changed: as of `read_as_long`."""
    from compress.modelfolder import folder as modelfolder
    from compress.modelfolder.resolve import resolve as find_model
    from compress.stages.shared.flags import Edit

    content = loaded.content
    if "corpus.max_length" in changed or not content.get("corpus"):
        return
    try:
        positions = modelfolder.inspect(find_model(str(changed["model"]))).config.max_positions
    except UserError:
        return  # the run says what is wrong with it
    if positions < content["corpus"].get("max_length", 0):
        yield Edit("corpus.max_length", positions, "the positions of the model")


def _is_chosen(loaded: LoadedRecipe, name: str, changed: Mapping[str, Any]) -> bool:
    """Whether a person chose the length, or there is none to choose."""
    from compress.recipe.library import names as recipe_names

    data = changed.get("data")
    chosen = "data.max_length" in changed or (isinstance(data, dict) and "max_length" in data)
    return chosen or not loaded.content.get("data") or name not in recipe_names()
