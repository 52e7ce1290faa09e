"""What the working directory holds is never imported in place of what is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from user_packages import write_packages

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.modelfolder.folder import FolderMeta, save_model
from compress.tracking.pyfunc import write_pyfunc

ROOT = Path(__file__).parents[1]
ENTRY_POINT = "import sys\nfrom compress.cli.main import main\nsys.exit(main())\n"


def run(folder: Path, *words: str, first: str = "") -> subprocess.CompletedProcess[str]:
    """Python with these words in `folder`. first: what PYTHONPATH names before the checkout; "": the checkout alone."""
    path = f"{first}{os.pathsep}{ROOT}" if first else str(ROOT)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return write_packages(tmp_path / "work")


def test_the_module_ignores_packages_of_the_working_directory(work: Path) -> None:
    done = run(work, "-m", "compress", "doctor", "--json")
    assert done.returncode == 0, done.stderr
    told = {row["subject"]: row for row in json.loads(done.stdout)}
    assert told["torch"]["state"] == "ok"
    listed = run(work, "-m", "compress", "recipes", "list")
    assert "distilbert" in listed.stdout, listed.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("first", [".", "WORK"])
def test_the_entry_point_ignores_them_even_where_pythonpath_names_the_directory(
    first: str, work: Path, tmp_path: Path
) -> None:
    script = tmp_path / "bin" / "compress"
    script.parent.mkdir()
    script.write_text(ENTRY_POINT, encoding="utf-8")
    done = run(work, str(script), "doctor", first=str(work) if first == "WORK" else first)
    assert done.returncode == 0, done.stderr


def test_an_own_evaluation_can_be_imported_beside_ours(tmp_path: Path) -> None:
    own = tmp_path / "evaluation"
    own.mkdir()
    (own / "__init__.py").write_text("", encoding="utf-8")
    (own / "mine.py").write_text("NUMBER = 3\n", encoding="utf-8")
    code = "import compress; compress.load; import evaluation.cost.latency; from evaluation.mine import NUMBER; "
    done = run(tmp_path, "-c", code + "print(NUMBER)")
    assert done.stdout.strip() == "3", done.stderr


def test_an_own_evaluation_that_was_imported_first_is_named(tmp_path: Path) -> None:
    own = tmp_path / "evaluation"
    own.mkdir()
    (own / "__init__.py").write_text("", encoding="utf-8")
    code = """
import evaluation, compress
try:
    compress.load
except compress.UserError as error:
    print(error.line())
"""
    done = run(tmp_path, "-c", code)
    assert f"{own}: another package named 'evaluation' is already imported: compress needs its own" in done.stdout, done


PREDICT = """
import sys
from compress.serving import Service  # the name in models that older versions registered
import pandas
from mlflow.pyfunc import load_model

print(load_model(sys.argv[1]).predict(pandas.DataFrame({"text": ["a good film"]}))[0]["label"])
"""


@pytest.mark.thorough
def test_a_served_model_ignores_them(
    tmp_path: Path, tiny_config: EncoderConfig, toy_tokenizer_files: dict[str, bytes]
) -> None:
    """A server of MLflow has its working directory first on sys.path."""
    model = Model(tiny_config, {"task": HeadConfig(kind="classification", labels=2)}).initialize(0).eval()
    meta = FolderMeta(task="classification", label_names=("bad", "good"))
    folder = save_model(tmp_path / "model", model, tokenizer_files=toy_tokenizer_files, meta=meta)
    served = write_pyfunc(folder, tmp_path / "served", [("text", True)])
    work = write_packages(tmp_path / "work", ("evaluation", "recipes", "tests", "data"))
    done = run(work, "-c", PREDICT, str(served))
    assert done.stdout.strip() in ("bad", "good"), done.stderr
