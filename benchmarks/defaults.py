"""Are the defaults good enough on data nobody tuned for? They run beside a small grid, on sets of many kinds.

    python benchmarks/defaults.py --model FOLDER --data "$COMPRESS_DATA" --sets banking77 sick_nli stsb --rows 2000

Every set is cut to `--rows` training rows and a quarter as many for validation, drawn at random (seed 0). For every set
and seed the recipe `finetune` runs as it is, and with each learning rate and number of epochs of the grid (linear
schedule). The figures are the main metric on the validation rows, of the best weights: the grid is tuned on them, so
its best is an upper bound of what tuning gives. `--students` also distils and prunes the default's model to half its
layers, with the recipes `distilbert-task` and `prune-layers` as they are. `intents-150` is generated: 150 classes of
templates. Finished runs are in `--output` and are not run again, so it can be interrupted.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.recipe import load_recipe
from compress.run import Run

RATES, EPOCHS = (1e-4, 3e-4), (3.0, 8.0)
"""The grid."""
GENERATED = "intents-150"
CLASSES = 150


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--sets", nargs="+", required=True, help=f"folders of --data, or {GENERATED}")
    p.add_argument("--rows", type=int, default=2000)
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--rates", type=float, nargs="*", default=RATES)
    p.add_argument("--epochs", type=float, nargs="*", default=EPOCHS)
    p.add_argument("--students", action="store_true")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--output", type=Path, default=Path("runs/defaults"))
    args = p.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    for name in args.sets:
        data = cut_set(name, args)
        found: dict[str, list[float]] = {}
        for seed in range(args.seeds):
            for config, value in run_set(name, data, seed, args):
                found.setdefault(config, []).append(value)
                print(f"{name} seed {seed} {config}: {value:.2f}", flush=True)
        report(name, found, args.seeds)


def run_set(name: str, data: Path, seed: int, args: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """Each configuration on one set, with its figure in percent."""
    base = {"model": str(args.model), "data.source": str(data), "seed": seed}
    folder = args.output / name / str(seed)
    yield "default", train("finetune", base, folder / "default")
    for rate in args.rates:
        for epochs in args.epochs:
            changes = {"stages.0.training.learning_rate": rate, "stages.0.training.epochs": epochs}
            yield f"{rate:g}, {epochs:g} epochs", train("finetune", base | changes, folder / f"{rate:g}-{epochs:g}")
    if args.students:
        teacher = folder / "default" / "model"
        taught = {"teacher": str(teacher), "data.source": str(data), "seed": seed}
        alone = taught | {"stages.0.control": False}
        yield "half: distilbert-task", train("distilbert-task", alone, folder / "distilled")
        yield "half: prune-layers", train("prune-layers", taught | {"model": str(teacher)}, folder / "pruned")


def train(recipe: str, changes: Mapping[str, Any], folder: Path) -> float:
    """Run a recipe unless it did, and return its best main metric on validation, in percent."""
    told = folder.with_name(f"{folder.name}.json")  # with_suffix would cut 0.0001-8 to 0
    if not told.is_file():
        overrides = tuple(Override(path, value, f"{path}={value}") for path, value in changes.items())
        loaded = load_recipe(recipe, overrides)
        options = RunOptions(recipe=recipe, output=folder, resume=folder.exists(), quiet=True)
        report = Run(loaded, options, Console(quiet=True, json=True), None, {}, measures=False).go()
        assert report is not None
        figures = list(report.stages.values())[-1]
        told.write_text(json.dumps({"figures": dict(figures), "findings": list(report.findings)}))
    figures = json.loads(told.read_text())["figures"]
    return 100 * next(iter(figures.values()))


def report(name: str, found: Mapping[str, Sequence[float]], seeds: int) -> None:
    """One line: default, best of the grid, and the students against their teachers."""
    mean = {config: statistics.mean(values) for config, values in found.items()}
    grid = {config: value for config, value in mean.items() if config != "default" and not config.startswith("half")}
    line = f"== {name}, {seeds} seeds: default {mean['default']:.2f}"
    if grid:
        best = max(grid, key=lambda config: grid[config])
        line += f", grid {grid[best]:.2f} ({best}), difference {mean['default'] - grid[best]:+.2f}"
    for config in mean:
        if config.startswith("half"):
            line += f"; {config} {mean[config]:.2f} ({mean[config] - mean['default']:+.2f})"
    print(line, flush=True)


# --- data ---------------------------------------------------------------------------------------------------------


def cut_set(name: str, args: argparse.Namespace) -> Path:
    """The folder of a set's drawn rows."""
    folder = args.output / "data" / f"{name}-{args.rows}"
    if folder.is_dir():
        return folder
    drawn = random.Random(0)
    made = generated() if name == GENERATED else None
    folder.mkdir(parents=True)
    for split, rows in (("train", args.rows), ("validation", args.rows // 4), ("test", 100)):
        lines = made[split] if made else (args.data / name / f"{split}.jsonl").read_text().splitlines()
        lines = lines if len(lines) <= rows else drawn.sample(lines, rows)
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    info = args.data / name / "info.json"
    if info.is_file():
        (folder / "info.json").write_text(info.read_text())
    return folder


def generated() -> dict[str, list[str]]:
    """Short requests of 150 classes: an action and an object name the class, other objects and fillers are around."""
    random_ = random.Random(1)
    letters = "bcdfghklmnprstvz"
    word = lambda: "".join(random_.choice(letters) + random_.choice("aeiou") for _ in range(3))  # noqa: E731
    actions, objects, fillers = ([word() for _ in range(n)] for n in (15, 10, 200))
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for split, rows in (("train", 15_000), ("validation", 3000), ("test", 3000)):
        for _ in range(rows):
            label = random_.randrange(CLASSES)
            words = [actions[label // 10], objects[label % 10], *random_.sample(fillers, random_.randint(3, 10))]
            random_.shuffle(words)
            splits[split].append(json.dumps({"text": " ".join(words), "label": f"class {label:03}"}))
    return splits


if __name__ == "__main__":
    main()
