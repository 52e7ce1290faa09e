"""Files and folders that appear whole or not at all, verify themselves, and never take what is not ours."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.errors import ExitCode, UserError
from compress.storage import atomic, manifest, temporary
from compress.storage.disk import find_free_folder, take_free_folder


def folder_at(path: Path, text: str = "content") -> Path:
    with atomic.new_folder(path) as temp:
        atomic.write_text(temp / "a.txt", text)
        (temp / "sub").mkdir()
        (temp / "sub" / "b.bin").write_bytes(b"\0\1\2" * 100)
    return path


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- files


def test_files_are_written_and_replaced_with_their_parents(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.txt"
    atomic.write_text(path, "häm\r\n")
    assert path.read_bytes() == "häm\r\n".encode()
    atomic.write_bytes(path, b"")
    assert path.read_bytes() == b""
    atomic.write_json(path, {"b": [1, 2.5, None], "a": "ü"})
    assert json.loads(path.read_text()) == {"b": [1, 2.5, None], "a": "ü"}
    assert path.read_text().index('"b"') < path.read_text().index('"a"')
    assert os.listdir(path.parent) == ["c.txt"]


@pytest.mark.parametrize(("mask", "wanted"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664)])
def test_modes_follow_the_umask_even_for_files_that_others_wrote(tmp_path: Path, mask: int, wanted: int) -> None:
    with umask(mask):
        atomic.write_text(tmp_path / "x", "x")
        with atomic.new_folder(tmp_path / "f") as temp:
            (temp / "private").write_text("as safetensors writes")
            (temp / "private").chmod(0o600)
    assert mode(tmp_path / "x") == wanted
    assert {mode(p) for p in (tmp_path / "f").iterdir()} == {wanted}


def test_a_link_at_the_target_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("untouched")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    atomic.write_text(tmp_path / "link", "new")
    assert (tmp_path / "elsewhere").read_text() == "untouched"
    assert not (tmp_path / "link").is_symlink()


def test_a_link_planted_at_the_temporary_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "victim").write_text("untouched")
    planted = temporary.make_name_beside(tmp_path / "x", temporary.NEW)
    planted.symlink_to(tmp_path / "victim")
    monkeypatch.setattr(temporary, "make_name_beside", lambda target, kind: planted)
    with pytest.raises(UserError, match="exists already"):
        atomic.write_text(tmp_path / "x", "evil")
    with pytest.raises(UserError, match="exists already"), atomic.new_folder(tmp_path / "y"):
        pass
    assert (tmp_path / "victim").read_text() == "untouched"
    assert planted.is_symlink()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_cannot_say_nan(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        atomic.write_json(tmp_path / "x", {"a": value})
    assert os.listdir(tmp_path) == []


def test_paths_that_cannot_be_written_are_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    cases = [
        (tmp_path / "file" / "below", "exists already, as another type of file"),
        (tmp_path / "folder", "is a folder, not a file"),
        (tmp_path / ("x" * 300), "the name is too long"),
        (tmp_path / "a\0b", "a path cannot contain a NUL character"),
    ]
    for path, message in cases:
        target = path if "\0" not in str(path) else path / "x"
        with pytest.raises(UserError, match=message) as caught:
            atomic.write_text(target, "x")
        assert caught.value.code == ExitCode.INPUT
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


@pytest.mark.parametrize(
    ("below", "message"),
    [("file", "a part of the path is a file"), ("gone", "cannot be written"), ("nul\0", "a NUL character")],
)
@pytest.mark.parametrize("missing", ["", "runs/of/mine"])
def test_a_path_that_cannot_be_written_is_found_before_the_work(
    below: str, missing: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=message) as caught:
        atomic.require_writable(tmp_path / below / missing / "x")
    assert caught.value.code == ExitCode.INPUT
    atomic.require_writable(tmp_path / missing / "x")
    assert sorted(os.listdir(tmp_path)) == ["file", "gone"], "nothing is left behind"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_right_to_write_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    for write in (lambda path: atomic.write_text(path, "x"), atomic.require_writable):
        with pytest.raises(UserError, match="permission denied; choose another path"):
            write(tmp_path / "x")
    tmp_path.chmod(0o700)


def test_names_of_any_alphabet_and_with_spaces_work(tmp_path: Path) -> None:
    for name in ("mit Leer zeichen", "quote'\"", "новая", "line\nbreak", "x" * 220):
        folder_at(tmp_path / name)
        assert atomic.verify_folder(tmp_path / name) == []


# --- folders


def test_a_folder_appears_whole_with_its_manifest(tmp_path: Path) -> None:
    folder = folder_at(tmp_path / "deep" / "er" / "model")
    assert atomic.verify_folder(folder) == []
    assert set(atomic.read_manifest(folder)) == {"a.txt", "sub/b.bin"}
    assert atomic.read_manifest(folder)["sub/b.bin"].size == 300
    assert os.listdir(folder.parent) == ["model"]


def test_nothing_appears_when_the_block_raises(tmp_path: Path) -> None:
    def fill(error: BaseException) -> None:
        with atomic.new_folder(tmp_path / "x") as temp:
            (temp / "a").write_text("a")
            raise error

    for error in (KeyboardInterrupt(), ValueError("theirs"), FileNotFoundError(2, "No such file", "input.txt")):
        with pytest.raises(type(error)) as caught:
            fill(error)
        assert caught.value is error
        assert os.listdir(tmp_path) == []


def test_a_full_disk_inside_the_block_is_told_with_the_size(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught, atomic.new_folder(tmp_path / "x", needed=3_000_000_000):
        raise OSError(28, "No space left on device")
    assert caught.value.code == ExitCode.RESOURCES
    assert caught.value.line().startswith(f"{tmp_path / 'x'}: the disk is full: at least 3.0 GB needed, ")


def test_what_exists_is_refused_unless_replaced(tmp_path: Path) -> None:
    folder = folder_at(tmp_path / "x", "first")
    with pytest.raises(UserError, match="exists already; choose another folder") as caught, atomic.new_folder(folder):
        pytest.fail("the block must not run")
    assert caught.value.code == ExitCode.REFUSED
    with atomic.new_folder(folder, replace=True) as temp:
        atomic.write_text(temp / "c.txt", "second")
    assert sorted(os.listdir(folder)) == ["c.txt", "manifest.json"]
    assert os.listdir(tmp_path) == ["x"]


def test_an_empty_folder_may_lie_at_the_target(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    folder_at(tmp_path / "x")
    (tmp_path / "y").mkdir()
    with atomic.new_folder(tmp_path / "y", replace=True) as temp:
        (temp / "a").write_text("a")
    assert atomic.verify_folder(tmp_path / "x") == atomic.verify_folder(tmp_path / "y") == []


def test_what_we_did_not_write_is_never_replaced_or_removed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    folder_at(tmp_path / "mixed")
    (tmp_path / "mixed" / "sub" / "notes.txt").write_text("mine")
    folder_at(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    cases = {
        "theirs": "it has no manifest.json that compress wrote",
        "file": "it is not a folder",
        "mixed": "it contains other files: sub/notes.txt",
        "link": "it is a symbolic link",
    }
    before = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*"))
    for name, why in cases.items():
        with pytest.raises(UserError, match=f"cannot be removed: {why}") as caught:
            atomic.remove_folder(tmp_path / name)
        assert caught.value.code == ExitCode.REFUSED
        with (
            pytest.raises(UserError, match=f"cannot be replaced: {why}"),
            atomic.new_folder(tmp_path / name, replace=True),
        ):
            pytest.fail("the block must not run")
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")) == before


def test_a_folder_made_by_someone_else_meanwhile_stays(tmp_path: Path) -> None:
    ours = atomic.new_folder(tmp_path / "x")
    (ours.__enter__() / "ours").write_text("ours")
    folder_at(tmp_path / "x", "theirs")
    with pytest.raises(UserError, match="exists already"):
        ours.__exit__(None, None, None)
    assert (tmp_path / "x" / "a.txt").read_text() == "theirs"
    assert os.listdir(tmp_path) == ["x"]


def test_removing_takes_the_whole_folder_and_twice_is_fine(tmp_path: Path) -> None:
    folder = folder_at(tmp_path / "x")
    atomic.remove_folder(folder)
    atomic.remove_folder(folder)
    assert os.listdir(tmp_path) == []


def test_only_plain_files_and_no_manifest_of_theirs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a plain file"), atomic.new_folder(tmp_path / "x") as temp:
        (temp / "link").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="not a plain file"), atomic.new_folder(tmp_path / "x") as temp:
        os.mkfifo(temp / "pipe")
    with pytest.raises(ValueError, match="written by new_folder alone"), atomic.new_folder(tmp_path / "x") as temp:
        (temp / "manifest.json").write_text("{}")
    assert os.listdir(tmp_path) == []


def test_without_parents_a_vanished_folder_is_not_made_anew(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="the folder to write to no longer exists") as caught,
        atomic.new_folder(tmp_path / "gone" / "x", parents=False),
    ):
        pytest.fail("the block must not run")
    assert caught.value.code == ExitCode.RESOURCES
    assert os.listdir(tmp_path) == []


def test_everything_is_synced_before_the_rename_and_the_parent_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against power cuts: no name may become visible before the bytes and names behind it are on the disk."""
    log: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def logged_fsync(descriptor: int) -> None:
        log.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def logged_rename(source: Path, target: Path) -> None:
        log.append(("rename", str(source)))
        log.extend(("content", str(p)) for p in [Path(source), *Path(source).rglob("*")])
        rename(source, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "rename", logged_rename)
    folder_at(tmp_path / "x")
    at = next(i for i, (what, _) in enumerate(log) if what == "rename")
    synced = {path for what, path in log[:at] if what == "fsync"}
    inside = {path for what, path in log if what == "content"}
    assert len(inside) == 5
    assert inside <= synced
    assert [what for what, _ in log[:at]].count("fsync") == len(inside), "each once"
    assert log[-1] == ("fsync", str(tmp_path))


def test_a_file_of_a_new_folder_is_whole_or_not_there_and_touches_no_other_name(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("old")

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    with atomic.new_folder(tmp_path / "x") as temp:
        os.link(kept, temp / "a")
        atomic.write_text(temp / "a", "new")
        with pytest.raises(KeyboardInterrupt):
            atomic.write_chunks(temp / "sub" / "b", broken(), 8)
        assert os.listdir(temp / "sub") == []
    assert kept.read_text() == "old"
    assert (tmp_path / "x" / "a").read_text() == "new"


def test_a_file_is_synced_before_it_is_named_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    fsync, replace = os.fsync, os.replace

    def logged_fsync(descriptor: int) -> None:
        log.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def logged_replace(source: Path, target: Path) -> None:
        log.append(f"{source} → {target}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "replace", logged_replace)
    atomic.write_text(tmp_path / "made" / "x", "x")
    temp = log[1]
    assert temporary.parse(Path(temp).name) == (temporary.NEW, "x")
    assert log == [str(tmp_path), temp, f"{temp} → {tmp_path / 'made' / 'x'}", str(tmp_path / "made")]


# --- leftovers


def test_leftovers_of_the_dead_go_those_of_the_living_stay(tmp_path: Path) -> None:
    dead = temporary.make_name_beside(tmp_path / "dead", temporary.NEW)
    dead.mkdir()
    (dead / "half").write_text("half")
    with atomic.new_folder(tmp_path / "living") as temp:
        assert not dead.exists()
        atomic.write_text(tmp_path / "other", "a write beside it")
        atomic.clean(tmp_path)
        assert temp.is_dir()
        (temp / "a").write_text("a")
    assert sorted(os.listdir(tmp_path)) == ["living", "other"]


def test_a_living_writer_in_another_process_keeps_its_temporary(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom compress.storage import atomic\n"
        f"with atomic.new_folder({str(tmp_path / 'x')!r}) as temp:\n"
        "    print(temp, flush=True); sys.stdin.read(); (temp / 'a').write_text('a')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(atomic.__file__).parents[2])}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        assert writer.stdout is not None
        temp = Path(writer.stdout.readline().strip())
        atomic.write_text(tmp_path / "other", "x")
        assert temp.is_dir()
        writer.communicate("")
    assert atomic.verify_folder(tmp_path / "x") == []


def test_names_like_ours_that_are_not_are_left_alone(tmp_path: Path) -> None:
    real = temporary.make_name_beside(tmp_path / "x", temporary.NEW).name
    others = [".tmp-backup", ".tmp-new-0123456701234567-x", real[:-1] + "y", "a" + real]
    for name in others:
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious").write_text("x")
    (tmp_path / real).symlink_to(tmp_path / ".tmp-backup")
    atomic.clean(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([*others, real])
    assert (tmp_path / ".tmp-backup" / "precious").exists()
    atomic.clean(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="not a temporary name of ours"):
        temporary.discard(tmp_path / ".tmp-backup")


def test_an_interrupted_replacement_is_undone(tmp_path: Path) -> None:
    folder = folder_at(tmp_path / "x", "old")
    os.rename(folder, temporary.make_name_beside(folder, temporary.OLD))
    atomic.clean(tmp_path)
    assert (folder / "a.txt").read_text() == "old"
    shutil.copytree(folder, temporary.make_name_beside(folder, temporary.OLD))
    atomic.clean(tmp_path)
    assert os.listdir(tmp_path) == ["x"]


def test_many_threads_write_the_same_file_and_each_is_whole(tmp_path: Path) -> None:
    texts = [str(i) * 10_000 for i in range(8)]
    threads = [threading.Thread(target=atomic.write_text, args=(tmp_path / "x", text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "x").read_text() in texts
    assert os.listdir(tmp_path) == ["x"]


# --- manifest


def test_verify_says_what_is_wrong(tmp_path: Path) -> None:
    folder = folder_at(tmp_path / "x")
    (folder / "a.txt").write_text("Content")
    (folder / "sub" / "b.bin").write_bytes(b"short")
    (folder / "extra").write_text("not ours, not looked at")
    assert atomic.verify_folder(folder) == [
        "a.txt: content changed (sha256 differs)",
        "sub/b.bin: 5 bytes instead of 300",
    ]
    (folder / "sub" / "b.bin").unlink()
    (folder / "a.txt").unlink()
    (folder / "a.txt").mkdir()
    assert atomic.verify_folder(folder) == ["a.txt: not a file", "sub/b.bin: missing"]
    assert atomic.verify_folder(tmp_path / "nowhere") == [
        "has no manifest.json: it is incomplete, or was not written by compress"
    ]
    (folder / "manifest.json").write_text("{")
    assert atomic.verify_folder(folder) == ["manifest.json is damaged: its content has changed"]


def test_a_manifest_of_a_newer_version_is_named(tmp_path: Path) -> None:
    folder = folder_at(tmp_path / "x")
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(UserError, match="its version is 2, this program supports up to 1: upgrade compress"):
        atomic.read_manifest(folder)
    assert not atomic.is_ours(folder)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", "."])
def test_a_manifest_cannot_point_outside(tmp_path: Path, name: str) -> None:
    (tmp_path / "manifest.json").write_bytes(manifest.encode({name: atomic.FileRecord("0" * 64, 1)}))
    assert atomic.verify_folder(tmp_path) == ["manifest.json is damaged: its content has changed"]


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    folder = folder_at(tmp_path / "x")
    for path in (folder / "a.txt", folder / "sub" / "b.bin", folder / "manifest.json"):
        good = path.read_bytes()
        for position in range(0, len(good), max(1, len(good) // 100)):
            for change in (1 << position % 8, 0x29):  # 0x29 turns a space into a tab: still the same JSON
                path.write_bytes(good[:position] + bytes([good[position] ^ change]) + good[position + 1 :])
                assert atomic.verify_folder(folder), (path.name, position)
        path.write_bytes(good)
    assert atomic.verify_folder(folder) == []


@settings(max_examples=scaled(200), deadline=None)
@given(data=st.binary(max_size=400) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(repr))
def test_no_manifest_whatever_raises_anything_but_a_user_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes | str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_bytes(data if isinstance(data, bytes) else data.encode())
    assert len(atomic.verify_folder(folder)) == 1


def test_the_newest_valid_wins_and_says_what_it_passed_over(tmp_path: Path) -> None:
    for step in (9, 10, 100, 1000):
        folder_at(tmp_path / f"step-{step}")
    os.utime(tmp_path / "step-9", (2e9, 2e9))  # clocks say nothing
    assert atomic.newest_valid(tmp_path, "step-*") == (tmp_path / "step-1000", [])
    (tmp_path / "step-1000" / "a.txt").write_text("Content")
    (tmp_path / "step-100" / "manifest.json").unlink()
    found, passed_over = atomic.newest_valid(tmp_path, "step-*")
    assert found == tmp_path / "step-10"
    assert passed_over == [
        (tmp_path / "step-1000", ["a.txt: content changed (sha256 differs)"]),
        (tmp_path / "step-100", ["has no manifest.json: it is incomplete, or was not written by compress"]),
    ]
    shutil.rmtree(tmp_path / "step-9")
    shutil.rmtree(tmp_path / "step-10")
    assert atomic.newest_valid(tmp_path, "step-*")[0] is None
    assert len(atomic.newest_valid(tmp_path, "step-*")[1]) == 2


def test_no_candidate_at_all(tmp_path: Path) -> None:
    (tmp_path / "step-1").write_text("a file")
    temporary.make_name_beside(tmp_path / "step-2", temporary.NEW).mkdir()
    assert atomic.newest_valid(tmp_path, "*") == (None, [])
    assert atomic.newest_valid(tmp_path / "nowhere", "*") == (None, [])


# --- space


def test_free_bytes_of_a_path_that_is_not_there_yet(tmp_path: Path) -> None:
    assert atomic.free_bytes(tmp_path / "a" / "b") == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)
    atomic.require_free(tmp_path / "a", 1)
    with pytest.raises(UserError, match=r"the disk is full: at least 1000000\.0 TB needed") as caught:
        atomic.require_free(tmp_path / "a", 10**18)
    assert caught.value.code == ExitCode.RESOURCES


@pytest.mark.parametrize(("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (2.5e9, "2.5 GB")])
def test_bytes_for_people(count: float, text: str) -> None:
    assert atomic.human_bytes(count) == text


def test_a_folder_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    place = tmp_path / "comparison"
    assert find_free_folder(place) == place
    place.mkdir()
    (tmp_path / "comparison-2").symlink_to(tmp_path / "nowhere")
    assert find_free_folder(place) == tmp_path / "comparison-3"
    assert [take_free_folder(place).name for _ in range(2)] == ["comparison-3", "comparison-4"]
    assert (tmp_path / "comparison-4").is_dir()
