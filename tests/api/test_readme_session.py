"""The session in README, run on a toy classifier and a file of rows."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import compress

ROOT = Path(__file__).parents[2]
SMALLER = (
    ("rows[:-2000]", "rows[:48]"),
    ("rows[-2000:-1000]", "rows[48:64]"),
    ("rows[-1000:]", "rows[64:]"),
    ("max_mb=12, max_ms=5,", "max_mb=0.06, plans=1, length=16, uncertified=True, runtime='onnxruntime', threads=1,"),
)
"""The sizes of the session, and those of a toy; a machine that runs tests is too busy for a certificate."""


def python(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="needs the extra onnx")
def test_the_session_of_the_readme_runs(classifier: compress.Model, splits: Any) -> None:
    import pandas

    rows = [row for part in ("train", "validation", "test") for row in splits[part]]
    pandas.DataFrame(rows).to_csv("reviews.csv", index=False)
    (code,) = python("README.md")
    for said, smaller in SMALLER:
        assert said in code
        code = code.replace(said, smaller)
    names: dict[str, Any] = {}
    exec(code.replace("FOLDER", str(classifier.path)), names)
    assert Path("small-onnx/model.onnx").is_file()
    assert len(names["data"]["test"]) == 24


@pytest.mark.parametrize("page", ["README.md", "docs/howto/python.md"])
def test_every_function_that_a_page_names_is_there(page: str) -> None:
    blocks = python(page)
    for block in blocks:
        compile(block, page, "exec")
    named = set(re.findall(r"compress\.(\w+)\(", "".join(blocks)))
    assert named
    assert named <= set(compress.__all__)
