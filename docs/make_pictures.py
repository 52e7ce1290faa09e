"""Make docs/pictures/ from real runs: `python docs/make_pictures.py FOLDER`.

The runs are made in FOLDER, on one thread (about 10 minutes of processor time); those that are finished there are kept.
Plots that the program writes are copied; pages are photographed with Chromium and reduced to 256 colours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import chromium  # noqa: E402  # pyright: ignore[reportMissingImports]

PICTURES = ROOT / "docs" / "pictures"
MAX_BYTES = 100_000
COLOURS = 256

TEACHER = "runs/teachers/teacher-*/model"
COMPARED = (TEACHER, "runs/distilbert/student", "runs/distilbert/control", "runs/int8/model", "runs/tiny-cpu/model")
COMMANDS = {
    "runs/distilbert/student": "distill --recipe distilbert",
    "runs/int8/model": "quantize runs/distilbert/student --data opinions --output runs/int8",
    "runs/tiny-cpu/model": f"run tiny-cpu --model {TEACHER} --data opinions --steps 200 --learning-rate 5e-4 "
    "--limit 1500 --output runs/tiny-cpu",
    "runs/analysis/cka.svg": f"analyze {TEACHER} --data opinions --rows 200 --output runs/analysis",
    "runs/calibrated-reliability.svg": "calibrate runs/distilbert/student --data opinions --output runs/calibrated",
    "compare.html": f"compare {' '.join(COMPARED)} --against {TEACHER} --data opinions --limit 1000 "
    "--html compare.html",
}
"""What a command makes → the command."""
COPIES = {
    "reliability.svg": "runs/calibrated-reliability.svg",
    "waterfall.svg": "runs/tiny-cpu/waterfall.svg",
    "cka.svg": "runs/analysis/cka.svg",
}
CLOSE_ASSISTANT = "document.elementFromPoint(1336, 36)?.closest('button')?.click()"
"""MLflow's assistant lies beside the page when it is opened for the first time; its button is at the top right."""
HIDE_BUTTONS = "document.querySelectorAll('.modebar').forEach(bar => bar.remove())"
"""Those of charts, which are drawn over the dots."""


def main(folder: Path) -> None:
    """Make what is missing in `folder`, then all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for made, command in COMMANDS.items():
        if not (folder / made).exists():
            run(folder, command)
    PICTURES.mkdir(exist_ok=True)
    for name, source in COPIES.items():
        shutil.copyfile(folder / source, PICTURES / name)
    photograph(folder)
    for file in sorted(PICTURES.iterdir()):
        size = file.stat().st_size
        print(f"{file.relative_to(ROOT)}  {size:,} bytes")
        assert size <= MAX_BYTES, f"{file} is larger than {MAX_BYTES:,} bytes"


def run(folder: Path, command: str) -> None:
    """A `compress` command on one thread, in `folder`; * in its words stands for the one path that fits."""
    words = [next((str(p.relative_to(folder)) for p in folder.glob(w)), w) if "*" in w else w for w in command.split()]
    print(f"compress {' '.join(words)} --threads 1", flush=True)
    subprocess.run([sys.executable, "-m", "compress", *words, "--threads", "1"], cwd=folder, check=True)


def photograph(folder: Path) -> None:
    """The pages: MLflow's first one, that of `compress compare`, and the chart on it."""
    with tempfile.TemporaryDirectory() as profile, chromium.browsing(Path(profile)) as page:
        page.prefer(dark=False)
        page.resize(1000, 1000)
        page.open((folder / "compare.html").resolve().as_uri())
        page.wait_for("document.readyState == 'complete' && document.querySelector('svg.wide') !== null")
        shoot(page, "trade-off.png", "svg.wide")
        shoot(page, "compare.png")
        with serve(folder) as link:
            page.resize(1366, 900)
            page.open(link)
            page.wait_for("document.querySelectorAll('.js-plotly-plot .trace.scatter .point').length >= 4", 300)
            page.evaluate(CLOSE_ASSISTANT)
            time.sleep(3)  # the charts are drawn again, wider
            page.evaluate(HIDE_BUTTONS)
            shoot(page, "mlflow.png")


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The link that `compress ui` prints, while it serves."""
    command = [sys.executable, "-m", "compress", "ui", "--experiment", "compress"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait(60)


def shoot(page: chromium.Page, name: str, selector: str | None = None) -> None:
    """A photograph with few colours, of what is in sight or of one element."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        page.screenshot(whole := Path(folder) / name, selector)
        with Image.open(whole) as picture:
            colours = picture.convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE)
        colours.save(PICTURES / name, optimize=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]))
