"""`compress`: a group whose commands are the files beside this one, imported only when they are chosen."""

from __future__ import annotations

import ast
import contextlib
import errno
import io
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click

from compress import __version__, registry
from compress.cli._loading import Announcer
from compress.cli._model import accept_both
from compress.cli._renamed import accept_renamed
from compress.cli._words import command_meant, flag_meant, why_not
from compress.errors import (
    ExitCode,
    Stopped,
    UserError,
    did_you_mean,
    find_exhausted,
    long_path_error,
    nearest,
    printable,
)
from compress.garbage import collect_seldom
from compress.import_paths import prefer_installed

FOLDER = Path(__file__).parent
NOT_COMMANDS = ("main", "options")

COMPLETE = "_COMPRESS_COMPLETE"
"""The variable by which a shell asks for completions."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass
class State:
    """What the top level must know when a command failed."""

    debug: bool = False


def debug_option(function: Any) -> Any:
    """`--debug`, on the group and on every command."""

    def remember(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            context.ensure_object(State).debug = True

    text = "Show the traceback of an error."
    return click.option("--debug", is_flag=True, expose_value=False, is_eager=True, callback=remember, help=text)(
        function
    )


class Commands(click.Group):
    """Commands by file name: `prune_layers.py` holds `command`, and is called `prune-layers`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_files())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _files():
            return None
        module = registry.module("compress.cli", _files()[cmd_name].stem)
        command: click.Command = module.command
        accept_renamed(command, cmd_name)
        accept_both(command, cmd_name)
        command.help = command.help or module.__doc__
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if name not in _files() and not name.startswith("-"):
            hint = command_meant(name) or did_you_mean(name, _files())
            raise click.UsageError(f"no such command '{printable(name, 60)}'; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line per command, read from the files without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_line(path)) for name, path in sorted(_files().items())])


@cache
def _files() -> dict[str, Path]:
    """Command name → its file."""
    found = (path for path in FOLDER.glob("*.py") if path.stem not in NOT_COMMANDS and not path.stem.startswith("_"))
    return {path.stem.replace("_", "-"): path for path in found}


def _first_line(path: Path) -> str:
    """The first line of a file's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].rstrip(".")


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="compress")
@debug_option
def cli() -> None:
    """Make BERT-family encoders smaller and faster, and measure what that costs.

    Start with `compress distill --recipe distilbert`; `compress recipes list` shows the other recipes. Several GPUs, or
    processors, train together under `torchrun --nproc-per-node N -m compress …`.
    """


def main(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code; every error leaves as one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show must not end a run
            stream.reconfigure(errors="backslashreplace")
    if args is None:  # this process is the command's alone
        from compress.storage.signals import watch

        collect_seldom()
        watch()
    from compress.training.restarts import fails_again

    if fails_again():
        return ExitCode.INPUT
    state = State()
    announcer = Announcer(_announce)
    try:
        announcer.install()
        prefer_installed()
        result = _run(sys.argv[1:] if args is None else list(args), state)
        sys.stdout.flush()
        return result if isinstance(result, int) else ExitCode.OK
    except BaseException as error:  # native code raises outside Exception too (tokenizers' PanicException)
        return _leave(error, state)
    finally:
        announcer.remove()


def _announce(text: str) -> None:
    """A line about the program itself on stderr: not with --quiet, and of the first process only."""
    from compress.training.ranks import ranks

    context = click.get_current_context(silent=True)
    quiet = context is None or context.resilient_parsing or context.params.get("quiet")
    if not quiet and ranks().leads:
        click.echo(text, err=True)


def _run(args: list[str], state: State) -> Any:
    """What click's own `main` does, without its answers to interrupts and broken pipes."""
    asked = os.environ.get(COMPLETE)
    if asked:
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "compress", COMPLETE, asked)
    try:
        with cli.make_context("compress", args, obj=state) as context:
            return cli.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code


def _leave(error: BaseException, state: State) -> int:
    """Tell the error in one line; returns the exit code."""
    from compress.training.restarts import record_end

    if isinstance(error, SystemExit):  # of a process whose error another one told
        record_end(error.code)
        raise error
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has seen enough (`| head`); nothing more can be said to them.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    if state.debug:
        import traceback

        traceback.print_exception(error)
    from compress.training.ranks import ranks

    line, code = _told(error, state)
    if (names := sys.modules.get("compress.tracking.names")) is not None:  # else no address was read: an import is slow
        line = names.redact(line)
    record_end(code, line)
    if not ranks().leads and code != ExitCode.BUG:  # the first process says the same
        return code
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
    return code


def _told(error: BaseException, state: State) -> tuple[str, int]:
    exhausted = find_exhausted(error)
    if isinstance(error, UserError):
        if exhausted is not None and error.code == ExitCode.INPUT:  # read as a mistake in the input, and is none
            return f"error: {exhausted.line()}", exhausted.code
        return f"error: {error.line()}", error.code
    if isinstance(error, Stopped):
        resume = f"; continue with: {error.resume}" if error.resume else ""
        said = error.reason if error.reason.startswith("stopped ") else f"stopped: {error.reason}"
        return printable(f"{said}{resume}"), ExitCode.STOPPED
    if isinstance(error, KeyboardInterrupt | EOFError | click.Abort):
        return "stopped: interrupted", ExitCode.STOPPED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message(), ExitCode.INPUT
    if isinstance(error, click.ClickException):
        return f"error: {_usage(error)}", ExitCode.INPUT
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        where = f" at {error.filename}" if error.filename else ""
        return printable(f"error: no space left on the disk{where}; free some space and run again"), ExitCode.RESOURCES
    if exhausted is not None:
        return f"error: {exhausted.line()}", exhausted.code
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"error: {long_path_error(str(error.filename or '')).line()}", ExitCode.INPUT
    if isinstance(error, PermissionError) and error.filename:
        return printable(f"error: {error.filename}: permission denied"), ExitCode.INPUT
    what = printable(f"{type(error).__name__}: {error}", 300)
    do = "please report it" if state.debug else f"{_keep(error)}; please report it"
    return f"error: internal error: {what}; {do}", ExitCode.BUG


def _usage(error: click.ClickException) -> str:
    """click's own complaint in our style."""
    message = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error, click.NoSuchOption):
        known = _options(error.ctx)
        message = f"no such option '{printable(error.option_name, 60)}'"
        why = why_not(error.option_name, error.ctx.info_name if error.ctx else None)
        if why is not None:
            return printable(f"{message}; {why}")
        near = flag_meant(error.option_name, known) or nearest(error.option_name, known)
        if near:
            return f"{message}; did you mean '{near}'?"
    context = getattr(error, "ctx", None)
    message = printable(message[:1].lower() + message[1:])
    if "did you mean" in message or "; known: " in message or context is None:
        return message
    return f"{message}; see `{context.command_path} --help`"


def _options(context: click.Context | None) -> list[str]:
    parameters = context.command.get_params(context) if context else []
    return [name for p in parameters if isinstance(p, click.Option) for name in (*p.opts, *p.secondary_opts)]


def _keep(error: BaseException) -> str:
    """Save the traceback, since the run that it belongs to may have been long; says where it is."""
    import tempfile
    import traceback

    from compress.storage.atomic import write_text

    path = Path(tempfile.gettempdir()) / f"compress-error-{os.getpid()}.txt"
    try:
        write_text(path, "".join(traceback.format_exception(error)))
    except (OSError, UserError):
        return "run again with --debug for the traceback"
    return f"the traceback is in {path}"
