"""Re-check a model's certificate on this device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli.options import Command, ModelName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@shared("data", "device")
def command(options: RunOptions, model: str) -> None:
    """Re-check the certificate that `compress fit` wrote into MODEL.

    \b
      compress verify runs/fit/model --data DATA

    It checks the hashes of the files, the size, the latency on this device, and with --data the quality on the
    certified rows.

    Exit code 0: everything holds. 3: something does not hold, or could not be checked (a busy machine, other data).
    4: a file has changed since it was certified.
    """
    from compress.cli._flags import listening
    from compress.fit.certificate.verify import verify

    verify(model, options, listening(options))
