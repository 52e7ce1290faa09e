"""Name a budget, get the model, with a certificate of what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from compress.cli.options import Command, Milliseconds, ModelName, shared

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


class Duration(click.ParamType):
    """Seconds, from a time such as 90s, 10m or 2h."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip().lower()
        scale = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:], 1.0)
        try:
            seconds = float(text.rstrip("smh")) * scale
        except ValueError:
            self.fail(f"'{value}' is not a time, such as 90s, 10m or 2h", param, ctx)
        if not 0 < seconds < float("inf"):
            self.fail(f"'{value}' is no time to work in; give one above 0, such as 10m", param, ctx)
        return seconds


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@click.option("--max-mb", type=Megabytes(), help="Most megabytes (10^6 bytes) of the file that is deployed.")
@click.option("--max-ms", type=Milliseconds(), help="Most milliseconds, the median of a batch on this device.")
@click.option("--max-drop", type=float, metavar="POINTS", help="Most points of the main metric lost, such as 0.5.")
@click.option(
    "--objective",
    type=click.Choice(["quality", "smallest", "fastest"]),
    help="What is best within the bounds; not given: quality, or the smallest where --max-drop alone is given.",
)
@click.option(
    "--length",
    type=click.IntRange(3, 1_000_000),
    help="Tokens of a text that is timed (default: 128, or as many as the model has positions).",
)
@click.option("--batch", type=click.IntRange(1, 4096), default=1, show_default=True, help="Texts at once.")
@click.option("--time", "seconds", type=Duration(), help="Time to work in, such as 10m; not given: as the plans need.")
@click.option("--plans", type=click.IntRange(1, 64), default=6, show_default=True, help="Most plans made and measured.")
@click.option(
    "--train",
    type=click.Choice(["none", "heal", "full"]),
    default="none",
    show_default=True,
    help="heal: distil the parent into the best plans too, before they are rounded: four, then two, then one. full: "
    "also train the best model then with its numbers rounded.",
)
@click.option(
    "--steps",
    type=click.IntRange(1, 1_000_000),
    default=400,
    show_default=True,
    help="Of --train: steps of 32 rows of the last plan that is healed (the others take a half and a quarter), and as "
    "many rounded.",
)
@click.option(
    "--trials",
    type=click.IntRange(0, 100_000),
    default=0,
    help="Of --train: heal the best plan so many times more with other rates, temperatures, weights and steps, chosen "
    "by optuna (extra search).",
)
@click.option(
    "--study",
    metavar="ADDRESS",
    help="Where the trials are kept, for several machines at once: sqlite:///FILE, journal:///FILE, postgresql://...; "
    "not given: the output folder.",
)
@click.option("--family", is_flag=True, help="Models along the whole range of sizes and speeds, all measured.")
@click.option("--plan-only", is_flag=True, help="Show the plans and what they would cost; make nothing.")
@click.option(
    "--uncertified", is_flag=True, help="Take a model without a certificate: on a busy machine, or with too few rows."
)
@shared("data", "overrides", "compute", "any_runtime", "output", "store", "experiment")
def command(options: RunOptions, model: str, **given: Any) -> None:
    """Fit MODEL to a budget on this machine, and certify what came out.

    Layers, heads, neurons, what layers share, vocabulary, embeddings and bits are chosen together, by what they cost
    here and what the model loses without them; the best plans are made, written as the file that is deployed, and
    measured; the best of them is measured once more on test rows. Nothing is trained unless --train asks for it. Exit
    code 3 where no plan meets the bounds, or the machine was too busy for a certificate; the best model found is left
    in any case.

    \b
      compress fit FOLDER --data DATA --max-mb 20 --max-ms 5 --threads 1
      compress fit FOLDER --data DATA --max-drop 0.5
      compress fit FOLDER --data DATA --max-ms 3 --plan-only
    """
    from compress.cli._flags import listening
    from compress.fit.request.bounds import Bounds
    from compress.fit.request.options import Wanted
    from compress.fit.run import fit

    given["plan_only"] |= options.dry_run
    bounds = Bounds(given.pop("max_mb"), given.pop("max_ms"), given.pop("max_drop"), given.pop("objective"))
    fit(Wanted(model=model, bounds=bounds, **given), options, listening(options))
