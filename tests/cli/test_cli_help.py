"""What `--help` shows, what the shell completes, and that mistakes are answered before anything heavy is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from compress import registry
from compress.cli import main as frame
from compress.cli._flags import recipe_default
from compress.cli._help import ALL, MAIN
from compress.cli._loading import Announcer
from compress.cli.run import TABLE as RUN
from compress.errors import UserError
from compress.recipe import LoadedRecipe, parse_override
from compress.stages.distill.flags import TABLE as DISTILL
from compress.stages.prune_layers.flags import TABLE as PRUNE_LAYERS
from compress.stages.prune_width.flags import TABLE as PRUNE_WIDTH
from compress.stages.quantize.flags import TABLE as QUANTIZE
from compress.stages.shared.flags import Table, training_edits

ROOT = Path(__file__).parents[2]


def command(name: str) -> click.Command:
    found = frame.cli.get_command(click.Context(frame.cli), name)
    assert found is not None
    return found


def page(name: str, *, every: bool = False) -> str:
    one = command(name)
    with click.Context(one, info_name=name) as context:
        context.meta[ALL] = every
        return one.get_help(context)


# --- help -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAIN)
def test_the_main_options_are_about_ten_and_exist(name: str) -> None:
    known = {flag for p in command(name).params for flag in (*p.opts, *p.secondary_opts)}
    assert set(MAIN[name]) <= known
    assert 3 <= len(MAIN[name]) == len(set(MAIN[name])) <= 12


@pytest.mark.parametrize("name", sorted(frame._files()))
def test_a_command_with_many_options_names_those_that_matter(name: str) -> None:
    one = command(name)
    if not isinstance(one, click.Group):
        shown = [p for p in one.params if isinstance(p, click.Option) and not p.hidden]
        assert len(shown) <= 16 or name in MAIN


def test_help_leaves_out_what_help_all_shows() -> None:
    short, long = page("distill"), page("distill", every=True)
    for flag in ("--teacher", "--epochs", "--output", "--help-all"):
        assert f"{flag} " in short
    for flag in ("--bad-tags", "--tracking-uri", "--init"):
        assert flag not in short
        assert flag in long
    assert short.index("Input:") < short.index("Method:") < short.index("Training:") < short.index("Output:")


def test_help_all_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(["distill", "--help-all"]) == 0
    assert "--bad-tags" in capsys.readouterr().out


def test_help_lists_the_names_that_a_flag_takes() -> None:
    text = " ".join(page("prune-layers").replace("-\n", "-").split())
    assert all(kind.replace("_", "-") in text for kind in registry.parts("compress.stages.prune_layers.criteria"))


@pytest.mark.parametrize(
    ("table", "flag", "recipe", "path"),
    [
        (PRUNE_LAYERS, "--criterion", "prune-layers", "stages.0.criterion.kind"),
        (QUANTIZE, "--scheme", "quantize", "stages.0.scheme"),
        (PRUNE_WIDTH, "--learning-rate", "prune-width", "stages.1.training.learning_rate"),
    ],
)
def test_defaults_are_those_of_the_recipe(table: Table, flag: str, recipe: str, path: str) -> None:
    value: Any = LoadedRecipe.read(recipe).content
    for step in path.split("."):
        value = value[int(step)] if isinstance(value, list) else value[step]
    (one,) = [one for one in table.flags if one.name == flag]
    assert recipe_default(table, one) == (f"{value:g}" if isinstance(value, float) else str(value).replace("_", "-"))


def test_a_default_is_shown_as_it_would_be_typed() -> None:
    """The recipe says which share goes, the flag which stays."""
    (keep,) = [one for one in PRUNE_WIDTH.flags if one.name == "--keep"]
    assert keep.shown(0.3) == "0.7"
    (layers,) = [one for one in DISTILL.flags if one.name == "--layers"]
    assert layers.shown([0, 2]) == ""


# --- completion -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "flag", "typed", "found"),
    [
        ("prune-layers", "--criterion", "gree", ["greedy-loss"]),
        ("prune-layers", "--criterion", "cka,gree", ["cka,greedy-loss"]),
        ("prune-width", "--importance", "mag", ["magnitude"]),
        ("share", "--pattern", "att", ["attention"]),
        ("share", "--init", "fi", ["fisher"]),
        ("factorize", "--method", "w", ["whitened"]),
        ("sparsify", "--method", "rec", ["reconstruct"]),
        ("quantize", "--scheme", "lsq", ["lsq", "lsq-plus"]),
        ("quantize", "--mode", "q", ["qat"]),
        ("distill", "--task", "regr", ["regression"]),
        ("distill", "--data", "opinions-p", ["opinions-pairs"]),
        ("distill", "--init", "sv", ["svd"]),
    ],
)
def test_values_are_completed(name: str, flag: str, typed: str, found: list[str]) -> None:
    one = command(name)
    (option,) = [p for p in one.params if flag in p.opts]
    with click.Context(one, info_name=name) as context:
        assert [item.value for item in option.shell_complete(context, typed)] == found


# --- mistakes ---------------------------------------------------------------------------------------------------

MISTAKES = (
    ["trian"],
    ["distill", "--lerning-rate", "3"],
    ["evaluate"],
    ["quantize"],
    ["quantize", ".", "--mode", "x"],
    ["factorize", ".", "--method", "svdd"],
    ["prune-layers", ".", "--criterion", "cka,ck"],
    ["share", ".", "--pattern", "al"],
    ["quantize", ".", "--scheme", "statc"],
    ["prune-width", ".", "--keep", "3"],
    ["distill", "--epochs", "many"],
    ["distill", "--recipe", "distilbrt"],
    ["run", "nothing"],
    ["distill", "--teacher", "./none", "--data", "opinions"],
    ["evaluate", "./none", "--data", "opinions"],
    ["finetune", "--model", ".", "--data", "none.csv"],
    ["finetune", "--model", ".", "--data", "opinions", "--task", "regresion"],
    ["pretrain", "--corpus", "none.txt"],
    ["predict", ".", "--file", "none.txt"],
)


def test_mistakes_are_answered_without_torch(tmp_path: Path) -> None:
    code = (
        "import json, sys; from compress.cli.main import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    code = main(words)\n"
        "    print(code, *[m for m in ('torch', 'mlflow', 'pandas', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(MISTAKES)], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120,
    )  # fmt: skip
    assert done.stdout.split("\n")[:-1] == ["2"] * len(MISTAKES), done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(MISTAKES)
    assert all(line.startswith("error: ") for line in lines)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["factorize", ".", "--method", "svdd"], "--method: unknown method 'svdd'; did you mean 'svd'?"),
        (["share", ".", "--pattern", "al"], "--pattern: unknown pattern 'al'; did you mean 'all'?"),
        (["finetune", ".", "--task", "regresion"], "--task: unknown task 'regresion'; did you mean 'regression'?"),
        (["prune-layers", ".", "--keep", "0"], "--keep: 0 is not possible"),
    ],
)
def test_a_mistake_is_named(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(words) == 2
    assert line in capsys.readouterr().err


# --- stages -----------------------------------------------------------------------------------------------------


def sets(recipe: str, text: str) -> list[dict[str, Any]]:
    return LoadedRecipe.read(recipe, [parse_override(text)]).rows


@pytest.mark.parametrize("name", ["1", "1-distill", "distill"])
def test_set_takes_the_names_of_the_plan(name: str) -> None:
    assert sets("prune-layers", f"stages.{name}.training.epochs=7")[1]["training"]["epochs"] == 7
    assert sets("prune-layers", "stages.prune-layers.keep=2")[0]["keep"] == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("stages.2.keep=3", "stages.2: no such stage: stages count from 0: 0-prune_layers, 1-distill"),
        ("stages.distil.seed=3", "stages.distil: 'distil' is no stage; did you mean 'distill'?"),
    ],
)
def test_an_unknown_stage_is_answered_with_its_names(text: str, line: str) -> None:
    with pytest.raises(UserError) as raised:
        sets("prune-layers", text)
    assert line in raised.value.line()


def test_a_kind_of_several_stages_is_answered_with_their_paths() -> None:
    with pytest.raises(UserError, match=r"2 stages have this kind; write one of stages.0-distill, stages.1-distill"):
        sets("smoke", "stages.distill.training.epochs=2")


def test_training_flags_of_run_change_every_stage_that_trains() -> None:
    rows = LoadedRecipe.read("teacher").rows
    made = {one.path: one.value for one in training_edits(RUN, "teacher", rows, {**RUN.none_given(), "epochs": 2.0})}
    trained = [place for place, row in enumerate(rows) if "training" in row]
    assert len(trained) == 2
    assert made == {f"stages.{at}.training.{key}": v for at in trained for key, v in (("epochs", 2.0), ("steps", None))}


def test_run_prints_the_recipe_with_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """It is a recipe of its own, and nothing runs."""
    words = ["run", "prune-layers", "--lr", "0.001", "--set", "stages.distill.training.epochs=7", "--print-recipe"]
    assert frame.main(words) == 0
    made = yaml.safe_load(capsys.readouterr().out)
    assert (made["stages"][1]["training"]["learning_rate"], made["stages"][1]["training"]["epochs"]) == (0.001, 7)


# --- loading ----------------------------------------------------------------------------------------------------


def test_an_import_that_takes_seconds_is_announced(tmp_path: Path) -> None:
    """Once, when it happens; not where somebody only looks whether the package is there."""
    (tmp_path / "mlflow.py").write_text("VALUE = 3\n")
    code = (
        "import sys; from importlib.util import find_spec; from compress.cli._loading import Announcer\n"
        "a = Announcer(print); a.install(); find_spec('mlflow'); print('looked'); import mlflow, json; print('done')"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout.splitlines() == ["looked", "loading mlflow …", "done"]


def test_nothing_is_announced_after_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    frame.main(["recipes", "list"])
    assert not any(isinstance(one, Announcer) for one in sys.meta_path)
    assert "loading" not in capsys.readouterr().err
