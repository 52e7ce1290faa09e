"""`compress recipes`: list, show, copy, validate, schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compress.cli.main import main
from compress.errors import ExitCode
from compress.recipe import load_recipe, renames
from compress.recipe.library import folder as shipped
from compress.recipe.library import names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "list"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    for name in names():
        assert f"  {name} " in told.out


def test_list_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert sorted(row["name"] for row in rows) == names()
    assert [row["experimental"] for row in rows] == sorted(row["experimental"] for row in rows)
    assert all(Path(row["path"]).is_file() for row in rows)


def test_show_prints_the_file_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "show", "smoke"]) == 0
    assert capsys.readouterr().out == (shipped() / "smoke.yaml").read_text(encoding="utf-8")


def test_show_resolved_is_what_would_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "show", "smoke", "--resolved", "--set", "seed=9"]) == 0
    (folder / "x.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    resolved = load_recipe("./x.yaml")
    assert resolved.seed == 9
    assert resolved.stages == load_recipe("smoke").stages


@pytest.mark.parametrize("words", [("show", "--resolved"), ("validate",)], ids=" ".join)
def test_an_old_name_is_a_warning(
    words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renames, "_warned", set())
    (folder / "x.yaml").write_text("extends: share\nstages: {0: {start: {kind: mean}}}\n", encoding="utf-8")
    assert main(["recipes", *words, "./x.yaml"]) == 0
    assert capsys.readouterr().err.startswith("warning: x.yaml:2:14: the recipe key 'start' is now 'init'")


def test_copy_makes_a_file_that_works(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "copy", "smoke"]) == 0
    assert capsys.readouterr().out == "./smoke.yaml\n"
    assert load_recipe("./smoke.yaml") == load_recipe("smoke")
    (folder / "mine").mkdir()
    assert main(["recipes", "copy", "smoke", "mine"]) == 0
    assert main(["recipes", "copy", "smoke", "mine/other.yaml"]) == 0
    assert load_recipe("mine/other.yaml").name == "other"
    assert sorted(p.name for p in (folder / "mine").iterdir()) == ["other.yaml", "smoke.yaml"]


def test_validate_all_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "validate"]) == 0
    assert "teacher: valid, tokenizer → pretrain → finetune\n" in capsys.readouterr().out


def test_validate_tells_every_bad_recipe(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.yaml").write_text("extends: smoke\nsed: 1\n")
    (folder / "b.yaml").write_text("a: [")
    assert main(["recipes", "validate", "./a.yaml", "smoke", "./b.yaml"]) == ExitCode.INPUT
    told = capsys.readouterr()
    assert told.out == "smoke: valid, distill → distill\n"
    assert told.err == (
        "error: a.yaml:2:1: sed: unknown key; did you mean 'seed'?\n"
        "error: b.yaml:1:5: not valid YAML: expected the node content, but found '<stream end>'\n"
    )


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "schema"]) == 0
    assert "stages" in json.loads(capsys.readouterr().out)["properties"]


MISTAKES = [
    (["show", "smok"], 2, "error: unknown recipe 'smok'; did you mean 'smoke'?"),
    (["show", "smoke", "--set", "seed=1"], 2, "error: --set: only applies with --resolved; add --resolved"),
    (
        ["show", "smoke", "--resolved", "--set", "sed=1"],
        2,
        "error: --set sed=1: sed: unknown key; did you mean 'seed'?",
    ),
    (["copy", "smoke", "there.yaml"], 3, "error: there.yaml exists already; name another file"),
    (
        ["copy", "smoke", "no/x.yaml"],
        2,
        "error: TARGET: folder no does not exist; create it first, or name another folder",
    ),
    (["copy", "smok"], 2, "error: unknown recipe 'smok'; did you mean 'smoke'?"),
    (
        ["validate", "there.yaml"],
        2,
        "error: there.yaml:1:1: the file is empty; a recipe is a mapping of keys to values",
    ),
]


@pytest.mark.parametrize(("args", "code", "message"), MISTAKES, ids=[" ".join(a) for a, _, _ in MISTAKES])
def test_mistakes(args: list[str], code: int, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "there.yaml").write_text("")
    assert main(["recipes", *args]) == code
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", message + "\n")
    assert [p.name for p in folder.iterdir()] == ["there.yaml"], "nothing is left behind"
