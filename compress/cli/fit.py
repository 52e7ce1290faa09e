"""Find the best model within a size or latency budget and certify it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compress.cli._help import Command
from compress.cli._renamed import RenamedChoice
from compress.cli._types import Duration, IntRange, Milliseconds, ModelName
from compress.cli.options import shared
from compress.errors import UserError

if TYPE_CHECKING:
    from compress.contracts import RunOptions


class Megabytes(click.ParamType):
    """A size such as 20 or 20MB."""

    name = "mb"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip().lower().removesuffix("mb").strip()
        try:
            return float(text)
        except ValueError:
            self.fail(f"'{value}' is not a size in megabytes, such as 20", param, ctx)


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@click.option("--max-mb", type=Megabytes(), help="Maximum size of the deployed file in megabytes (10^6 bytes).")
@click.option(
    "--max-ms",
    type=Milliseconds(),
    help="Maximum latency on this device (or --target), in milliseconds: the mean over texts of the data, tokenization "
    "included (with --length: the median of a batch).",
)
@click.option(
    "--max-drop",
    type=float,
    metavar="POINTS",
    help="Maximum drop of the main metric in percentage points, such as 0.5.",
)
@click.option(
    "--objective",
    type=click.Choice(["quality", "smallest", "fastest"]),
    help="What to optimize within the bounds (default: quality; with --max-drop only: smallest; with --cascade: "
    "fastest).",
)
@click.option(
    "--length",
    type=IntRange(3, 1_000_000),
    help="Time sequences of this many tokens, without tokenization (default: texts of the data).",
)
@click.option(
    "--target",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Plan for the machine that `compress profile` measured in this file, instead of this machine.",
)
@click.option("--batch", type=IntRange(1, 4096), default=1, show_default=True, help="Batch size: texts per call.")
@click.option(
    "--time",
    "seconds",
    type=Duration(),
    help="Time limit, such as 10m (default: none): candidates that would exceed it are not built or trained. The "
    "first measurements and one candidate are always completed.",
)
@click.option(
    "--plans",
    type=IntRange(1, 64),
    default=6,
    show_default=True,
    help="Maximum number of candidate models to build and measure.",
)
@click.option(
    "--train",
    type=RenamedChoice(["none", "recover", "full"], {"heal": "recover"}),
    default="none",
    show_default=True,
    help="recover: distil the parent into the 4 best candidates, then the best 2, then the best, before quantization "
    "(successive halving). full: then also train the best with quantization-aware training.",
)
@click.option(
    "--steps",
    type=IntRange(1, 1_000_000),
    help="--train: optimizer steps (32 rows each; 64 of embedding models and rerankers) for the last candidate "
    "(default: 400); the others get a half and a quarter. full: as many again with quantization.",
)
@click.option(
    "--trials",
    type=IntRange(0, 100_000),
    default=0,
    help="--train: train the best candidate N more times with learning rates, temperatures, weights and steps chosen "
    "by optuna (extra search).",
)
@click.option(
    "--study",
    metavar="ADDRESS",
    help="Storage of the trials, for several machines: sqlite:///FILE, journal:///FILE, postgresql://... (default: "
    "the output folder).",
)
@click.option("--family", is_flag=True, help="Build and measure a Pareto family over the whole size/latency range.")
@click.option(
    "--cascade",
    is_flag=True,
    help="Also join models of the fit, the fastest first and the parent last, into a cascade within --max-drop "
    "(experimental).",
)
@click.option(
    "--plan-only", is_flag=True, help="Print the planned candidates and their estimated costs; build nothing."
)
@click.option(
    "--uncertified", is_flag=True, help="Accept a model without a certificate: on a busy machine, or with too few rows."
)
@shared(
    "data", "unlabelled", "overrides", "device", "deterministic", "any_runtime", "output", "trainings", "push", "store",
    "experiment",
)  # fmt: skip
def command(options: RunOptions, model: str, **given: Any) -> None:
    """Find the best model within a size or latency budget on this machine, and certify it.

    \b
      compress fit FOLDER --data DATA --max-mb 20 --max-ms 5 --threads 1

    Layers, heads, neurons, parameter sharing, vocabulary, embeddings and bit widths are chosen together, by their
    measured cost on this machine and the estimated loss of quality. The best candidates are built, written as the file
    to deploy, and measured; the best of them is measured once more on test rows. Nothing is trained without --train.
    Exit code 3: no candidate meets the bounds, or the machine was too busy for a certificate; the best model found is
    saved in any case.

    \b
      compress fit FOLDER --data DATA --max-drop 0.5
      compress fit FOLDER --data DATA --max-ms 3 --plan-only
      compress fit FOLDER --data DATA --max-drop 0.5 --cascade
      compress fit FOLDER --data DATA --max-ms 3 --target target.json
    """
    from compress.cli._flags import listening
    from compress.fit.request.bounds import Bounds
    from compress.fit.request.options import FitOptions
    from compress.fit.run import fit
    from compress.fit.target.target_file import read_target

    if given["steps"] is not None and given["train"] == "none":
        raise UserError("needs training", where="--steps", do="add --train recover or --train full")
    if given["steps"] is None:
        del given["steps"]
    objective = given.pop("objective") or ("fastest" if given["cascade"] else None)
    bounds = Bounds(given.pop("max_mb"), given.pop("max_ms"), given.pop("max_drop"), objective)
    target = given.pop("target")
    asked = FitOptions(model=model, bounds=bounds, target=None if target is None else read_target(target), **given)
    fit(asked, options, listening(options))
