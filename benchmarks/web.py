"""A folder of `compress export --to web`: whether node answers as Python does, and what a small Python process costs.

    python benchmarks/web.py FOLDER --data "$COMPRESS_DATA/banking77" --rows 100

`npm install` must have run in FOLDER. node runs model.js (onnxruntime-web, WebAssembly, one thread), Python runs
model.py (onnxruntime, one thread), on the same file. Then a fresh process imports model.py, another one also answers a
text: processor time and largest memory, beside those of `compress.load(MODEL).predict` where --model names the source.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from compress.data.reading.sources import open_table
from compress.predict.web.model import load_model

NODE = Path(__file__).parents[1] / "tests" / "predict" / "web_answers.mjs"
COST = """
import time
start = time.process_time()
{}
spent = time.process_time() - start
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(spent, int(peak) * 1024 / 1e6)
"""
IMPORT = "import compress.predict.web.model, onnxruntime"
SMALL = "from compress.predict.web.model import load_model; load_model({!r}, threads=1).answer({!r})"
WHOLE = "import compress; compress.load({!r}, runtime='onnxruntime', device='cpu').predict([{!r}])"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("--data", required=True)
    p.add_argument("--split", default="test")
    p.add_argument("--rows", type=int, default=100)
    p.add_argument("--model", help="the model folder that was exported")
    args = p.parse_args()
    model, rows = load_model(args.folder, threads=1), read_rows(args.data, args.split)[: args.rows]
    found = answer_in_node(args.folder, rows)
    ids = sum(model.encode(*row).ids == one["ids"] for row, one in zip(rows, found, strict=True))
    known = [model.answer(*row) for row in rows]
    same = sum(choices(one) == choices(other) for one, other in zip(known, found, strict=True))
    apart = np.concatenate([np.abs(numbers(a) - numbers(b)) for a, b in zip(known, found, strict=True)])
    print(f"{len(rows)} rows: same tokens {ids}, same answer {same}")
    print(f"difference: largest {apart.max():.1e}, median {np.median(apart):.1e}")
    cost("import of model.py and onnxruntime", IMPORT)
    cost("model.py", SMALL.format(str(args.folder), rows[0][0]))
    if args.model:
        cost("compress.load", WHOLE.format(args.model, rows[0][0]))


def read_rows(data: str, split: str) -> list[list[str]]:
    """Texts, or pairs of texts; words are joined by spaces."""
    rows = open_table(data).split(split)
    if "words" in rows.columns:
        return [[" ".join(words)] for words in rows.columns["words"].to_pylist()]
    return [[text] for text in rows.texts] if rows.pairs is None else list(map(list, zip(rows.texts, rows.pairs)))


def answer_in_node(folder: Path, rows: list[list[str]]) -> list[dict[str, Any]]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([{"folder": str(folder.resolve()), "rows": rows}], file)
        file.flush()
        done = subprocess.run(["node", str(NODE), file.name], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])[0]


def numbers(answer: dict[str, Any]) -> np.ndarray:
    """The probabilities, the score or the similarity of an answer, of Python or of node."""
    if "probabilities" in answer:
        return np.array(list(answer["probabilities"].values()))
    told = answer.get("words") or answer.get("labels")
    if told is not None:
        return np.array([one["probability"] for one in told if one["label"] is not None])
    return np.array([answer.get("score", answer.get("similarity"))])


def choices(answer: dict[str, Any]) -> list[Any]:
    """The tags of words, or the place of the most probable label; of scores nothing is chosen."""
    if "words" in answer:
        return [word["label"] for word in answer["words"]]
    return [int(numbers(answer).argmax())]


def cost(name: str, code: str) -> None:
    """Processor seconds and largest memory of a fresh process, the median of three."""
    made = [subprocess.run([sys.executable, "-c", COST.format(code)], capture_output=True, text=True) for _ in range(3)]
    figures = np.median([[float(word) for word in one.stdout.split()[-2:]] for one in made], axis=0)
    print(f"{name}: {figures[0]:.2f} s of processor time, {figures[1]:.0f} MB")


if __name__ == "__main__":
    main()
