"""The files by which sentence-transformers turns a text into a vector, carried over to a model made from the folder's.

They are copied byte by byte: pooling, Dense, Normalize, and modules that are not computed here. Only the width of the
hidden states and the longest text follow the new model. A folder without modules.json has none of these files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compress.encoder.config.encoder import EncoderConfig
from compress.errors import UserError, printable
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.open import file_digest
from compress.modelfolder.sentence_pooling import (
    MAX_LENGTH,
    MODULES,
    NEW_WIDTH,
    PACKAGE,
    PROMPTS,
    STATIC,
    TRUNCATION,
    WIDTH,
    list_modules,
    settings_file,
)
from compress.storage import safe

LIMIT = 1 << 30
"""Bytes of one file."""
_NAMES = (MODULES, PROMPTS, "sentence_*_config.json", "[0-9]*_*/*")
_COPIED = (".json", ".safetensors", ".txt", ".md")
_WITHOUT_FILES = ("Normalize",)
_DO = "to compress the encoder alone, remove modules.json from a copy of the folder"


def sentence_files(
    folder: Path, before: EncoderConfig, *, hidden: int | None = None, positions: int | None = None
) -> dict[str, bytes]:
    """By name, as `save_model` takes them in `beside`; none for a folder without modules.json.

    before: of the folder's model.  hidden, positions: of the model made from it, where they may be others.
    Raises UserError for a module that cannot be carried over, and for one that does not fit a narrower model.
    """
    if not (folder / MODULES).is_file():
        return {}
    hidden, positions = hidden or before.hidden, positions or before.max_positions
    files = {MODULES: safe.read_bytes(folder / MODULES, LIMIT)}
    for kind, path in _modules(folder):
        held = _read(folder, kind, path)
        if hidden != before.hidden:
            held = _resized(folder, kind, path, held, before.hidden, hidden)
        files |= held
    settings = settings_file(folder)
    if settings is not None:
        files[settings.name] = _shortened(settings, before.max_positions, positions)
    return files | prompt_files(folder)


def prompt_files(folder: Path, *, cut: bool = True) -> dict[str, bytes]:
    """The file with the prompts of a folder, where there is one. cut: with the number that vectors are cut to."""
    file = folder / PROMPTS
    if not file.is_file():
        return {}
    if not cut and TRUNCATION in (values := safe.read_json(file)):
        return {PROMPTS: _json({key: value for key, value in values.items() if key != TRUNCATION})}
    return {PROMPTS: safe.read_bytes(file, LIMIT)}


def identity(folder: Path) -> str:
    """`folder.fingerprint`, and beside it what turns the hidden states into a vector, where a folder says that."""
    found = modelfolder.fingerprint(folder)
    if not (folder / MODULES).is_file():
        return found
    files = [file for pattern in _NAMES for file in folder.glob(pattern) if file.is_file()]
    digest = hashlib.sha256(found.encode())
    for file in sorted(files):
        digest.update(f"\n{file.relative_to(folder).as_posix()} {file_digest(file)}".encode())
    return digest.hexdigest()


def _modules(folder: Path) -> Iterator[tuple[str, str]]:
    """(kind, folder) of each module after the encoder."""
    for module in list_modules(folder / MODULES):
        if module.kind in ("Transformer", STATIC):
            if module.path:
                raise module.fields.wrong("path", "an empty path: the encoder in the folder itself")
            continue
        if "." in module.kind:
            raise UserError(
                f"module {printable(module.kind, 100)} is code of its own", where=str(folder / MODULES),
                why=f"modules of {PACKAGE[:-1]} can be carried over", do=_DO,
            )  # fmt: skip
        if not module.path:
            raise module.fields.wrong("path", "the name of a folder beside modules.json")
        yield module.kind, module.path


def _files(place: Path) -> list[Path]:
    return sorted(file for file in place.iterdir() if file.is_file()) if place.is_dir() else []


def _read(folder: Path, kind: str, path: str) -> dict[str, bytes]:
    """The files of one module. Raises UserError for one without files, and for files of other kinds."""
    found = _files(folder / path)
    names = [file.name for file in found]
    if "model.safetensors" in names:  # the same weights
        found = [file for file in found if file.name != "pytorch_model.bin"]
    other = [file for file in found if file.suffix not in _COPIED]
    if other:
        raise UserError(
            f"{printable(other[0].name, 60)} cannot be carried over", where=str(folder / path),
            why=f"carried over: {', '.join(_COPIED)}", do=f"save the module as safetensors; {_DO}",
        )  # fmt: skip
    if not found and kind not in _WITHOUT_FILES:
        raise UserError(f"module {printable(kind, 60)} has no files", where=str(folder / path), do="restore them")
    if kind == "Dense" and "model.safetensors" not in names:
        raise UserError("model.safetensors is missing", where=str(folder / path), do=f"restore it; {_DO}")
    return {f"{path}/{file.name}": safe.read_bytes(file, LIMIT) for file in found}


def _resized(
    folder: Path, kind: str, path: str, held: dict[str, bytes], before: int, after: int
) -> dict[str, bytes]:  # fmt: skip
    """A module that reads hidden states of another width. Raises UserError for one whose weights do not fit."""
    if kind in _WITHOUT_FILES:
        return held
    name = f"{path}/config.json"
    if kind != "Pooling" or name not in held:
        raise UserError(
            f"module {printable(kind, 60)} does not fit the new model", where=str(folder / path),
            why=f"it reads vectors of {before}, and the new hidden states have {after}",
            do=f"keep the hidden size; {_DO}",
        )  # fmt: skip
    values = safe.read_json(folder / name)
    return {**held, name: _json(values | {key: after for key in (WIDTH, NEW_WIDTH) if key in values})}


def _shortened(file: Path, before: int, after: int) -> bytes:
    """The settings with a longest text that the new model has positions for, all of them where it has more."""
    values = safe.read_json(file)
    said = values.get(MAX_LENGTH)
    if isinstance(said, bool) or not isinstance(said, int | float):
        return safe.read_bytes(file, LIMIT)
    longest = after if after > before else min(int(said), after)
    return safe.read_bytes(file, LIMIT) if longest == said else _json({**values, MAX_LENGTH: longest})


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
