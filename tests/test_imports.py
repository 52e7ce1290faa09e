"""The house's rules about imports, read from the files themselves."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VERBS = tuple(sorted(p.parent.name for p in (ROOT / "compress" / "stages").glob("*/spec.py")))

# Top to bottom; a room imports only rooms that stand below it. `serving`: an old name that registered models import.
ROOMS = (
    "__main__", "api", "cli", "commands", "experiments", "fit", "cascade", "compare", "analyze", "run", "measure",
    "stages", "serving", "predict", "onnx", "modelfolder", "report", "data", "recipe", "tracking", "training",
    "objectives", "encoder", "quantizers", "storage", "console", "registry", "contracts", "import_paths", "garbage",
    "cpus", "errors", "__init__",
)  # fmt: skip
HEIGHT = {room: -number for number, room in enumerate(ROOMS)}

HEAVY = {
    "torch", "torch_pruning", "mlflow", "datasets", "transformers", "tokenizers", "safetensors", "numpy", "pandas",
    "scipy", "sklearn", "matplotlib", "pyarrow", "rich", "psutil",
}  # fmt: skip


@dataclass(frozen=True)
class Import:
    """One import: what, where, and whether it runs when the file is imported."""

    file: Path
    line: int
    name: str
    at_import: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.name}"


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def imports(file: Path) -> tuple[Import, ...]:
    return tuple(_walk(_tree(file), file, at_import=True))


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _walk(node: ast.AST, file: Path, at_import: bool) -> Iterator[Import]:
    """Of the statements in it: no expression imports, and most nodes are in expressions."""
    for child in _list_statements(node):
        if isinstance(child, ast.Import):
            yield from (Import(file, child.lineno, alias.name, at_import) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(child, file)
            yield from (Import(file, child.lineno, f"{base}.{alias.name}", at_import) for alias in child.names)
        else:
            later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or _for_type_checkers(child)
            yield from _walk(child, file, at_import and not later)


def _list_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Those directly below it, and the handlers and cases that hold some."""
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        below = getattr(node, name, ())
        if isinstance(below, list):
            yield from below


def _absolute(node: ast.ImportFrom, file: Path) -> str:
    if not node.level:
        return node.module or ""
    package = file.relative_to(ROOT).with_suffix("").parts[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def _for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def room_of(file: Path) -> str:
    """errors for compress/errors.py, storage for compress/storage/atomic.py, __init__ for compress/__init__.py."""
    return file.relative_to(ROOT / "compress").with_suffix("").parts[0]


OURS = files("compress")
INSTRUMENTS = files("evaluation")


def test_there_is_something_to_check() -> None:
    assert len(OURS) > 40
    assert len(INSTRUMENTS) > 5
    assert {"tokenizer", "pretrain", "finetune", "distill"} <= set(VERBS)


def test_every_room_is_listed_and_there() -> None:
    assert {room_of(file) for file in OURS} == set(ROOMS)


def test_imports_go_down_only_never_sideways() -> None:
    wrong = []
    for file in OURS:
        here = room_of(file)
        for found in imports(file):
            if not found.name.startswith("compress."):
                continue
            there = found.name.split(".")[1]
            there = "__init__" if there == "__version__" else there
            if here == "__init__" and there in ("api", "errors", "cpus"):
                continue  # the front door: it imports when a name is asked for; the CPUs before what counts them
            if there != here and HEIGHT.get(there, 1) >= HEIGHT[here]:
                wrong.append(str(found))
    assert not wrong, "\n".join(wrong)


def test_one_stage_imports_no_other() -> None:
    wrong = []
    for file in OURS:
        here = file.relative_to(ROOT / "compress").parts
        if here[0] != "stages":
            continue
        for found in imports(file):
            there = found.name.split(".")[1:]
            if found.name.startswith("compress.stages.") and there[1] not in ("shared", here[1]):
                wrong.append(str(found))
    assert not wrong, "\n".join(wrong)


def test_evaluation_imports_nothing_of_ours() -> None:
    assert not [str(i) for file in INSTRUMENTS for i in imports(file) if i.name.split(".")[0] == "compress"]


HOMES = [("mlflow", "tracking"), ("rich", "console"), ("torch_pruning", "stages")]


@pytest.mark.parametrize(("library", "home"), HOMES)
def test_one_home_for_a_library(library: str, home: str) -> None:
    everything = [*OURS, *INSTRUMENTS]
    guests = [
        str(i)
        for file in everything
        for i in imports(file)
        if i.name.split(".")[0] == library and not (file in OURS and room_of(file) == home)
    ]
    assert not guests, "\n".join(guests)


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def imported_names(declared: list[str]) -> set[str]:
    """What declared packages are imported as."""
    names = {re.split(r"[<>=\[]", line)[0].lower().replace("-", "_") for line in declared}
    return {{"pyyaml": "yaml", "scikit_learn": "sklearn", "nvidia_ml_py": "pynvml"}.get(name, name) for name in names}


def test_every_dependency_is_imported() -> None:
    """One that only tests use belongs to the extra `dev`."""
    imported = {i.name.split(".")[0] for file in (*OURS, *INSTRUMENTS) for i in imports(file)}
    assert imported_names(PROJECT["dependencies"]) <= imported


def test_packages_of_extras_are_imported_where_they_are_used() -> None:
    """An installation as README says has none of them. The room `onnx` and the kernels are imported where they are
    used."""
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    absent = imported_names(extras) - imported_names(PROJECT["dependencies"])
    assert {"safetensors", "sklearn", "openvino"} <= absent
    kernels = {file for file in OURS if file.name.endswith("_triton.py")}
    files = [file for file in OURS if room_of(file) != "onnx" and file not in kernels] + INSTRUMENTS
    wrong = [str(i) for file in files for i in imports(file) if i.at_import and i.name.split(".")[0] in absent]
    assert not wrong, "\n".join(wrong)


def test_light_files_import_nothing_heavy() -> None:
    """What `compress --help` and recipe checks read must not pull torch or mlflow in."""
    light = [f for f in OURS if room_of(f) in ("cli", "errors", "contracts", "registry", "recipe", "console")]
    light += [ROOT / "compress" / "stages" / verb / "spec.py" for verb in VERBS]
    light += sorted((ROOT / "compress" / "stages").glob("*/flags.py"))
    light += [
        ROOT / "compress" / "__init__.py",
        *(ROOT / "compress" / "stages" / verb / "__init__.py" for verb in VERBS),
    ]
    wrong = [str(i) for file in light for i in imports(file) if i.at_import and i.name.split(".")[0] in HEAVY]
    assert not wrong, "\n".join(wrong)


def test_command_files_import_only_light_parts_of_ours() -> None:
    allowed = (
        "compress.errors",
        "compress.cli.",
        "compress.registry",
        "compress.import_paths",
        "compress.garbage",
        "compress.cpus",
        "compress.__version__",
    )
    wrong = [
        str(i)
        for file in OURS
        if room_of(file) == "cli"
        for i in imports(file)
        if i.at_import
        and i.name.startswith("compress.")
        and not i.name.startswith(allowed)
        and not re.match(r"compress\.stages\.\w+\.flags\.", i.name)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_registry_is_the_only_dynamic_import() -> None:
    wrong = []
    for file in OURS:
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
                wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert {w.split(":")[0] for w in wrong} == {"compress/registry.py"}, wrong


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


# --- circles inside a room --------------------------------------------------------------------------------------

MODULES = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in OURS}


@cache
def _imported_in_room(file: Path) -> frozenset[Path]:
    """The files of the same room that a file imports: when it is imported itself, in a function, for type checkers."""
    names = {i.name if i.name in MODULES else i.name.rpartition(".")[0] for i in imports(file)}
    found = {MODULES[name] for name in names if name in MODULES} - {file}
    return frozenset(other for other in found if room_of(other) == room_of(file))


def circles(arrows: dict[Path, frozenset[Path]]) -> list[list[Path]]:
    """The strongly connected components of more than one file (Tarjan 1972)."""
    order: dict[Path, int] = {}
    lowest: dict[Path, int] = {}
    open_files: list[Path] = []
    found: list[list[Path]] = []

    def visit(file: Path) -> None:
        order[file] = lowest[file] = len(order)
        open_files.append(file)
        for other in sorted(arrows[file]):
            if other not in order:
                visit(other)
                lowest[file] = min(lowest[file], lowest[other])
            elif other in open_files:
                lowest[file] = min(lowest[file], order[other])
        if lowest[file] == order[file]:
            start = open_files.index(file)
            if len(open_files) - start > 1:
                found.append(sorted(open_files[start:]))
            del open_files[start:]

    for file in arrows:
        if file not in order:
            visit(file)
    return found


def test_no_modules_of_a_room_import_each_other_in_a_circle() -> None:
    arrows = {file: _imported_in_room(file) for file in OURS}
    assert sum(len(others) for others in arrows.values()) > 300  # or nothing was looked at
    wrong = []
    for circle in circles(arrows):
        for file in circle:
            others = ", ".join(str(other.relative_to(ROOT)) for other in sorted(arrows[file]) if other in circle)
            wrong.append(f"circle in {room_of(file)}: {file.relative_to(ROOT)} imports {others}")
    assert not wrong, "\n".join([*wrong, "move what both need to a module below them, or pass it as an argument"])


def test_circles_are_found() -> None:
    a, b, c, d = (Path(name) for name in "abcd")
    ring = {a: frozenset({b}), b: frozenset({c}), c: frozenset({a, d}), d: frozenset[Path]()}
    assert circles(ring) == [[a, b, c]]
    assert circles({**ring, c: frozenset({d})}) == []
