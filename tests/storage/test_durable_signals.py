"""The stop flag: one signal asks, a second one ends the process; forked workers and nohup are left in peace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from compress.storage import signals
from compress.storage.signals import OUT_OF_TIME, SIGNALS, StopFlag

HEAD = "import os, signal, sys, time\nfrom compress.storage.signals import StopFlag\n"


def start(body: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(signals.__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_sets_the_flag_and_the_handlers_come_back(number: signal.Signals) -> None:
    body = f"""
        from compress.storage.signals import SIGNALS
        before = [signal.getsignal(n) for n in SIGNALS]
        print("ready", flush=True)
        with StopFlag() as flag:
            assert flag.requested is None
            os.kill(os.getpid(), signal.{number.name})
            print(flag.requested)
        assert [signal.getsignal(n) for n in SIGNALS] == before
        assert signal.set_wakeup_fd(-1) == -1
    """
    with start(body) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == (f"{number.name}\n", "")


def test_the_first_reason_stays_and_two_at_once_are_one_request() -> None:
    body = """
        from compress.storage import signals
        signals._SAME_REQUEST = 60  # "at once" on the slowest machine
        print("ready", flush=True)
        with StopFlag() as flag:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGHUP)  # the kernel and the shell, when a terminal closes
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
            print(flag.requested)
    """
    with start(body) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "SIGHUP\n"


def test_a_flag_is_up_from_a_moment_on_as_long_as_that_is_asked_for() -> None:
    with StopFlag() as outer, StopFlag() as inner:
        with outer.until(time.monotonic() + 60):
            assert inner.requested is None
        with outer.until(time.monotonic()):
            assert inner.requested == OUT_OF_TIME
            outer.request("SIGINT")
            assert inner.requested == "SIGINT", "a signal is told first"
    with StopFlag() as flag, flag.until(None):
        assert flag.requested is None


def test_an_inner_flag_shows_what_the_outer_is_told() -> None:
    body = """
        print("ready", flush=True)
        with StopFlag() as outer:
            with StopFlag() as inner:
                signal.raise_signal(signal.SIGTERM)
                assert inner.requested == outer.requested == "SIGTERM"
            with StopFlag() as later:
                assert later.requested == "SIGTERM"
        with StopFlag() as fresh:
            assert fresh.requested is None
    """
    with start(body) as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors


def test_another_thread_may_use_it_without_handlers() -> None:
    seen: list[str | None] = []

    def work() -> None:
        with StopFlag() as flag:
            seen.append(flag.requested)
            flag.request("time is over")
            seen.append(flag.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None, "time is over"]


AGAIN = "again to end at once\n"


def wait_for_the_offer(process: subprocess.Popen[str]) -> None:
    """Until the process says that a second signal will end it."""
    assert process.stderr is not None
    while not (line := process.stderr.readline()).endswith(AGAIN):
        assert line, "it ended before"


def end(process: subprocess.Popen[str], first: signal.Signals, second: signal.Signals) -> str:
    """Send both; what the process says after the second. The limit is a guard: what it does would take longer."""
    process.send_signal(first)
    wait_for_the_offer(process)
    process.send_signal(second)
    assert process.wait(300) == 128 + second
    assert process.stderr is not None
    return process.stderr.read()


@pytest.mark.parametrize("number", SIGNALS)
def test_the_second_signal_ends_it_with_its_own_code(number: signal.Signals) -> None:
    body = """
        from compress.storage.signals import continued_by
        with StopFlag(), continued_by("compress distill --resume"), continued_by("of a part of it"):
            print("ready", flush=True)
            while True:
                time.sleep(100)
    """
    with start(body) as process:
        said = end(process, signal.SIGINT, number)
        kept = "the last checkpoint is kept; continue with: compress distill --resume"
        assert said == f"\nended at once by a second signal; {kept}\n"


LONG = {
    "in one call of native code": ("import hashlib", "hashlib.pbkdf2_hmac('sha256', b'x', b'y', 1_000_000_000)"),
    "in a product of torch": ("import torch", "torch.mm(*2 * [torch.ones(4000, 4000, dtype=torch.int64)])"),
    "in a call of a server that does not answer": (
        "import socket; server = socket.create_server(('127.0.0.1', 0))",
        "socket.create_connection(server.getsockname()).recv(1)",
    ),
    "while it waits for a lock": ("import threading; lock = threading.Lock(); lock.acquire()", "lock.acquire()"),
    "while nobody reads what it prints": ("pass", "while True: os.write(1, bytes(1 << 20))"),
}


@pytest.mark.parametrize("long", LONG)
def test_it_ends_whatever_it_does(long: str) -> None:
    before, call = LONG[long]
    body = f"""
        {before}
        with StopFlag() as flag:
            print("ready", flush=True)
            {call}
            os._exit(99)
    """
    with start(body) as process:
        end(process, signal.SIGTERM, signal.SIGTERM)


def test_it_ends_where_nobody_reads_its_last_words() -> None:
    body = """
        with StopFlag() as flag:
            os.set_blocking(2, False)
            try:
                while True:
                    os.write(2, bytes(1 << 16))
            except BlockingIOError:
                os.set_blocking(2, True)
            print("ready", flush=True)
            signals._watcher.armed.wait()
            print("armed", flush=True)
            time.sleep(300)
    """
    with start("from compress.storage import signals\n" + textwrap.dedent(body)) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "armed\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 128 + signal.SIGTERM


def test_signals_that_go_on_and_on_are_not_one_request_for_ever() -> None:
    """A key that is held down."""
    body = """
        import threading
        def hold():
            while True:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)
        with StopFlag() as flag:
            print("ready", flush=True)
            threading.Thread(target=hold, daemon=True).start()
            while True:
                time.sleep(100)
    """
    with start(body) as process:
        assert process.wait(300) == 128 + signal.SIGINT


def test_it_ends_its_children_and_theirs() -> None:
    body = """
        import subprocess
        child = "import subprocess, sys; p = subprocess.Popen(['sleep', '300']); print(p.pid, flush=True); p.wait()"
        quiet = dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, text=True)
        with StopFlag() as flag:
            below = subprocess.Popen([sys.executable, "-c", child], **quiet)
            print("ready", flush=True)
            print(below.pid, below.stdout.readline(), flush=True)
            time.sleep(300)
    """
    with start(body) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        end(process, signal.SIGTERM, signal.SIGTERM)
        until = time.monotonic() + 300
        while any(map(runs, pids)):
            assert time.monotonic() < until
            time.sleep(0.05)


def runs(pid: int) -> bool:
    """Whether there is such a process, and it is not merely waiting for somebody to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_that_watches_ends_at_the_second_signal_before_and_after_a_flag() -> None:
    """As the command line does: while a command without a flag is cleaning up, and while a stopped run ends."""
    body = """
        from compress.storage import signals
        signals.watch()
        with StopFlag() as flag:
            pass
        try:
            print("ready", flush=True)
            time.sleep(300)
        except KeyboardInterrupt:
            signals._watcher.armed.wait()
            print("armed", flush=True)
            time.sleep(300)
    """
    with start(body) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "armed\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 128 + signal.SIGINT
        assert process.stderr is not None
        assert process.stderr.read() == "\nended at once by a second signal\n"


def test_what_the_caller_ignores_stays_ignored() -> None:
    body = """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with StopFlag() as flag:
            print("ready", flush=True)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
                time.sleep(0.3)
            print(flag.requested, signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
    """
    with start(body) as process:
        assert process.communicate(timeout=120)[0] == "None True\n"


def test_forked_workers_die_of_sigterm_and_leave_ctrl_c_to_the_parent() -> None:
    body = """
        with StopFlag() as flag:
            pids = []
            for _ in range(2):
                pid = os.fork()
                if pid == 0:
                    time.sleep(60)
                    os._exit(0)
                pids.append(pid)
            print("ready", flush=True)
            os.kill(pids[0], signal.SIGTERM)
            os.kill(pids[1], signal.SIGINT)
            time.sleep(0.4)
            os.kill(pids[1], signal.SIGINT)
            time.sleep(0.2)
            first = os.waitpid(pids[0], 0)[1]
            second = os.waitpid(pids[1], os.WNOHANG)
            print(os.waitstatus_to_exitcode(first), second, flag.requested, flush=True)
            os.kill(pids[1], signal.SIGKILL)
            os.waitpid(pids[1], 0)
        print("left", flush=True)
    """
    with start(body) as process:
        out, err = process.communicate(timeout=120)
        assert out == "-15 (0, 0) None\nleft\n", err


def test_a_worker_killed_right_after_its_fork_dies_too() -> None:
    body = """
        with StopFlag() as flag:
            print("ready", flush=True)
            for _ in range(300):
                pid = os.fork()
                if pid == 0:
                    time.sleep(60)
                    os._exit(0)
                os.kill(pid, signal.SIGTERM)
                assert os.waitpid(pid, 0)[1] == signal.SIGTERM
            print(flag.requested)
    """
    with start(body) as process:
        out, err = process.communicate(timeout=120)
        assert out == "None\n", err


def test_leaving_does_not_wait_for_a_child_that_holds_the_pipe() -> None:
    body = """
        with StopFlag() as flag:
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            print("ready", flush=True)
        print("left", flush=True)
        os.kill(pid, signal.SIGKILL)
    """
    with start(body) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "left\n"  # communicate() would miss what came with the line before
