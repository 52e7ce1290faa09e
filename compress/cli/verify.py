"""Hold a model's certificate against the model, on this device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli.options import Command, ModelName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@shared("data", "compute")
def command(options: RunOptions, model: str) -> None:
    """Re-check the certificate that `compress fit` left in MODEL.

    The hashes of its files, its size, its latency here, and with --data its quality on the rows that it was certified
    on.

    Exit code 0: all of it holds. 3: something does not hold, or could not be judged (a busy machine, other data).
    4: a file is not the one that was certified.

    \b
      compress verify runs/fit/model --data DATA
    """
    from compress.cli._flags import listening
    from compress.fit.certificate.verify import verify

    verify(model, options, listening(options))
