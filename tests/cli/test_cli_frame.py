"""The command line's frame: light help, nearest names, one line and the right code for every way to fail."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from compress.cli import main as frame
from compress.errors import ExitCode, Stopped, UserError

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(frame._files())
HEAVY = ("torch", "mlflow", "datasets", "transformers", "tokenizers", "numpy", "pydantic", "rich")


def run(*args: str, **extra: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **extra}
    command = [sys.executable, "-m", "compress", *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


# --- help -------------------------------------------------------------------------------------------------------


def test_help_lists_every_command_with_one_line() -> None:
    told = run("--help")
    assert told.returncode == 0
    for name in ("distill", "recipes", "doctor", "completion"):
        assert f"\n  {name} " in told.stdout
    assert told.stderr == ""


@pytest.mark.thorough
@pytest.mark.parametrize("args", [[], *([name] for name in COMMANDS)], ids=["compress", *COMMANDS])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys; from compress.cli.main import main; code = main(sys.argv[1:] + ['--help']); "
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    told = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert (told.returncode, told.stderr.strip()) == (0, "[]")
    assert "Usage: compress" in told.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_an_example(name: str) -> None:
    command = frame.cli.get_command(click.Context(frame.cli), name)
    assert command is not None
    assert re.search(rf"^ +compress {name} ", command.help or "", re.MULTILINE)


def test_comparing_runs_does_not_wait_for_torch() -> None:
    """Half of what the command takes on a store of 1,000 runs; models that are measured need it, runs do not.

    Nor does a mistyped column wait for what computes intervals."""
    code = "import sys, compress.compare.run; print([m for m in ('torch', 'mlflow', 'scipy') if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert told.stdout.strip() == "[]", told.stderr


def test_help_is_fast() -> None:
    """Under 0.3 s, as processor time, so that other work on the machine does not count."""

    def seconds() -> float:
        before = os.times()
        run("--help")
        after = os.times()
        return after.children_user - before.children_user + after.children_system - before.children_system

    assert min(seconds() for _ in range(3)) < 0.3


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_file_holds_a_command(name: str) -> None:
    command = frame.cli.get_command(click.Context(frame.cli), name)
    assert isinstance(command, click.Command)
    assert command.help
    assert frame._first_line(frame._files()[name])
    assert any("--debug" in p.opts for p in _parameters(command)), "errors must be traceable"


def _parameters(command: click.Command) -> list[click.Parameter]:
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    return [p for one in commands for p in one.params]


def test_version() -> None:
    import compress

    assert run("--version").stdout == f"compress, version {compress.__version__}\n"


# --- mistakes ---------------------------------------------------------------------------------------------------

USAGE = [
    (["recips"], "error: no such command 'recips'; did you mean 'recipes'?"),
    (["finetun"], "error: no such command 'finetun'; did you mean 'finetune'?"),
    (["recipes", "lst"], "error: no such command 'lst'; did you mean 'list'?"),
    (["recipes", "zzz"], "error: no such command 'zzz'; known: list, show, copy, validate, schema"),
    (["--versoin"], "error: no such option '--versoin'; did you mean '--version'?"),
    (["distill", "--recpe", "x"], "error: no such option '--recpe'; did you mean '--recipe'?"),
    (["distill", "--text-colum", "x"], "error: no such option '--text-colum'; did you mean '--text-column'?"),
    (["recipes", "list", "--jsn"], "error: no such option '--jsn'; did you mean '--json'?"),
    (
        ["distill", "--seed", "1.5"],
        "error: invalid value for '--seed': '1.5' is not a valid integer; see `compress distill --help`",
    ),
    (
        ["benchmark", "m", "--batch", "two"],
        "error: invalid value for '--batch': 'two' is not a valid integer; see `compress benchmark --help`",
    ),
    (
        ["distill", "--device", "gpu"],
        "error: invalid value for '--device': 'gpu' is not one of 'auto', 'cpu', 'cuda'; see `compress distill --help`",
    ),
    (
        ["distill", "--precision", "fp16"],
        "error: invalid value for '--precision': 'fp16' is not one of 'auto', 'fp32', 'bf16'; "
        "see `compress distill --help`",
    ),
    (
        ["distill", "--threads", "0"],
        "error: invalid value for '--threads': 0 is not in the range 1<=x<=4096; see `compress distill --help`",
    ),
    (["distill", "--recipe"], "error: option '--recipe' requires an argument"),
    (["recipes", "show"], "error: missing argument 'RECIPE'; see `compress recipes show --help`"),
    (
        ["completion", "bsh"],
        "error: invalid value for '{bash|zsh|fish}': 'bsh' is not one of 'bash', 'zsh', 'fish'; "
        "see `compress completion --help`",
    ),
    (["recipes\x1b[2J"], "error: no such command 'recipes\\x1b[2J'; did you mean 'recipes'?"),
]


@pytest.mark.parametrize(("args", "message"), USAGE, ids=[" ".join(a).replace("\x1b", "ESC") for a, _ in USAGE])
def test_usage_mistakes(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(args) == ExitCode.INPUT
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == message + "\n"


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main([]) == ExitCode.INPUT
    assert capsys.readouterr().err.startswith("Usage: compress [OPTIONS] COMMAND")


# --- ways to leave ----------------------------------------------------------------------------------------------


class Panic(BaseException):
    """As native code raises it: not an Exception."""


def raised_from(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


NO_MEMORY = (
    "error: out of memory; reduce the memory use, e.g. --set stages.*.training.max_tokens=2048 or --limit ROWS, "
    "or close other programs"
)
NO_THREADS = (
    "error: no more threads or processes can be started: a limit of the system or the container is reached; "
    "use --threads 1 with OMP_NUM_THREADS=1, or raise the limit (`ulimit -u`, or that of the container)"
)
NO_FILES = (
    "error: no more files can be opened: a limit of the system is reached; raise the limit (`ulimit -n 4096`), "
    "or close other programs"
)
LEAVE = [
    (UserError("is wrong", where="x", do="do y"), 2, "error: x: is wrong; do y"),
    (UserError("held", code=ExitCode.REFUSED), 3, "error: held"),
    (UserError("no GPU", code=ExitCode.ENVIRONMENT), 6, "error: no GPU"),
    (Stopped("SIGTERM at step 7", "compress run x --resume"), 75, "stopped: SIGTERM at step 7; "
     "continue with: compress run x --resume"),
    (Stopped("SIGINT"), 75, "stopped: SIGINT"),
    (Stopped("stopped by SIGINT after step 7"), 75, "stopped by SIGINT after step 7"),
    (KeyboardInterrupt(), 75, "stopped: interrupted"),
    (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 5,
     "error: no space left on the disk at /x/y; free some space and run again"),
    (MemoryError(), 5, NO_MEMORY),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), 5,
     NO_MEMORY),
    (RuntimeError("std::bad_alloc"), 5, NO_MEMORY),
    (ImportError("libx.so: failed to map segment from shared object"), 5, NO_MEMORY),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), 5, NO_MEMORY),
    (raised_from(UserError("cannot read this file"), MemoryError()), 5, NO_MEMORY),
    (RuntimeError("can't start new thread"), 5, NO_THREADS),
    (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), 5, NO_THREADS),
    (Panic("The global thread pool has not been initialized.: ThreadPoolBuildError"), 5, NO_THREADS),
    (OSError(errno.EMFILE, "Too many open files", "/x"), 5, NO_FILES),
    (raised_from(UserError("cannot read the file", where="x"), OSError(errno.ENFILE, "Too many")), 5, NO_FILES),
    (raised_from(UserError("no GPU", code=ExitCode.ENVIRONMENT), MemoryError()), 6, "error: no GPU"),
    (OSError(errno.ENAMETOOLONG, "File name too long", "/a/" + "b" * 300), 2, f"error: /a/{'b' * 56}…: the path is too "
     "long: 303 bytes, one name of 300; use at most 255 bytes for each name and 4,095 for the whole path"),
    (PermissionError(errno.EACCES, "Permission denied", "/root/a\nb"), 2, "error: /root/a\\nb: permission denied"),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), 0, ""),
]  # fmt: skip


def fail(error: BaseException, monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    @click.command()
    @frame.debug_option
    def command() -> None:
        raise error

    monkeypatch.setattr(frame.Commands, "get_command", lambda *_: command)
    return frame.main(["doctor", *args])


@pytest.mark.parametrize(("error", "code", "message"), LEAVE, ids=[repr(e)[:30] for e, _, _ in LEAVE])
def test_every_way_to_fail_is_one_line(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(frame.os, "dup2", lambda *_: None)
    monkeypatch.setattr(frame.os, "open", lambda *_: 3)
    assert fail(error, monkeypatch) == code
    assert capsys.readouterr().err == (message + "\n" if message else "")


@pytest.mark.parametrize("error", [KeyError("x"), Panic("regex")], ids=repr)
def test_a_bug_keeps_its_traceback_in_a_file(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert fail(error, monkeypatch) == ExitCode.BUG
    [kept] = tmp_path.iterdir()
    assert capsys.readouterr().err == (
        f"error: internal error: {type(error).__name__}: {error}; the traceback is in {kept}; please report it\n"
    )
    assert "raise error" in kept.read_text()


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(UserError("is wrong"), monkeypatch, "--debug") == ExitCode.INPUT
    told = capsys.readouterr().err
    assert told.startswith("Traceback (most recent call last)")
    assert told.endswith("\nerror: is wrong\n")


def test_a_closed_pipe_ends_quietly() -> None:
    code = "import sys; from compress.cli.main import main; sys.exit(main(['recipes', 'schema']))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read().decode().splitlines() == ["loading torch …"]
        assert process.wait(60) == 0


def test_a_terminal_without_unicode_gets_escapes() -> None:
    told = run("recipes", "show", "模型", PYTHONIOENCODING="ascii")
    assert told.returncode == ExitCode.INPUT
    assert told.stderr.startswith("error: unknown recipe '\\u6a21\\u578b'; ")


# --- completion -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    from click.shell_completion import BashComplete

    BashComplete._check_version = staticmethod(lambda: None)  # it would run the machine's bash
    assert frame.main(["completion", shell]) == 0
    assert "_COMPRESS_COMPLETE" in capsys.readouterr().out


COMPLETIONS = [
    ("compress rec", "recipes"),
    ("compress distill --rec", "--recipe"),
    ("compress distill --recipe distilbert-t", "distilbert-task"),
    ("compress recipes show smo", "smoke"),
    ("compress distill --teacher tea", "teacher"),
]


@pytest.mark.parametrize(("line", "answer"), COMPLETIONS)
def test_completion_of_commands_options_and_recipe_names(line: str, answer: str) -> None:
    words = line.split()
    told = run(_COMPRESS_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert f"plain,{answer}" in told.stdout.split()


def test_completion_waits_for_no_heavy_import() -> None:
    code = "import sys; from compress.recipe.library import names; assert names(); print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert not {"torch", "mlflow", "transformers", "datasets", "pandas"} & set(done.stdout.split())


def test_the_flag_names_every_runtime() -> None:
    """Written again beside the flag: `--help` must not import what computes."""
    from compress.cli import _groups
    from compress.onnx import runtimes

    assert _groups.RUNTIMES == runtimes.RUNTIMES
