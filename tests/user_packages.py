"""A working folder that holds packages under names that compress, or what it needs, imports."""

from __future__ import annotations

from pathlib import Path

NAMES = ("evaluation", "recipes", "tests", "data", "mlflow", "torch")
RAISES = "raise ImportError('this is a package of the working folder')\n"


def write_packages(folder: Path, names: tuple[str, ...] = NAMES) -> Path:
    """Write packages that cannot be imported, and a plain folder `compress`; returns `folder`."""
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "__init__.py").write_text(RAISES, encoding="utf-8")
    if "evaluation" in names:
        (folder / "evaluation" / "cost.py").write_text(RAISES, encoding="utf-8")
    (folder / "compress").mkdir()
    (folder / "compress" / "notes.py").write_text(RAISES, encoding="utf-8")
    return folder
