"""Entries of the cache folder: whole or not there, for one user, the unused ones removed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from compress.errors import UserError
from compress.storage.cache import keep_folder, private_folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path))
    return tmp_path


class Filler:
    """Writes a file with its number; counts how often it had to."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, entry: Path) -> None:
        self.count += 1
        (entry / "files").mkdir()
        (entry / "files" / "number").write_text(str(self.count))


def _number(entry: Path) -> str:
    return (entry / "files" / "number").read_text()


def test_an_entry_is_filled_once_and_again_when_damaged(cache: Path) -> None:
    fill = Filler()
    assert _number(keep_folder(cache / "x", "a", fill, 8)) == "1"
    entry = keep_folder(cache / "x", "a", fill, 8)
    assert fill.count == 1
    (entry / "files" / "number").write_text("7")
    assert _number(keep_folder(cache / "x", "a", fill, 8)) == "2"
    assert _number(keep_folder(cache / "x", "b", fill, 8)) == "3"
    assert _number(keep_folder(cache / "x", None, fill, 8)) == "4", "without a key there is no earlier entry"


def test_what_a_filler_raises_leaves_no_entry(cache: Path) -> None:
    def broken(entry: Path) -> None:
        (entry / "half").write_text("x")
        raise RuntimeError("the line was cut")

    with pytest.raises(RuntimeError, match="the line was cut"):
        keep_folder(cache / "x", "a", broken, 8)
    assert [p.name for p in (cache / "x").iterdir()] == [".lock"]


_OTHER = """
import sys
from pathlib import Path
from compress.storage.cache import keep_folder

for key in sys.argv[2:]:
    keep_folder(Path(sys.argv[1]), key, lambda entry: (entry / "file").write_text("x") and None, 8)
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_entries_used_last_stay_and_those_that_are_read(cache: Path) -> None:
    parent = cache / "x"
    other = subprocess.Popen(
        [sys.executable, "-c", _OTHER, str(parent), "theirs"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"ready\n"
    ended = [sys.executable, "-c", _OTHER, str(parent), "old", "older", "newer"]
    subprocess.run(ended, stdin=subprocess.DEVNULL, check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    for name, age in (("theirs", 1), ("older", 2), ("old", 3), ("newer", 4)):
        os.utime(parent / name, (age, age))
    fill = Filler()
    keep_folder(parent, "mine", fill, 2)
    assert _names(parent) == {"mine", "newer", "theirs"}
    other.communicate(timeout=300)
    keep_folder(parent, "newer", fill, 2)
    assert _names(parent) == {"mine", "newer"}
    keep_folder(parent, "third", fill, 1)
    assert _names(parent) == {"mine", "newer", "third"}, "this process may read them still"


def _names(parent: Path) -> set[str]:
    return {p.name for p in parent.iterdir() if p.is_dir()}


def test_a_folder_for_one_user(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "models").mkdir(mode=0o755)
    assert stat.S_IMODE(private_folder("models").stat().st_mode) == 0o700
    (cache / "link").symlink_to(tmp_path)
    with pytest.raises(UserError, match="link: is not a folder that belongs to you; set COMPRESS_CACHE"):
        private_folder("link")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UserError, match="is not a folder that belongs to you") as caught:
        private_folder("models")
    assert caught.value.code == 6


def test_every_level_of_a_folder_for_one_user_is_checked(cache: Path, tmp_path: Path) -> None:
    (cache / "models" / "registered").mkdir(parents=True)
    for folder in (cache / "models", cache / "models" / "registered"):
        folder.chmod(0o777)
    private_folder("models/registered/opinions")
    made = [cache / "models" / inner for inner in (".", "registered", "registered/opinions")]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in made] == [0o700] * 3
    (tmp_path / "elsewhere").mkdir()
    (cache / "models" / "logged").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"models/logged: is not a folder that belongs to you"):
        private_folder("models/logged")


def test_an_entry_that_somebody_else_left_is_not_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = Filler()
    entry = keep_folder(cache / "x", "a", fill, 8)
    planted, usual = entry / "files" / "number", os.lstat

    def lstat(path: str | Path, **more: int | None) -> os.stat_result:
        found = usual(path, **more)  # pyright: ignore[reportArgumentType]
        theirs = Path(path) == planted and fill.count == 1
        return os.stat_result((*found[:4], found.st_uid + theirs, *found[5:])) if theirs else found

    monkeypatch.setattr(os, "lstat", lstat)
    assert _number(keep_folder(cache / "x", "a", fill, 8)) == "2"
    assert _number(keep_folder(cache / "x", "a", fill, 8)) == "2"


def test_an_entry_that_is_or_holds_a_link_is_not_read(cache: Path) -> None:
    fill = Filler()
    entry = keep_folder(cache / "x", "a", fill, 8)
    number = entry / "files" / "number"
    number.rename(cache / "number")
    number.symlink_to(cache / "number")
    assert _number(keep_folder(cache / "x", "a", fill, 8)) == "2"
    entry.rename(cache / "other")
    entry.symlink_to(cache / "other")
    with pytest.raises(UserError, match="x/a: cannot be removed: it is a link"):
        keep_folder(cache / "x", "a", fill, 8)
