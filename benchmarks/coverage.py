"""How often the 95 % intervals of `evaluation/` hold the truth, beside percentiles of resampled rows.

    python benchmarks/coverage.py
    python benchmarks/coverage.py shares pairs --samples 20000

shares: exact, over the counts. pairs, f1, calibration, runs: simulated, `--samples` times each (f1, calibration and
runs a tenth of it). Prints coverage in percent. On few rows, or of a model that is nearly always right, the most
probable outcomes jump from below 93 to above 98 %: then no interval that covers is in between.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binom

from evaluation.quality.calibration import calibration_error
from evaluation.quality.draws import of_mean, of_tables
from evaluation.quality.estimates import estimate_metric
from evaluation.quality.intervals import percentile_interval, resample_figure
from evaluation.quality.metrics import table_metrics
from evaluation.quality.runs import difference_over_runs
from evaluation.quality.shares import paired_share_interval, share_interval

ROWS = (20, 50, 100, 200, 500, 1000, 3000)
ACCURACIES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999)
DISCORDANT = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
AHEAD = (0.5, 0.6, 0.75, 0.9, 1.0)
"""Share of the discordant rows that the first model gets right."""
LEAST, MOST = 0.93, 0.98


def shares(samples: int) -> None:
    """Exact: the sum of the probabilities of all counts whose interval holds the accuracy."""
    found, before, certain = [], [], 0
    for rows in ROWS:
        counts = np.arange(rows + 1)
        ours = np.array([(i.low, i.high) for i in (share_interval(int(k), rows) for k in counts)])
        resampled = np.stack([binom.ppf(q, rows, counts / rows) / rows for q in (0.025, 0.975)], axis=1)
        for p in ACCURACIES:
            chances = binom.pmf(counts, rows, p)
            ends = ((ours, found), (resampled, before))
            for (low, high), into in ((e.T, into) for e, into in ends):
                into.append((float(chances[(low <= p) & (p <= high)].sum()), f"n {rows}, accuracy {p:g}"))
            certain += _leaves_no_choice(chances)
    report("accuracy, mid-P", found, certain)
    report("accuracy, resampled rows", before)


def pairs(samples: int) -> None:
    """Two models on the same rows; how many rows both get right does not enter the interval."""
    random, found, before, certain = np.random.default_rng(0), [], [], 0
    for rows in ROWS:
        for share in DISCORDANT:
            for ahead in AHEAD if share else AHEAD[:1]:
                a, b = share * ahead, share * (1 - ahead)
                drawn = random.multinomial(rows, [a, b, 1 - a - b], size=samples)[:, :2]
                seen, times = np.unique(drawn, axis=0, return_counts=True)
                where = f"n {rows}, discordant {100 * share:g} %, of which {100 * ahead:g} % for the first"
                held = [paired_share_interval(int(x), int(y), rows).holds(a - b) for x, y in seen]
                found.append((float(np.average(held, weights=times)), where))
                certain += _leaves_no_choice(times / samples)
                few = np.unique(drawn[:300], axis=0, return_counts=True)
                held = [_resampled_pair(random, int(x), int(y), rows, a - b) for x, y in few[0]]
                before.append((float(np.average(held, weights=few[1])), where))
    report("paired accuracy, Tango", found, certain)
    report("paired accuracy, resampled rows", before)


def _leaves_no_choice(chances: NDArray[np.float64]) -> bool:
    """Whether the most probable outcomes that reach `LEAST` together are beyond `MOST`."""
    total = np.cumsum(np.sort(chances)[::-1])
    return bool(total[np.searchsorted(total, LEAST)] > MOST)


def _resampled_pair(random: np.random.Generator, only_a: int, only_b: int, rows: int, truth: float) -> bool:
    left = max(rows - only_a - only_b, 0)
    drawn = random.multinomial(rows, np.array([only_a, only_b, left]) / rows, size=1000)
    low, high = np.quantile((drawn[:, 0] - drawn[:, 1]) / rows, [0.025, 0.975])
    return bool(low - 1e-12 <= truth <= high + 1e-12)


F1 = {
    "3 classes of 60, 35 and 5 %, n 200": ((0.6, 0.35, 0.05), (0.93, 0.9, 0.8), 200),
    "2 classes of 95 and 5 %, n 100": ((0.95, 0.05), (0.98, 0.8), 100),
    "2 equal classes, 98 % right, n 50": ((0.5, 0.5), (0.98, 0.98), 50),
    "2 classes of 80 and 20 %, 99 % right, n 500": ((0.8, 0.2), (0.995, 0.97), 500),
    "20 equal classes, n 400": ((0.05,) * 20, (0.9,) * 20, 400),
    "77 equal classes, n 770": ((1 / 77,) * 77, (0.92,) * 77, 770),
}


def f1(samples: int) -> None:
    """Macro F1. A wrong answer is any other class."""
    score = table_metrics()["f1_macro"]
    for name, (of_class, recall, rows) in F1.items():
        classes, random, held, before = len(of_class), np.random.default_rng(1), 0, 0
        wrong = np.array(of_class) * (1 - np.array(recall)) / max(classes - 1, 1)
        cells = np.repeat(wrong[:, None], classes, axis=1)
        np.fill_diagonal(cells, np.array(of_class) * recall)
        truth, times = float(score(cells)), max(samples // 10, 1)
        for _ in range(times):
            flat = np.repeat(np.arange(classes**2), random.multinomial(rows, cells.ravel()))
            figure = of_tables(flat // classes, flat % classes, classes, {"f1_macro": score})["f1_macro"]
            held += estimate_metric(rows, figure, resamples=500).holds(truth)
            drawn = resample_figure(rows, figure, resamples=500)
            before += percentile_interval(drawn.value, drawn.figures, rows).holds(truth)
        print(f"macro F1, {name}: {100 * held / times:.1f}, resampled rows {100 * before / times:.1f}", flush=True)


MISCALIBRATED: dict[str, Callable[[NDArray], NDArray]] = {
    "calibrated": lambda p: p,
    "5 points too sure": lambda p: p - 0.05,
    "10 points too sure": lambda p: p - 0.1,
    "twice as cold": lambda p: expit(np.log(p / (1 - p)) / 2),
}


def calibration(samples: int) -> None:
    """Top probabilities between a half and one, mostly near one."""
    for name, share_right in MISCALIBRATED.items():
        for rows in (50, 200, 1000, 3000):
            random, held, before, times = np.random.default_rng(rows), 0, 0, max(samples // 10, 1)
            truth = _true_error(np.random.default_rng(0), share_right)
            for _ in range(times):
                told = _told(random, rows)
                logits = np.stack([np.log(told), np.log1p(-told)], axis=1)
                figure = calibration_error(logits, (random.random(rows) >= share_right(told)).astype(int))
                held += figure.interval(resamples=300).holds(truth)
                drawn = resample_figure(rows, figure, resamples=300)
                before += percentile_interval(drawn.value, drawn.figures, rows).holds(truth)
            print(
                f"calibration error, {name}, n {rows}: {100 * held / times:.1f}, "
                f"resampled rows {100 * before / times:.1f}",
                flush=True,
            )


def _told(random: np.random.Generator, rows: int) -> NDArray[np.float64]:
    return np.clip(0.56 + 0.44 * random.beta(5, 1, rows), 0.56, 0.9999)


def _true_error(random: np.random.Generator, share_right: Callable[[NDArray], NDArray]) -> float:
    told = _told(random, 500_000)
    which = np.ceil(told * 15).astype(int)
    return float(np.abs(np.bincount(which, told - share_right(told))).sum() / len(told))


def runs(samples: int) -> None:
    """Two ways to train, a few runs each on the same rows: rows differ in how hard they are, runs in how good."""
    random, gain = np.random.default_rng(0), 0.2
    hard = random.normal(1.3, 1.2, 500_000)
    for count in (2, 3, 5, 10):
        for between in (0.0, 0.1, 0.2, 0.6):
            spread = random.normal(0, (0.25 + between**2) ** 0.5, len(hard))
            truth = float(np.mean(expit(hard + gain + spread)) - np.mean(expit(hard + spread)))
            for rows in (200, 1000):
                held = before = 0
                times = max(samples // 10, 1)
                for _ in range(times):
                    base = random.normal(1.3, 1.2, rows)
                    both = [_right(random, base + shift, count, between) for shift in (gain, 0.0)]
                    found = difference_over_runs(rows, *([of_mean(x) for x in side] for side in both), resamples=200)
                    held += found.holds(truth)
                    before += _resampled_runs(random, both[0] - both[1], truth)
                print(
                    f"{count} runs, spread {between:g} logits, n {rows}: {100 * held / times:.1f}, "
                    f"resampled rows and runs {100 * before / times:.1f}",
                    flush=True,
                )


def _right(random: np.random.Generator, base: NDArray, count: int, between: float) -> NDArray[np.float64]:
    logits = base + random.normal(0, between, (count, 1)) + random.normal(0, 0.5, (count, len(base)))
    return (random.random(logits.shape) < expit(logits)).astype(np.float64)


def _resampled_runs(random: np.random.Generator, apart: NDArray[np.float64], truth: float) -> bool:
    runs, rows = apart.shape
    weights = random.multinomial(rows, np.full(rows, 1 / rows), size=200) / rows
    each = weights @ apart.T
    low, high = np.quantile(each[np.arange(200), random.integers(0, runs, (runs, 200))].mean(0), [0.025, 0.975])
    return bool(low <= truth <= high)


def report(name: str, found: Sequence[tuple[float, str]], certain: int | None = None) -> None:
    """The range over the grid, how much of it lies between `LEAST` and `MOST`, and where it is lowest."""
    covered = np.array([c for c, _ in found])
    low = min(found)
    line = (
        f"{name}: {len(found)} cases, {100 * covered.min():.1f} to {100 * covered.max():.1f}, "
        f"mean {100 * covered.mean():.1f}; {np.sum(covered < LEAST)} below {100 * LEAST:g}, "
        f"{np.sum(covered > MOST)} above {100 * MOST:g}"
    )
    line += "" if certain is None else f" ({certain} where the outcomes leave no choice)"
    print(f"{line}; lowest: {low[1]}", flush=True)


PARTS = {f.__name__: f for f in (shares, pairs, f1, calibration, runs)}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)} (default: all)")
    p.add_argument("--samples", type=int, default=4000)
    args = p.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        p.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    for name in args.parts or PARTS:
        begun = time.process_time()
        PARTS[name](args.samples)
        print(f"{name}: {time.process_time() - begun:.0f} CPU seconds", flush=True)


if __name__ == "__main__":
    main()
