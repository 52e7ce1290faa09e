"""Remove heads, feed-forward neurons and channels of an encoder, and recover by distillation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli.options import Milliseconds, TeacherName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


class Amount(click.ParamType):
    """A number such as 12M, 1.5G or 12000000, or a share of the model's such as 50%."""

    name = "amount"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        scale = {"%": 0.01, "k": 1e3, "m": 1e6, "g": 1e9}.get(text[-1:].lower(), 1.0)
        try:
            return float(text[:-1] if scale != 1 else text) * scale
        except ValueError:
            self.fail(f"'{value}' is not an amount, such as 12M, 1.5G or 50%", param, ctx)


@click.command()
@click.argument("model", type=TeacherName(), required=False)
@click.option("--keep-heads", metavar="N", help="Heads that stay in a layer, or a list with one number a layer.")
@click.option("--keep-ffn", metavar="N", help="Feed-forward neurons that stay in a layer, or a list, one a layer.")
@click.option("--hidden", type=int, metavar="N", help="Channels of the hidden states that stay.")
@click.option("--head-width", type=int, metavar="N", help="Channels of each head that stay.")
@click.option("--ratio", type=float, metavar="SHARE", help="Share of heads and neurons that goes, such as 0.5.")
@click.option("--target-params", type=Amount(), help="Parameters that are left at most: 12M, or 50% of the model's.")
@click.option("--target-flops", type=Amount(), help="Operations of one sequence at most: 1.5G, or 50% of the model's.")
@click.option("--target-latency", type=Milliseconds(), help="Median latency on this device at most, such as 5ms.")
@click.option("--uneven", is_flag=True, help="Each layer its own numbers, by ranking all layers together.")
@click.option("--importance", metavar="NAME", help="What tells which parts are needed (obs when not given).")
@click.option(
    "--steps",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Cut in N steps, larger ones first, and recover between.",
)
@click.option("--no-recover", is_flag=True, help="Cut and measure; do not distil.")
@click.option("--seeds", type=click.IntRange(2, 100), help="Repeat with so many seeds, and tell all together.")
@shared("recipe", "data", "compute", "output", "store", "experiment")
def command(
    options: RunOptions,
    model: str | None,
    keep_heads: str | None,
    keep_ffn: str | None,
    hidden: int | None,
    head_width: int | None,
    ratio: float | None,
    target_params: float | None,
    target_flops: float | None,
    target_latency: float | None,
    uneven: bool,
    importance: str | None,
    steps: int | None,
    no_recover: bool,
    seeds: int | None,
) -> None:
    """Make the layers of MODEL narrower, and recover by distilling MODEL into what is left.

    MODEL is a folder, runs:/…, models:/…, or a recipe that makes one. What goes is gone: rows and columns are removed,
    nothing is masked. It is measured before, after cutting and after recovery.

    \b
      compress prune-width FOLDER --keep-heads 6 --keep-ffn 768 --data DATA
      compress prune-width FOLDER --target-latency 3ms --uneven --data DATA
      compress prune-width FOLDER --hidden 192 --steps 3 --data DATA

    Importances that read text alone: obs (used when none is given), hessian, activation. That read labels:
    reconstruction, fisher, taylor. That train masks and weights first: l0, movement (recipes prune-width-l0,
    prune-width-movement). Baselines: magnitude, random.
    A stock Hugging Face class loads what has layers that are alike and heads x width = hidden.
    """
    from compress.cli.flags.prune_width import Wanted, prune_width

    wanted = Wanted(
        model=model,
        keep_heads=keep_heads,
        intermediate_size=keep_ffn,
        hidden=hidden,
        head_width=head_width,
        ratio=ratio,
        target_params=target_params,
        target_flops=target_flops,
        target_latency=target_latency,
        uneven=uneven,
        importance=importance,
        steps=steps,
        recover=not no_recover,
        seeds=seeds,
    )
    prune_width(wanted, options)
