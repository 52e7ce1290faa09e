"""Background threads that upload a run's journal and its files to the store, so that training never waits for it."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

from requests.exceptions import RequestException

from compress.tracking import outages
from compress.tracking import records as rec
from compress.tracking.replay import Replay, RunDeleted, RunMissing
from compress.tracking.store import Store, short

log = logging.getLogger("compress.tracking")

INTERVAL = 3.0
SERVER_INTERVAL = 10.0
"""Of a server: each batch is a request, and a page is looked at more rarely than that."""
LONGEST_PAUSE = 60.0
DOWN_SECONDS = 5.0
"""For the files of a run that ends, where files of an earlier run of this process did not arrive in time."""

_OF_CONNECTIONS = (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError, RequestException)


class Lane(threading.Thread):
    """Does its work when it is woken, and every few seconds. After a failure it waits twice as long each time, up to a
    minute. It never raises.

    work: sends what there is; whether there was any.  interval: seconds.  failed: called after a failure.  succeeded:
    after some was sent, with the number of outages that were known before.  at_once: begins by itself.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], bool],
        interval: float,
        failed: Callable[[Exception], None],
        succeeded: Callable[[int], None],
        *,
        at_once: bool,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._interval, self._failed, self._succeeded = work, interval, failed, succeeded
        self._wake = threading.Event()
        if at_once:
            self._wake.set()
        self._settled = threading.Event()
        self._flushing = False
        self._attempts_left = 0
        self._closing = False
        self._failures = 0

    @property
    def down(self) -> bool:
        """The last try failed, and none has succeeded since."""
        return self._failures > 0

    def wake(self) -> None:
        """Has it look for work now, unless it waits after a failure."""
        if not self._failures:
            self._wake.set()

    def flush(self, seconds: float) -> bool:
        """Sends what there is now and returns when it is sent, when the store refuses to answer, or after `seconds`:
        then False."""
        self._attempts_left = 1 if self.down else 2
        self._settled.clear()
        self._flushing = True
        self._wake.set()
        settled = self._settled.wait(seconds) if self.is_alive() else True
        self._flushing = False
        return settled

    def close(self, seconds: float = 1.0) -> None:
        """Ends the thread; one that hangs in a call is left to die with the process."""
        self._closing = True
        self._wake.set()
        if self.is_alive():
            self.join(seconds)

    def run(self) -> None:
        while not self._closing:
            self._wake.wait(self._pause())
            self._wake.clear()
            if self._closing:
                break
            self._one_pass()

    def _pause(self) -> float:
        if not self._failures:
            return self._interval
        if self._flushing and self._attempts_left > 0:
            return min(self._interval, 1.0)
        return min(self._interval * 2**self._failures, LONGEST_PAUSE)

    def _one_pass(self) -> None:
        flushing, known = self._flushing, outages.count()
        try:
            some = self._work()
        except Exception as error:
            self._failures += 1
            log.debug("sending failed", exc_info=error)
            self._failed(error)
            if flushing:
                self._attempts_left -= 1
                if self._attempts_left <= 0:
                    self._settled.set()
        else:
            self._failures = 0
            if some:
                self._succeeded(known)
            if flushing:
                self._settled.set()


class Sender:
    """Sends what a journal gains: one thread its records, one the files that they name. A store that does not take one
    of the two is named once, and once more when it does again.

    new: this process began the journal.
    """

    def __init__(
        self,
        folder: Path,
        store: Store,
        warn: Callable[[str], None],
        interval: float | None = None,
        *,
        new: bool = False,
    ) -> None:
        self.folder, self.store, self._new = folder, store, new
        self._tell = warn
        self._own_errors: set[type[Exception]] = set()  # that were told
        self.replay: Replay | None = None
        self.interval = interval or (SERVER_INTERVAL if store.is_server else INTERVAL)
        self._figures = self._lane("metrics", self._send_figures, at_once=True)
        self._files = self._lane("files", self._send_files, at_once=False)

    def _lane(self, what: str, work: Callable[[], bool], *, at_once: bool) -> Lane:
        def failed(error: Exception) -> None:
            if self._is_own(error):
                new = type(error) not in self._own_errors
                self._own_errors.add(type(error))
            else:
                new = outages.begins(self.store, what)
            if new:
                self.warn(self._describe(what, error))

        def succeeded(known: int) -> None:
            if outages.ends(self.store, what, known):
                self.warn(f"tracking: {self.store.shown} accepts {what} again")

        return Lane(f"tracking {what} {self.folder.name}", work, self.interval, failed, succeeded, at_once=at_once)

    def _is_own(self, error: Exception) -> bool:
        """True for trouble of this run alone, which tells nothing of the store: it was deleted there, or a file on this
        machine cannot be read or written."""
        if isinstance(error, RunDeleted | RunMissing):
            return True
        if not isinstance(error, OSError) or isinstance(error, _OF_CONNECTIONS):
            return False
        # The files of a store on this machine are local too.
        return self.store.is_server or (error.filename is not None and self.folder in Path(error.filename).parents)

    def start(self) -> None:
        self._figures.start()
        self._files.start()

    @property
    def run_id(self) -> str | None:
        return self.replay.state.run_id if self.replay else None

    @property
    def sent_records(self) -> int:
        """Records of the journal that the store has, but for the files of some."""
        return self.replay.state.sent if self.replay else 0

    @property
    def files_left(self) -> int:
        """Records that the store has, whose files it has not."""
        return len(self.replay.files) if self.replay else 0

    def flush(self, seconds: float) -> None:
        """Sends what there is now and returns when it is sent, when the store refuses to answer, or after `seconds`."""
        until = time.monotonic() + seconds
        self._figures.flush(seconds)
        if self.files_left and not self._figures.down:
            left = until - time.monotonic()
            if not self._files.flush(min(left, DOWN_SECONDS) if outages.is_slow(self.store) else left):
                outages.note_slow(self.store)

    def close(self) -> None:
        """Ends both threads; one that hangs in a call is left to die with the process."""
        self._figures.close()
        self._files.close()
        if self.replay is not None:
            self.replay.retire()

    def _send_figures(self) -> bool:
        if self.replay is None:
            self.replay = Replay(self.folder, self.store, self.warn, new=self._new, own=True)
        before = self.replay.sent_now
        self.replay.send_all()
        if self.replay.files:
            self._files.wake()
        return self.replay.sent_now > before

    def _send_files(self) -> bool:
        return self.replay is not None and self.replay.send_files() > 0

    def _describe(self, what: str, error: Exception) -> str:
        known = f"tracking: {self.store.shown} does not accept {what} ({short(error)}); the run continues"
        if what == "files":
            return f"{known}, its metrics and its status are uploaded, and its files stay in {self.folder}"
        return f"{known} and keeps them in {self.folder / rec.FOLDER}"

    def warn(self, text: str) -> None:
        try:
            self._tell(text)
        except Exception:
            log.exception("the warning could not be shown: %s", text)
