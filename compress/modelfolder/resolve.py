"""One way to name a model: a folder, `hf:org/name[@revision]`, `runs:/<id>/…`, `models:/name@alias`."""

from __future__ import annotations

import re
from pathlib import Path

from compress.errors import ExitCode, UserError, did_you_mean, nearest, printable
from compress.recipe.library import is_recipe
from compress.recipe.library import names as recipe_names
from compress.storage.sent import find_copy

PATTERNS = (
    *(
        "README.md",
        "config.json",
        "*.safetensors",
        "*.safetensors.index.json",
        *("tokenizer*.json", "vocab.txt", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
        *("spiece.model", "spm.model", "sentencepiece.bpe.model"),
        "compress*.json",
        "certificate.json",
        "model.onnx",
        "onnx.json",
        "openvino_model.*",
    ),
    *("modules.json", "*_Pooling/config.json", "*_Dense/config.json", "[0-9]_*/*.json"),
    *("sentence_*_config.json", "config_sentence_transformers.json"),
    *("cascade.json", "stage-*/*"),
)
HUB, STORE = "hf:", ("runs:/", "models:/")


def is_address(name: str) -> bool:
    """Whether the name means a model of the hub or of the store, not a folder."""
    return name.startswith((HUB, *STORE))


def resolve(name: str, tracking_uri: str | None = None) -> Path:
    """The local folder that `name` means, in the store of `resolve_store(tracking_uri)`; UserError with the nearest
    right thing."""
    if name.startswith(HUB):
        return _from_hub(name.removeprefix(HUB))
    if name.startswith(STORE):
        from compress.tracking.download import download_model

        return download_model(name, tracking_uri)
    from compress.modelfolder.cascade import RESTORE  # torch, which names alone do not need
    from compress.modelfolder.folder import is_model_folder

    path = find_copy(Path(name).expanduser())
    if path.name in ("", ".."):  # `.` and `..` say nothing of the model, which is called by its folder's name
        path = path.resolve()
    if is_model_folder(path) or (path / "config.json").is_file():
        return path  # the loader says better than we could what is wrong with one that has no safetensors
    if not path.exists():
        raise _missing(name, path)
    if is_model_folder(path / "stage-1"):  # the name of the first model of a cascade
        raise UserError("cascade.json is missing", where=str(path), do=RESTORE)
    beside = [path.with_name(found[1])] if (found := _RUN_OF.fullmatch(path.name)) else []
    if made := next(filter(is_model_folder, [*_list_results(path), *beside]), None):
        raise UserError("this is a run folder, not a model folder", where=str(path), do=f"use {made}")
    below = (place for child in _list_folders(path) for place in (child, *_list_results(child)))
    inner = next(filter(is_model_folder, below), None)
    raise UserError(
        "this is not a model folder", where=str(path), why="looked for config.json and *.safetensors",
        do=None if inner is None else f"use a model folder in it, such as {inner}",
    )  # fmt: skip


_RUN_OF = re.compile(r"(.+)-run(-\d+)?")
"""The run of a cascade, whose model folder is beside it."""


def _list_results(path: Path) -> list[Path]:
    """Where runs write their models."""
    return [path / name for name in ("student", "model")]


def _has_config(path: Path) -> bool:
    """Whether a folder looks like a model, without the import of torch that `is_model_folder` takes."""
    return any((path / name).is_file() for name in ("config.json", "cascade.json"))


def _list_folders(path: Path, most: int = 100) -> list[Path]:
    return sorted(child for child in path.iterdir() if child.is_dir())[:most] if path.is_dir() else []


def require_there(name: str) -> None:
    """Raise UserError, with the nearest right name, where `name` is a path and nothing is there. Imports no torch."""
    path = find_copy(Path(name).expanduser())
    if not is_address(name) and not path.exists():
        raise _missing(name, path)


def _missing(name: str, path: Path) -> UserError:
    folders = [p for p in path.parent.glob("*") if p.is_dir()] if path.parent.is_dir() else []
    siblings = [str(p) for p in folders if any(map(_has_config, [p, *_list_results(p)]))] or list(map(str, folders))
    near = nearest(str(path), siblings)
    hint = f"did you mean '{near}'?" if near else did_you_mean(str(path), siblings) if siblings else None
    if (name.count("/") == 1 or (near is None and "/" not in name)) and not name.startswith((".", "/", "~")):
        hint = f"for a model of the hub write hf:{name}"
    return UserError(f"model folder '{printable(name, 200)}' not found", do=hint)


def require_teacher(name: str) -> None:
    """The same of a name that may mean a recipe too; a misspelt recipe, which is no path, is reported as one."""
    if is_recipe(name):
        return
    is_path = len(Path(name).parts) > 1
    if not is_path and nearest(name, recipe_names()) is not None and not find_copy(Path(name)).exists():
        raise UserError(f"no such teacher '{name}'", where="--teacher", do=did_you_mean(name, recipe_names()))
    require_there(name)


def tokenizer_folder(path: Path) -> Path:
    """The folder of `--tokenizer`; a run's folder is told from its result."""
    if not path.is_dir():
        siblings = [p.name for p in path.parent.glob("*") if p.is_dir()]
        hint = did_you_mean(path.name, siblings) if siblings else None
        raise UserError("no such folder", where=f"--tokenizer {path}", do=hint)
    if not (path / "tokenizer.json").is_file() and (path / "model" / "tokenizer.json").is_file():
        raise UserError(
            "this is a run folder, not a tokenizer folder", where=f"--tokenizer {path}", do=f"use {path / 'model'}"
        )
    return path


def _from_hub(name: str) -> Path:
    """A snapshot of a hub repository, its weights as safetensors only; no code of the repository is fetched or run."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    repository, _, revision = name.partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=list(PATTERNS)))
    except RepositoryNotFoundError as error:
        raise UserError(
            f"the hub has no model '{repository}'", do="check the name, or log in with `hf auth login`"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, OSError) as error:
        raise UserError(
            f"the hub cannot be reached for '{repository}'",
            why=printable(str(error).splitlines()[0] if str(error) else type(error).__name__, 160),
            do="check the network, or give a local folder",
            code=ExitCode.ENVIRONMENT,
        ) from error
    except ValueError as error:
        raise UserError(f"'{printable(name, 100)}' is not a hub name", do="write hf:organisation/model") from error
