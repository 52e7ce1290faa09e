"""`compress predict`: texts in, one line each out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import click

from compress.contracts import RunOptions
from compress.errors import UserError
from compress.modelnames import resolve
from compress.predictor import Predictor

AT_ONCE = 1024  # rows answered together: enough to fill batches, few enough that a stream answers soon


def predict_texts(
    model: str, texts: Sequence[str], pairs: Sequence[str], file: Path | None, options: RunOptions
) -> None:
    """Answer texts from the command line, a file or standard input; writes to stdout as it goes.

    Raises UserError when there is nothing to answer, or texts and second texts do not match.
    """
    if file is not None and texts:
        raise UserError("give texts or --file, not both", where="--file")
    if pairs and (file is not None or len(pairs) != len(texts)):
        raise UserError(
            f"{len(pairs)} second texts for {len(texts)} texts", where="--pair", do="give --pair once for every text"
        )
    if file is None and not texts:
        raise UserError("there is no text to answer", do='give texts, or --file FILE ("-" for standard input)')
    predictor = Predictor(
        resolve(model), device=options.device, precision="bf16" if options.precision == "bf16" else "fp32"
    )
    source = iter(texts) if file is None else _lines(file)
    second = iter(pairs) if pairs else None
    while chunk := list(islice(source, AT_ONCE)):
        partners = list(islice(second, AT_ONCE)) if second is not None else None
        for text, answer in zip(chunk, predictor.predict(chunk, partners), strict=True):
            if options.json:
                click.echo(json.dumps({"text": text, **answer.as_json()}, ensure_ascii=False))
            else:
                click.echo(answer.line(text))


def _lines(file: Path) -> Iterator[str]:
    """Lines of a UTF-8 file or of standard input, without their ends; empty lines are texts too."""
    with ExitStack() as stack:
        try:
            stream = sys.stdin.buffer if str(file) == "-" else stack.enter_context(open(file, "rb"))
        except OSError as error:
            raise UserError("cannot read the file", where=str(file), why=error.strerror) from error
        for number, line in enumerate(stream, 1):
            try:
                yield line.decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                why = f"byte {error.start} of the line"
                raise UserError("not UTF-8", where=f"{file}:{number}", why=why, do="convert the file") from error
