"""Re-check a model's certificate on this device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli._help import Command
from compress.cli._types import ModelName
from compress.cli.options import shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@click.option(
    "--kit",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Only write a program (check.pyz) that measures the latency on another machine.",
)
@click.option(
    "--measured",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Complete the certificate with the latency that such a program measured.",
)
@shared("data", "device")
def command(options: RunOptions, model: str, kit: Path | None, measured: Path | None) -> None:
    """Re-check the certificate that `compress fit` wrote into MODEL.

    \b
      compress verify runs/fit/model --data DATA

    It checks the hashes of the files, the size, the latency on this device, and with --data the quality on the
    certified rows.

    A model that was fitted for another machine (`--target`) is certified by a measurement there. It needs Python 3.11,
    numpy and the runtime:

    \b
      compress verify runs/fit/model --kit check.pyz
      scp check.pyz server: && ssh server python3 check.pyz --output measured.json
      compress verify runs/fit/model --measured measured.json

    Exit code 0: everything holds. 3: something does not hold, or could not be checked (a busy machine, other data).
    4: a file has changed since it was certified.
    """
    from compress.cli._flags import listening
    from compress.errors import UserError
    from compress.fit.certificate.elsewhere import write_model_kit
    from compress.fit.certificate.verify import verify

    if measured is not None and any(one.path == "data.source" for one in options.overrides):
        do = "check the quality afterwards, in a command of its own"
        raise UserError("cannot be combined with --data", where="--measured", do=do)
    if kit is None:
        verify(model, options, listening(options), measured=measured)
        return
    if measured is not None:
        raise UserError("cannot be combined with --measured", where="--kit", do="remove one of the two")
    write_model_kit(model, kit, listening(options))
