"""The command line: one file per command; the file name is the command."""

import click

# click says "'x' is not a valid integer range" of what is no number; the range itself has a message of its own.
click.IntRange.name, click.FloatRange.name = click.INT.name, click.FLOAT.name
