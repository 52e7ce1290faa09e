"""Only `compress.storage` writes files: anywhere else a raw write is an error, found in the source before it is run.

What a raw write costs: a file half written when the process dies, a checkpoint destroyed by a full disk, a mode of
0600, a pickle. `compress.storage.atomic` and `compress.storage.journal` are the ways to write.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXEMPT = ROOT / "compress" / "storage"
ELSEWHERE = ROOT / "compress" / "fit" / "target" / "kit_program.py"
"""Runs on a machine that has neither this package nor what its storage needs."""

# Modules whose very import says what is about to happen.
PICKLES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "dbm"}

# Functions by their full name, whatever they were imported as.
FUNCTIONS = {
    "json.dump",
    "numpy.save",
    "numpy.savetxt",
    "numpy.savez",
    "numpy.savez_compressed",
    "os.remove",
    "os.removedirs",
    "os.rename",
    "os.renames",
    "os.replace",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
    "os.unlink",
    "os.write",
    "safetensors.numpy.save_file",
    "safetensors.torch.save_file",
    "safetensors.torch.save_model",
    "shutil.copy",
    "shutil.copy2",
    "shutil.copyfile",
    "shutil.copyfileobj",
    "shutil.copytree",
    "shutil.make_archive",
    "shutil.move",
    "shutil.rmtree",
    "tempfile.NamedTemporaryFile",
    "tempfile.mkstemp",
    "torch.save",
    "torch.jit.save",
    "torch.distributed.checkpoint.save",
}

# Methods, on whatever object: nothing that we use has another meaning for these names.
METHODS = {
    "save_file",
    "save_model",
    "save_pretrained",
    "save_to_disk",
    "savez",
    "symlink_to",
    "to_csv",
    "to_excel",
    "to_feather",
    "to_parquet",
    "to_pickle",
    "tofile",
    "touch",
    "unlink",
    "write_bytes",
    "write_text",
}

# These write when they are given somewhere to write, and return a string otherwise: (name, place of that argument).
TO_A_STREAM = {"yaml.dump": 1, "yaml.safe_dump": 1, "yaml.dump_all": 1, "yaml.safe_dump_all": 1}

# What formats CSV: only `compress.report.csv_text` does, so that no cell is a formula of a spreadsheet.
CSV_WRITERS = {"csv.writer", "csv.DictWriter", "_csv.writer", "pyarrow.csv.write_csv", "pyarrow.csv.CSVWriter"}
CSV_WRITERS |= {"to_csv", "write_csv", "numpy.savetxt"}
CSV_DOOR = ROOT / "compress" / "report" / "csv_text.py"

OPENERS = {"open", "io.open", "builtins.open", "gzip.open", "bz2.open", "lzma.open", "os.fdopen", "zipfile.ZipFile"}


def raw_writes(source: str) -> Iterator[tuple[int, str]]:
    """(line, what) of everything in `source` that writes, moves or removes a file by itself, or pickles."""
    tree = ast.parse(source)
    names = dict(_imports(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                modules = [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(module), level=0):
                modules = [module]
            case ast.Call():
                modules = []
                if what := _writes(node, names):
                    yield node.lineno, what
            case _:
                continue
        yield from ((node.lineno, f"import {m}") for m in modules if m.partition(".")[0] in PICKLES)


def csv_writers(source: str) -> list[tuple[int, str]]:
    """(line, what) of everything in `source` that formats CSV by itself, whatever it was imported as."""
    if "csv" not in source and "savetxt" not in source:  # one is in each of these names; parsing takes seconds
        return []
    tree = ast.parse(source)
    names = dict(_imports(tree))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            name = _full_name(node, names) or (node.attr if isinstance(node, ast.Attribute) else "")
            if name in CSV_WRITERS:
                found.append((node.lineno, name))
    return found


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every imported name with what it stands for: `from os import replace as r` gives r → os.replace."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _writes(call: ast.Call, names: dict[str, str]) -> str | None:
    name = _full_name(call.func, names)
    if name.startswith(("compress.", "evaluation.")) or _is_device(call):
        return None  # ours is looked at where it is defined
    if name in FUNCTIONS:
        return name
    if name in TO_A_STREAM:
        return name if len(call.args) > TO_A_STREAM[name] or any(k.arg == "stream" for k in call.keywords) else None
    if name == "os.open":
        return (
            name if "O_WRONLY" in ast.dump(call) or "O_RDWR" in ast.dump(call) or "O_CREAT" in ast.dump(call) else None
        )
    method = call.func.attr if isinstance(call.func, ast.Attribute) else None
    if name in OPENERS or method == "open":
        return (
            f"{name or '….open'} for writing" if _mode(call, first=method == "open" and name not in OPENERS) else None
        )
    return f"….{method}()" if method in METHODS else None


def _is_device(call: ast.Call) -> bool:
    """`open("/proc/…")`, `os.open(os.devnull)`: no file on a disk."""
    target = ast.unparse(call.args[0]) if call.args else ""
    return target.strip("'\"").startswith(("/proc/", "/dev/")) or target == "os.devnull"


def _full_name(function: ast.expr, names: dict[str, str]) -> str:
    """`np.savez` → numpy.savez; empty for a method of an object."""
    parts: list[str] = []
    while isinstance(function, ast.Attribute):
        parts.insert(0, function.attr)
        function = function.value
    if not isinstance(function, ast.Name):
        return ""
    if parts and function.id not in names:
        return ""
    return ".".join([names.get(function.id, function.id), *parts])


def _mode(call: ast.Call, first: bool) -> bool:
    """Whether the mode, the second argument of `open` and the first of `Path.open`, says write; or cannot be read."""
    place = 0 if first else 1
    given = [k.value for k in call.keywords if k.arg == "mode"] + call.args[place : place + 1]
    if not given:
        return False
    mode = given[0]
    if not (isinstance(mode, ast.Constant) and isinstance(mode.value, str)):
        return not first  # `x.open(something)` need not be a file
    return len(mode.value) <= 3 and bool(set(mode.value) & set("wax+"))


def sources() -> list[Path]:
    found = [p for package in ("compress", "evaluation") for p in sorted((ROOT / package).rglob("*.py"))]
    return [p for p in found if EXEMPT not in p.parents and p != ELSEWHERE]


def test_no_raw_write() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in sources()
        for line, what in raw_writes(path.read_text(encoding="utf-8"))
    ]
    assert not found, "only compress.storage writes files: " + "; ".join(found)


def test_csv_is_formatted_at_one_place() -> None:
    files = [p for package in ("compress", "evaluation", "benchmarks") for p in sorted((ROOT / package).rglob("*.py"))]
    found = {p: csv_writers(p.read_text(encoding="utf-8")) for p in files}
    assert found.pop(CSV_DOOR), "the one that formats is seen to format"
    others = [f"{p.relative_to(ROOT)}:{line}: {what}" for p, lines in found.items() for line, what in lines]
    assert not others, "only compress.report.csv_text formats CSV: " + "; ".join(others)


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("import csv\ncsv.writer(f)", True),
        ("import csv as c\nc.DictWriter(f, names)", True),
        ("from csv import writer as w\nmake = w", True),
        ("import pyarrow.csv as pc\npc.write_csv(table, f)", True),
        ("text = frame.to_csv()", True),
        ("text = frame.head().to_csv(index=False)", True),
        ("import csv\ncsv.reader(f)", False),
        ("from compress.report.csv_text import format_csv\nformat_csv(rows)", False),
    ],
)
def test_code_that_formats_csv_is_seen(source: str, seen: bool) -> None:
    assert bool(csv_writers(source)) == seen


def test_the_sources_were_found() -> None:
    assert len(sources()) > 10
    assert any(raw_writes((EXEMPT / "atomic.py").read_text())), "the one that writes is seen to write"


@pytest.mark.parametrize(
    "source",
    [
        "open(p, 'w')",
        "open(p, mode='ab')",
        "open(p, 'r+')",
        "open(p, mode)",
        "import io\nio.open(p, 'x')",
        "path.open('w')",
        "Path(p).open(mode='wb')",
        "import gzip\ngzip.open(p, 'wt')",
        "path.write_text('x')",
        "(folder / 'x').write_bytes(b'')",
        "import torch\ntorch.save(x, p)",
        "import torch as t\nt.save(x, p)",
        "from torch import save\nsave(x, p)",
        "from safetensors.torch import save_file\nsave_file(x, p)",
        "import safetensors.torch\nsafetensors.torch.save_file(x, p)",
        "import json\njson.dump(x, f)",
        "from json import dump as d\nd(x, f)",
        "frame.to_csv(p)",
        "model.save_pretrained(p)",
        "import numpy as np\nnp.savez(p, x)",
        "import yaml\nyaml.safe_dump(x, f)",
        "import yaml\nyaml.dump(x, stream=f)",
        "import os\nos.replace(a, b)",
        "import os\nos.open(p, os.O_WRONLY)",
        "import shutil\nshutil.rmtree(p)",
        "path.unlink()",
        "import pickle",
        "def f():\n    from joblib.numpy_pickle import dump",
        "import tempfile\ntempfile.NamedTemporaryFile()",
    ],
)
def test_a_raw_write_is_seen(source: str) -> None:
    assert list(raw_writes(source))


@pytest.mark.parametrize(
    "source",
    [
        "open(p)",
        "open(p, 'rb')",
        "path.open()",
        "path.open('r', encoding='utf-8')",
        "webbrowser.open('http://wax')",
        "import json\njson.dumps(x)",
        "import yaml\nyaml.safe_dump(x, sort_keys=False)",
        "from compress.storage import atomic\natomic.write_text(p, 'x')\natomic.write_bytes(p, b'')",
        "from compress.storage.atomic import write_bytes\nwrite_bytes(p, b'')",
        "from safetensors.torch import save\nsave(tensors)",
        "'a'.replace('a', 'b')",
        "import os\nos.open(p, os.O_RDONLY)",
        "import os\nos.open(os.devnull, os.O_WRONLY)",
        "open('/proc/self/clear_refs', 'w')",
        "from compress import modelfolder\nmodelfolder.save_model(p, model)",
        "import sys\nsys.stdout.write('x')",
    ],
)
def test_what_writes_no_file_is_left_alone(source: str) -> None:
    assert not list(raw_writes(source))
