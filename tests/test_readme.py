"""What README and the pages of docs/ say is so: commands parse, trees stand, links lead somewhere, recipes exist.

The README's commands for a model and data of one's own are run at toy scale in tests/e2e/test_readme_commands.py, the
tutorial's in tests/e2e/test_tutorial.py. tests/test_reference.py holds docs/reference to the code.
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
from docpages import GENERATED, PAGES, README, ROOT, WRITTEN, Page, page, parse

from compress.cli import main as frame
from compress.errors import ExitCode
from compress.recipe.library import names as recipe_names

INDEX = page("docs/README.md")
OURS = sorted({(one.name, line) for one in WRITTEN for line in one.ours()})
MENTIONED = sorted({(one.name, words[0]) for one in WRITTEN for words in one.mentioned()})
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
FOREIGN_FLAGS = {"--env-manager", "--help", "--help-all", "--version", "--torch-backend", "--nproc-per-node"}
FOREIGN_FLAGS |= {"--backend-store-uri", "--artifacts-destination", "--max-restarts", "--nnodes"}
FOREIGN_FLAGS |= {"--rdzv-backend", "--rdzv-id", "--rdzv-endpoint", "--rdzv-conf", "--local-addr"}
FOREIGN_FLAGS |= {"--nodes", "--ntasks-per-node", "--gpus-per-node", "--requeue", "--open-mode"}
"""pip's, torchrun's, mlflow's and Slurm's own among them."""
SERVER_FLAGS = {"--upgrade", "--default-artifact-root", "--uvicorn-opts", "--header", "--app-dir"}
"""pip's, and those with which we start mlflow's server."""

LISTS = {
    "docs/methods/distillation.md": ("../reference/parts.md#objectives", "../reference/recipes.md"),
    "docs/methods/layers.md": ("../reference/parts.md#layer-criteria",),
    "docs/methods/width.md": ("../reference/parts.md#importances",),
    "docs/methods/low-rank.md": ("../reference/parts.md#factorization-methods",),
    "docs/methods/sparsity.md": ("../reference/parts.md#sparsification-methods",),
    "docs/howto/own-data.md": ("../reference/parts.md#tasks",),
}
"""Page → the generated lists that name every part it writes about: a new part needs no line on the page."""


def named(pages: list[Page]) -> list:
    return [pytest.param(one, id=one.name) for one in pages]


def test_there_is_something_to_check() -> None:
    assert any(line.startswith("compress distill --recipe distilbert") for line in README.ours())
    assert any(line.startswith("pip install -c constraints.txt -e .") for line in README.lines())
    assert len(README.ours()) >= 5
    assert len(OURS) >= 40
    assert len(WRITTEN) >= 20


# --- commands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("where", "line"), OURS)
def test_a_command_parses(where: str, line: str) -> None:
    words = shlex.split(line)[1:]
    parse(frame.cli, words)
    if "--recipe" in words:
        name = words[words.index("--recipe") + 1]
        assert name in recipe_names() or name.startswith("./"), f"{where}: no recipe {name}"
    if words[0] == "run":
        assert words[1] in recipe_names() or words[1].startswith("./"), f"{where}: no recipe {words[1]}"


@pytest.mark.parametrize(("where", "name"), MENTIONED)
def test_a_mentioned_command_exists(where: str, name: str) -> None:
    assert name in frame._files(), where


def test_every_command_is_mentioned() -> None:
    told = {words[0] for words in README.mentioned()} | {line.split()[1] for line in README.ours()}
    assert frame._files().keys() - told == set(), "the README's table names every command"


def test_every_mentioned_flag_exists() -> None:
    known = FOREIGN_FLAGS | flags_of(frame.cli)
    wrong = {f"{one.name}: {flag}" for one in PAGES for flag in FLAG.findall(one.text) if flag not in known}
    # A script of ours in benchmarks/ has flags of its own.
    scripts = {flag for path in (ROOT / "benchmarks").glob("*.py") for flag in FLAG.findall(path.read_text())}
    assert {line for line in wrong if line.split(": ")[1] not in scripts} == set()


def test_every_flag_that_a_message_names_exists() -> None:
    known = FOREIGN_FLAGS | SERVER_FLAGS | flags_of(frame.cli)
    files = [path for path in (ROOT / "compress").rglob("*.py") if path.name != "_words.py"]  # words of other tools
    wrong = {f"{path.relative_to(ROOT)}: {flag}" for path in files for flag in FLAG.findall(path.read_text())}
    assert {line for line in wrong if line.split(": ")[1] not in known} == set()


def flags_of(command: click.Command) -> set[str]:
    """Of a command and all below it."""
    found = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
    if isinstance(command, click.Group):
        context = click.Context(command)
        below = (command.get_command(context, name) for name in command.list_commands(context))
        found = found.union(*(flags_of(one) for one in below if one is not None))
    return found


def test_every_recipe_in_backticks_after_the_word_exists() -> None:
    """`recipe `name``, `recipes `a`, `b` and `c``; a star stands for any end."""
    for one in WRITTEN:
        for listed in re.findall(r"\brecipes?((?:(?:,| and| or)?\s`[\w*./-]+`)+)", one.plain):
            for name in re.findall(r"`([\w*./-]+)`", listed):
                found = [known for known in recipe_names() if Path(known).match(name)]
                assert found or name.endswith(".yaml"), f"{one.name}: no recipe {name}"


@pytest.mark.parametrize(("where", "lists"), LISTS.items())
def test_a_page_about_parts_links_to_the_list_of_all(where: str, lists: tuple[str, ...]) -> None:
    text = (ROOT / where).read_text(encoding="utf-8")
    assert [one for one in lists if f"({one})" not in text] == []


def test_the_installation_names_files_and_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installs = [shlex.split(line) for one in WRITTEN for line in one.lines() if "pip install" in line]
    assert sum("--torch-backend=auto" in words for words in installs) == 1, "an installation without CUDA"
    for words in installs:
        for flag, value in itertools.pairwise(words):
            if flag == "-c":
                assert (ROOT / value).is_file()
            if flag == "-e":
                extras = re.fullmatch(r"\.(?:\[([\w,]+)\])?", value)
                assert extras, value
                assert set((extras[1] or "").split(",")) - {""} <= project["optional-dependencies"].keys()
    assert any("pytest" in line.split() for line in README.lines())
    assert project["requires-python"].removeprefix(">=") in README.text


# --- the trees ----------------------------------------------------------------------------------------------------


def tree(one: Page) -> list[Path]:
    """The paths that the annotated tree of a page names, with their indentation as folders."""
    (text,) = [block for block in one.blocks("") if "compress/" in block and "recipes/" in block]
    found: list[Path] = []
    above: list[tuple[int, Path]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        above = [(d, p) for d, p in above if d < depth]
        folder = above[-1][1] if above else Path()
        listed = re.split(r"\s{2,}", line.strip())[0].split(" ")
        found += [folder / name for name in listed]
        if listed[0].endswith("/"):
            above.append((depth, folder / listed[0]))
    return found


CODE = page("docs/code.md")


@pytest.mark.parametrize("one", named([README, CODE]))
def test_everything_in_a_tree_exists(one: Page) -> None:
    missing = [str(path) for path in tree(one) if "*" not in path.name and not (ROOT / path).exists()]
    assert missing == []
    assert {str(p) for p in tree(one)} >= {"recipes", "compress", "evaluation", "benchmarks", "docs", "tests", "mlruns"}
    assert len(tree(CODE)) > 20


def test_the_tree_names_every_folder() -> None:
    """Of `compress`. Its files are in docs/reference/modules.md, written from their docstrings."""
    told = {str(path) for path in tree(CODE)}
    folders = [p for p in (ROOT / "compress").iterdir() if p.is_dir() and not p.name.startswith(("_", "."))]
    assert {str(p.relative_to(ROOT)) for p in folders} - told == set(), "give it a line in docs/code.md"


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
    tasks = {kind: row[1] for kind, row in table("test_families_tasks.py", "TASKS").items()}
    source = (ROOT / "tests/e2e/test_families_tasks.py").read_text(encoding="utf-8")
    without = ast.literal_eval(re.findall(r"^WITHOUT = (.+)$", source, re.MULTILINE)[0])
    text = page("docs/howto/own-model.md").text
    rows = re.findall(r"^\| `([a-z0-9_-]+)` \| (`.+?`) \| (.+?) \| (.+?) \|", text, re.MULTILINE)
    assert {row[0]: [cell.strip("`") for cell in row[1:] if cell.startswith("`")] for row in rows} == {
        family: list(dict.fromkeys(prefix + name for kind, name in tasks.items() if (family, kind) not in without))
        for family, prefix in families.items()
    }


@pytest.mark.parametrize("one", named(PAGES))
def test_links_lead_somewhere(one: Page) -> None:
    for target in one.links():
        if target.startswith(("https://", "http://")):
            continue
        file, _, anchor = target.partition("#")
        path = (one.path.parent / file).resolve() if file else one.path
        assert path.exists(), f"{one.name}: {target} is not there"
        if anchor:
            assert path.suffix == ".md", f"{one.name}: {target}"
            assert anchor in Page(path).anchors, f"{one.name}: {target}: no such heading"


def test_pictures_are_small_and_shown() -> None:
    """What `docs/make_pictures.py` made."""
    shown = {(one.path.parent / target).resolve() for one in PAGES for target in one.links()}
    pictures = sorted((ROOT / "docs" / "pictures").iterdir())
    assert pictures
    assert [path.name for path in pictures if path not in shown] == []
    assert [path.name for path in pictures if path.stat().st_size > 100_000] == []


def test_every_page_is_found() -> None:
    """The index links every page."""
    linked = {(INDEX.path.parent / target.partition("#")[0]).resolve() for target in INDEX.links()}
    pages = {one.path for one in PAGES if one not in (README, INDEX)}
    missing = sorted(str(path.relative_to(ROOT)) for path in pages - linked)
    assert missing == [], "give it a line in docs/README.md"


@pytest.mark.parametrize("one", named(WRITTEN))
def test_results_that_are_cited_by_their_heading_exist(one: Page) -> None:
    """`[RESULTS](…), "Removing layers"`: some heading of benchmarks/RESULTS.md begins so."""
    headings = re.findall(r"^#+ (.+)$", (ROOT / "benchmarks/RESULTS.md").read_text(encoding="utf-8"), re.MULTILINE)
    for listed in re.findall(r"RESULTS\]\([^)]*\),((?:\s(?:and\s)?\"[^\"]+\",?)+)", one.plain):
        for cited in re.findall(r'"([^"]+)"', listed):
            wanted = " ".join(cited.split())
            assert any(heading.startswith(wanted) for heading in headings), f"{one.name}: no heading {wanted}"


@pytest.mark.parametrize("one", named([one for one in WRITTEN if one.name.startswith("docs/methods/")]))
def test_figures_are_measured_ones(one: Page) -> None:
    """Every decimal under Figures, and in running text, stands in benchmarks/RESULTS.md, a recipe or the README."""
    sources = [ROOT / "benchmarks/RESULTS.md", README.path, *(ROOT / "recipes").glob("*.yaml")]
    number = re.compile(r"(?<![\w.])\d*\.\d+(?=x?(?![\w.]))")
    measured = {found for path in sources for found in number.findall(path.read_text(encoding="utf-8"))}
    above, _, figures = re.sub(r"`[^`]*`", "", one.plain).partition("## Figures")
    told = number.findall(re.sub(r"^\|.*$", "", above, flags=re.MULTILINE) + figures)
    papers = re.compile(r"\d{4}\.\d{4,5}")
    assert [found for found in told if found not in measured and not papers.fullmatch(found)] == []


@pytest.mark.parametrize("one", named(WRITTEN))
def test_paths_in_running_text_exist(one: Page) -> None:
    """`compress/…`, `tests/…` and the like, where no placeholder stands in them."""
    tops = "compress|evaluation|recipes|tests|benchmarks|docs|mlruns"
    paths = re.findall(rf"`((?:{tops})/[^`\s<>…*]*)`", one.plain)
    scripts = re.findall(r"\bpython ((?:benchmarks|docs)/\w+\.py)", one.text)
    modules = [f"{name.replace('.', '/')}.py" for name in re.findall(r"\bpython -m (benchmarks\.\w+)", one.text)]
    made = ("mlruns/mlflow.db",)
    missing = [path for path in paths + scripts + modules if path not in made and not (ROOT / path).exists()]
    assert missing == []


def test_every_exit_code_is_told() -> None:
    told = " ".join(re.findall(r"Exit codes:.*?\n\n", page("docs/howto/ci.md").text, re.DOTALL))
    assert {int(number) for number in re.findall(r"\b\d+\b", told)} == {int(code) for code in ExitCode}


@pytest.mark.parametrize("one", named(PAGES))
def test_nothing_is_left_to_fill_in(one: Page) -> None:
    assert not re.search(r"<!--(?! Made by )", one.text), "a placeholder is left"
    assert not re.search(r"\bTODO\b|\bTBD\b", one.text)


def test_what_is_generated_says_so() -> None:
    for one in PAGES:
        if GENERATED in one.path.parents:
            assert one.text.startswith("<!-- Made by `python docs/build_reference.py`"), one.name
