"""Where recipes are: the shipped ones by name, anybody's own by path. Imports nothing heavy."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import compress
from compress.errors import UserError, did_you_mean, printable

SUFFIXES = (".yaml", ".yml")


@cache
def folder() -> Path:
    """The shipped recipes: inside an installed package, else the top-level folder of a checkout."""
    package = Path(compress.__file__).parent
    inside = package / "_recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


def names() -> list[str]:
    """Names of the shipped recipes."""
    return sorted(path.stem for path in folder().glob("*.yaml"))


def read_command(name: str) -> str:
    """The command at the head of a shipped recipe."""
    with (folder() / f"{name}.yaml").open(encoding="utf-8") as file:
        return file.readline().removeprefix("# ").strip()


def is_path(name: str) -> bool:
    """Whether this names a file rather than a shipped recipe."""
    return name.endswith(SUFFIXES) or "/" in name or "\\" in name


def is_recipe(name: str) -> bool:
    """Whether the name of a teacher means a recipe: a shipped one, or a recipe file."""
    return name in names() or name.endswith(SUFFIXES)


def find_recipe(name: str, *, beside: Path | None = None, where: str | None = None) -> Path:
    """The file of a recipe given by name or path.

    beside: the folder against which a relative path is taken (default: the working directory).
    where: what asked for it (`--recipe`, `x.yaml:3:10: extends`), for the message.
    """
    if "\0" in name or not name.strip():
        raise UserError("not a recipe name", where=where, why=f"found '{printable(name, 60)}'")
    if is_path(name):
        path = Path(name).expanduser()
        path = path if path.is_absolute() or beside is None else beside / path
        if not path.exists():
            near = did_you_mean(path.name, _siblings(path)) if _siblings(path) else None
            why = f"looked for {path.absolute()}"
            raise UserError(f"no recipe file '{name}'", where=where, why=why, do=near)
        return path
    path = folder() / f"{name}.yaml"
    if not path.is_file():
        do = (
            did_you_mean(name, names())
            if not Path(f"{name}.yaml").is_file()
            else f"for your own file write ./{name}.yaml"
        )
        raise UserError(f"unknown recipe '{printable(name, 60)}'", where=where, do=do)
    return path


def format_path(path: Path) -> str:
    """How messages name a file: relative to the working directory when it is below it."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _siblings(path: Path) -> list[str]:
    try:
        return [p.name for p in path.parent.iterdir() if p.suffix in SUFFIXES]
    except OSError:
        return []
