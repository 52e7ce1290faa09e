"""The folder of a run: which one is taken, what is refused, and the command that continues it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from compress.contracts import RunOptions
from compress.errors import ExitCode, UserError
from compress.recipe import Recipe, load_recipe
from compress.run import folder as folders
from compress.run.folder import Request, RunFolder, claim, is_finished, is_unfinished, note_new_run, resume_command
from compress.storage.lock import Holder, RunStatus

FINETUNE = {"kind": "finetune", "training": {"steps": 2}}


def recipe(**more: object) -> Recipe:
    return load_recipe({"name": "x", "data": {"source": "d"}, "stages": [FINETUNE], **more})


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    monkeypatch.chdir(tmp_path)
    return Request(recipe())


def begun(request: Request, name: str, status: str) -> Path:
    """A run of ours that came so far."""
    path = Path("runs") / name
    RunFolder(path, request, True).record(status, {"data": "abc"}, "here")
    return path


def refused(request: Request, options: RunOptions) -> str:
    with pytest.raises(UserError) as found:
        claim(request, options)
    assert found.value.code in (ExitCode.REFUSED, ExitCode.INPUT)
    return found.value.line()


# --- what was asked for ---------------------------------------------------------------------------------------------


def test_a_request_is_known_by_all_that_can_change_a_result() -> None:
    plain = Request(recipe())
    others = [
        Request(recipe(seed=1)), Request(recipe(), "finetune"), Request(recipe(), inputs={"tokenizer": Path("t")}),
        Request(recipe(), begin=0),
    ]  # fmt: skip
    assert len({one.digest() for one in (plain, *others)}) == 5
    assert plain.digest() == Request(recipe()).digest()
    two = {"a": "1", "b": "2"}
    assert Request(recipe(), inputs=two).digest() == Request(recipe(), inputs=dict(reversed(two.items()))).digest()


# --- which folder ---------------------------------------------------------------------------------------------------


def test_the_next_free_folder(request_: Request) -> None:
    assert claim(request_, RunOptions()).path == Path("runs/x")
    begun(request_, "x", "finished")
    begun(request_, "x-2", "stopped")
    found = claim(request_, RunOptions())
    assert (found.path, found.new) == (Path("runs/x-3"), True)


def test_commands_that_start_at_once_take_different_folders(request_: Request) -> None:
    first, second = claim(request_, RunOptions()), claim(request_, RunOptions())
    assert (first.path, second.path) == (Path("runs/x"), Path("runs/x-2"))
    with first.held():
        first.record("finished", {}, "here")
    with pytest.raises(UserError, match="no data"), second.held():
        raise UserError("no data")
    assert first.path.is_dir()
    assert not second.path.exists(), "nothing was begun in it"
    named = claim(request_, RunOptions(output=Path("out")))
    with named.held():
        assert not named.path.exists(), "what is named is made when the run begins"


def test_resume_goes_on_with_the_newest_unfinished_run_of_the_request(request_: Request) -> None:
    other = Request(recipe(seed=9))
    for name, request, status in (
        ("x", request_, "stopped"), ("x-2", request_, "failed"), ("x-3", other, "stopped"),
        ("x-4", request_, "finished"),
    ):  # fmt: skip
        begun(request, name, status)
    found = claim(request_, RunOptions(resume=True))
    assert (found.path, found.new) == (Path("runs/x-2"), False)


def test_resume_of_a_folder_that_is_not_there_says_that_it_begins_anew(request_: Request) -> None:
    """Jobs that may be stopped at any time are started with --resume; a wrong name is started too."""
    said: list[str] = []
    begun(request_, "model", "stopped")
    for options in (
        RunOptions(resume=True), RunOptions(output=Path("runs/x")), RunOptions(output=Path("runs/model"), resume=True),
        RunOptions(output=Path("runs/other"), resume=True), RunOptions(output=Path("runs/modle"), resume=True),
    ):  # fmt: skip
        note_new_run(options, said.append)
    assert said == [
        "nothing to resume in runs/other: starting from the beginning",
        "nothing to resume in runs/modle: starting from the beginning; did you mean 'model'?",
    ]


def test_resume_without_a_run_of_the_request(request_: Request) -> None:
    assert "there is no unfinished run of x to resume" in refused(request_, RunOptions(resume=True))
    begun(Request(recipe(seed=9)), "x", "stopped")
    assert "was started with another recipe or other options" in refused(request_, RunOptions(resume=True))
    found = claim(request_, RunOptions(resume=True), lambda: True)
    assert (found.path, found.new) == (Path("runs/x-2"), True), "it was interrupted while its teacher was trained"


def test_a_named_folder(request_: Request, tmp_path: Path) -> None:
    there = RunOptions(output=Path("out"))
    assert claim(request_, there).new
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".run.lock").write_text("", encoding="utf-8")
    assert claim(request_, there).new, "of a run that was killed before it had written its record"
    (tmp_path / "out" / "photo.jpg").write_text("", encoding="utf-8")
    assert "contains no run of compress" in refused(request_, there)
    assert "the output is a file" in refused(request_, RunOptions(output=Path("out/photo.jpg")))
    with pytest.raises(UserError, match=r"photo\.jpg/new: a part of the path is a file, not a folder"):
        claim(request_, RunOptions(output=Path("out/photo.jpg/new")))


def test_what_changed_since_the_run_began_is_named(request_: Request) -> None:
    path = begun(request_, "x", "stopped")
    options = RunOptions(output=path, resume=True)
    plan = {**FINETUNE, "training": {"steps": 2, "max_tokens": 2048}}
    other = Request(recipe(stages=[plan], seed=1))
    assert "; changed: " not in refused(other, options), "the run ended before it wrote its recipe"
    (path / "recipe.yaml").write_text(request_.recipe.dump_yaml(), encoding="utf-8")
    assert "; changed: seed 0 → 1, stages.0.training.max_tokens 8192 → 2048; use that command" in refused(
        other, options
    )
    last = Request(recipe(stages=[{**FINETUNE, "training": {"steps": 2, "keep_best": False}}]))
    assert "; changed: stages.0.training.keep_best true → false;" in refused(last, options)
    assert "; changed: " not in refused(Request(recipe(), "finetune"), options)


def test_a_run_is_continued_only_on_request(request_: Request) -> None:
    path = begun(request_, "x", "stopped")
    assert "already contains a run: recipe x, stopped; use --resume" in refused(request_, RunOptions(output=path))
    assert not claim(request_, RunOptions(output=path, resume=True)).new
    killed = begun(request_, "y", "running")  # nobody holds its lock
    assert "a run: recipe x, its process has died; use --resume" in refused(request_, RunOptions(output=killed))


def test_a_folder_in_use_is_refused_with_its_holder(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    path = begun(request_, "x", "running")
    holder = Holder(7, "there", "boot", "2026-01-01", "1", 0.0)
    monkeypatch.setattr(folders.lock, "status", lambda _: RunStatus("running", holder))
    said = refused(request_, RunOptions(output=path, resume=True))
    assert "another run uses this folder: process 7 on there" in said


# --- its record -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "finished"), [("finished", True), ("stopped", False), ("failed", False), ("done until 0-cut", False)]
)
def test_how_far_a_run_came(request_: Request, status: str, finished: bool) -> None:
    path = begun(request_, "x", status)
    assert (is_finished(path), is_unfinished(path)) == (finished, not finished)
    assert not is_unfinished(Path("runs/none"))


def test_a_run_goes_on_only_with_the_data_that_it_began_with(request_: Request) -> None:
    path = begun(request_, "x", "stopped")
    RunFolder(path, request_, False).begin({"data": "abc", "teacher": "new"})
    with pytest.raises(UserError, match="the run cannot be resumed: its data changed since it started"):
        RunFolder(path, request_, False).begin({"data": "other"})
    with pytest.raises(UserError, match="another run has started in this folder"):
        RunFolder(path, request_, True).begin({"data": "abc"})
    RunFolder(Path("runs/none"), request_, True).begin({"data": "abc"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("distill --seed 1", "distill --seed 1 --output 'runs/a b' --resume"),
        ("distill --output runs/q", "distill --output runs/q --resume"),
        ("distill --output=runs/q --resume", "distill --output=runs/q --resume"),
    ],
)
def test_the_command_that_resumes(monkeypatch: pytest.MonkeyPatch, words: str, said: str) -> None:
    monkeypatch.setattr(sys, "argv", ["compress", *words.split()])
    assert resume_command(Path("runs/a b")).endswith(f" {said}")


def test_commands_without_a_run_ask_for_a_new_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="an output folder is required; add --output FOLDER"):
        folders.new_output(RunOptions())
    with pytest.raises(UserError, match="exists already") as taken:
        folders.new_output(RunOptions(output=tmp_path))
    assert taken.value.code == ExitCode.REFUSED
    assert folders.new_output(RunOptions(output=tmp_path / "new")) == tmp_path / "new"
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="a part of the path is a file, not a folder"):
        folders.new_output(RunOptions(output=tmp_path / "file" / "new"))
