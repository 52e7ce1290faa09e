"""What the README says is so: its commands parse, its tree stands, its links lead somewhere.

The commands for a model and data of one's own are run at toy scale in tests/e2e/test_readme_commands.py.
"""

from __future__ import annotations

import ast
import itertools
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from compress.cli import main as frame
from compress.errors import ExitCode
from compress.recipe.library import names as recipe_names

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLAIN = FENCE.sub("", README)


def blocks(language: str) -> list[str]:
    return [text for found, text in FENCE.findall(README) if found == language]


def lines() -> list[str]:
    """Every command of the shell blocks, comments and continuations undone."""
    text = "\n".join(blocks("sh")).replace("\\\n", " ")
    joined = (line.partition(" #")[0].strip() for line in text.splitlines())
    return [part.strip() for line in joined for part in line.split(" && ") if part.strip() and not part.startswith("#")]


OURS = [line for line in lines() if line.split()[0] == "compress"]
# `compress runs` or `compress run RECIPE` in running text and tables; not `compress.json`, `compress/cli`.
MENTIONED = sorted({m[1] for m in re.finditer(r"`compress ([a-z][a-z-]*)[^`]*`", PLAIN)})


def test_there_is_something_to_check() -> None:
    assert any(line.startswith("compress distill --recipe distilbert") for line in OURS)
    assert any(line.startswith("pip install -c constraints.txt -e .") for line in lines())
    assert len(OURS) >= 5


def parsed(group: click.Group, words: list[str], parent: click.Context | None = None) -> None:
    """Parse as the command line would, running nothing. Raises click's complaint."""
    name, command, rest = group.resolve_command(parent or click.Context(group, info_name="compress"), words)
    assert name is not None
    assert command is not None
    with command.make_context(name, list(rest), parent, ignore_unknown_options=False) as context:
        if isinstance(command, click.Group) and rest:
            parsed(command, list(rest), context)


@pytest.mark.parametrize("line", OURS)
def test_a_command_parses(line: str) -> None:
    words = shlex.split(line)[1:]
    parsed(frame.cli, words)
    if "--recipe" in words:
        assert words[words.index("--recipe") + 1] in recipe_names()


@pytest.mark.parametrize("name", MENTIONED)
def test_a_mentioned_command_exists(name: str) -> None:
    assert name in frame._files()


def test_every_command_is_mentioned() -> None:
    told = set(MENTIONED) | {line.split()[1] for line in OURS}
    assert frame._files().keys() - told == set()


def test_every_mentioned_flag_exists() -> None:
    context = click.Context(frame.cli)
    known = {"--help", "--version", "--index-url", "--nproc-per-node"}  # pip's and torchrun's own among them
    for name in frame.cli.list_commands(context):
        command = frame.cli.get_command(context, name)
        inner = command.commands.values() if isinstance(command, click.Group) else [command]
        known |= {flag for one in inner if one for p in one.params for flag in (*p.opts, *p.secondary_opts)}
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README))
    assert mentioned - known == set()


def test_the_installation_names_files_and_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installs = [shlex.split(line) for line in lines() if line.startswith("pip install")]
    for words in installs:
        for flag, value in itertools.pairwise(words):
            if flag == "-c":
                assert (ROOT / value).is_file()
            if flag == "-e":
                extras = re.fullmatch(r"\.(?:\[([\w,]+)\])?", value)
                assert extras, value
                assert set((extras[1] or "").split(",")) - {""} <= project["optional-dependencies"].keys()
    assert any("pytest" in line.split() for line in lines())
    assert project["requires-python"].removeprefix(">=") in README


# --- the tree -----------------------------------------------------------------------------------------------------


def tree() -> list[Path]:
    """The paths that the annotated tree names, with their indentation as folders."""
    (text,) = [block for block in blocks("") if "compress/" in block and "recipes/" in block]
    found: list[Path] = []
    above: list[tuple[int, Path]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        above = [(d, p) for d, p in above if d < depth]
        folder = above[-1][1] if above else Path()
        named = re.split(r"\s{2,}", line.strip())[0].split(" ")
        found += [folder / name for name in named]
        if named[0].endswith("/"):
            above.append((depth, folder / named[0]))
    return found


def test_everything_in_the_tree_exists() -> None:
    missing = [str(path) for path in tree() if not (ROOT / path).exists()]
    assert missing == []
    assert len(tree()) > 20


def test_the_tree_names_every_part() -> None:
    """Folders at the top, and in `compress` every folder and every file that is not a package's own."""
    named = {str(path) for path in tree()}
    inside = {p for p in (ROOT / "compress").iterdir() if not p.name.startswith(("_", "."))}
    wanted = {str(p.relative_to(ROOT)) for p in inside if p.is_dir() or p.suffix == ".py"}
    wanted |= {"recipes", "evaluation", "benchmarks", "tests", "mlruns"}
    assert wanted - named == set()


# --- words --------------------------------------------------------------------------------------------------------


def table(file: str, name: str) -> dict[str, list[str]]:
    """The dictionary that an end-to-end test calls `name`: key → the strings in the tuple that it leads to."""
    for node in ast.walk(ast.parse((ROOT / "tests/e2e" / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == name:
                return {
                    _text(k): [_text(p) for p in v.elts if isinstance(p, ast.Constant)]
                    for k, v in zip(node.value.keys, node.value.values, strict=True)
                    if isinstance(v, ast.Tuple)
                }
    raise AssertionError(f"{file} has no {name}")


def _text(node: ast.expr | None) -> str:
    assert isinstance(node, ast.Constant)
    return str(node.value)


def test_the_table_of_families_names_what_the_tests_cover() -> None:
    families = {kind: row[0] for kind, row in table("test_families_verbs.py", "FAMILIES").items()}
    classes = list(dict.fromkeys(row[1] for row in table("test_families_tasks.py", "TASKS").values()))
    told = re.findall(r"^\| `([a-z-]+)` \| `(\w+)` \| `(\w+)` \| `(\w+)` \|", README, re.MULTILINE)
    assert {row[0]: list(row[1:]) for row in told} == {
        family: [prefix + name for name in classes] for family, prefix in families.items()
    }


def test_links_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in re.findall(r"^#+ (.+)$", README, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)\s]+)\)", PLAIN):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif not target.startswith(("https://", "http://")):
            assert (ROOT / target.partition("#")[0]).exists(), f"{target} is not there"


def test_paths_in_running_text_exist() -> None:
    """`compress/…`, `tests/…` and the like, where no placeholder stands in them."""
    paths = re.findall(r"`((?:compress|evaluation|recipes|tests|benchmarks|mlruns)/[^`\s<>…]*)`", PLAIN)
    made = ("mlruns/mlflow.db",)
    missing = [path for path in paths if path not in made and not (ROOT / path).exists()]
    assert missing == []


def test_every_exit_code_is_told() -> None:
    told = " ".join(re.findall(r"Exit codes:.*?\n\n", README, re.DOTALL))
    assert {int(number) for number in re.findall(r"\b\d+\b", told)} == {int(code) for code in ExitCode}


def test_the_results_are_filled_in() -> None:
    assert "<!--" not in README, "a placeholder is left"
    assert not re.search(r"\bTODO\b|\bTBD\b", README)
