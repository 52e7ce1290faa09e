"""The folder of a run: which one, whose, how far, and the command that goes on with it.

runs/<recipe>/   compress-run.json  recipe.yaml  stages/<n>-<kind>/  student/ or model/  tracking/
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.contracts import RunOptions
from compress.durable import atomic, safe
from compress.errors import ExitCode, UserError
from compress.recipe import Recipe

RUNS = Path("runs")
RECORD = "compress-run.json"
VERSION = 1


@dataclass(frozen=True)
class RunFolder:
    """A claimed folder. new: nothing was done in it before."""

    path: Path
    new: bool

    def record(self, recipe: Recipe, status: str) -> None:
        """Write down what runs here and how far it came."""
        content = {
            "version": VERSION,
            "recipe": recipe.name,
            "recipe_sha256": recipe.hash(),
            "command": command_line(),
            "status": status,
        }
        atomic.write_json(self.path / RECORD, content)


def claim(recipe: Recipe, options: RunOptions) -> RunFolder:
    """The folder that this run works in: `--output`, else runs/<recipe>, or the next free runs/<recipe>-2.

    With --resume and no --output: the newest unfinished run of the recipe. Raises UserError (REFUSED) when the folder
    is not ours, holds a run that may not be continued unasked, or another recipe.
    """
    if options.output is not None:
        return _claim_named(Path(options.output), recipe, options.resume)
    taken = [p for p in _numbered(recipe.name) if p.exists()]
    if options.resume:
        open_runs = [p for p in taken if _is_ours(p) and read_record(p).get("status") != "finished"]
        if not open_runs:
            raise UserError(
                f"there is no unfinished run of {recipe.name} to resume",
                where=f"{RUNS}/{recipe.name}",
                do="name its folder with --output, or leave out --resume",
            )
        return _claim_named(open_runs[-1], recipe, True)
    free = next(p for p in _numbered(recipe.name, endless=True) if not p.exists())
    return RunFolder(free, True)


def read_record(folder: Path) -> dict[str, Any]:
    """What the record of a run of ours says."""
    return safe.read_json(folder / RECORD, 1 << 20)


def _numbered(name: str, endless: bool = False):
    yield RUNS / name
    number = 2
    while endless or (RUNS / f"{name}-{number}").exists():
        yield RUNS / f"{name}-{number}"
        number += 1


def _is_ours(path: Path) -> bool:
    return (path / RECORD).is_file()


def _claim_named(path: Path, recipe: Recipe, resume: bool) -> RunFolder:
    if path.exists() and not path.is_dir():
        raise UserError("the output is a file", where=f"--output {path}", do="name a folder", code=ExitCode.REFUSED)
    if not path.exists() or not any(path.iterdir()):
        return RunFolder(path, True)
    if not _is_ours(path):
        raise UserError(
            "the output folder exists and is not a run of ours",
            where=f"--output {path}",
            do="name a new folder",
            code=ExitCode.REFUSED,
        )
    record = read_record(path)
    if not resume:
        raise UserError(
            "the output folder holds a run already",
            where=f"--output {path}",
            why=f"recipe {record.get('recipe')}, {record.get('status')}",
            do="use --resume to go on, or a new folder",
            code=ExitCode.REFUSED,
        )
    if record.get("recipe_sha256") != recipe.hash():
        raise UserError(
            "the run in this folder was started with another recipe or other options",
            where=f"--output {path}",
            why=f"it was: {record.get('command')}",
            do="resume with that command, or use a new folder",
            code=ExitCode.REFUSED,
        )
    return RunFolder(path, False)


def command_line() -> str:
    """This process's command as a person types it."""
    return shlex.join(["compress", *sys.argv[1:]])


def resume_command(folder: Path) -> str:
    """The command that continues the run in `folder`."""
    words = [w for w in sys.argv[1:] if w != "--resume"]
    if "--output" not in words and not any(w.startswith("--output=") for w in words):
        words += ["--output", str(folder)]
    return shlex.join(["compress", *words, "--resume"])
