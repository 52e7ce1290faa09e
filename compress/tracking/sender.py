"""Background thread that uploads a run's journal to the store, so that training never waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from compress.tracking import records as rec
from compress.tracking.replay import Replay
from compress.tracking.store import Store, short

log = logging.getLogger("compress.tracking")

INTERVAL = 3.0
LONGEST_PAUSE = 60.0


class Sender(threading.Thread):
    """Sends what the journal gains every few seconds. After a failure it waits twice as long each time, up to a minute,
    and says so once; once more when the store answers again. It never raises."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        warn: Callable[[str], None],
        interval: float = INTERVAL,
    ) -> None:
        super().__init__(name=f"tracking {folder.name}", daemon=True)
        self.folder, self.store = folder, store
        self.interval = interval
        self._tell = warn
        self._wake = threading.Event()
        self._settled = threading.Event()
        self._flushing = False
        self._attempts_left = 0
        self._closing = False
        self._failures = 0
        self.replay: Replay | None = None

    @property
    def down(self) -> bool:
        """The last call failed, and no other has succeeded since."""
        return self._failures > 0

    @property
    def run_id(self) -> str | None:
        return self.replay.state.run_id if self.replay else None

    @property
    def sent_records(self) -> int:
        """Records of the journal that the store has."""
        return self.replay.state.sent if self.replay else 0

    def flush(self, seconds: float) -> None:
        """Sends what there is now and returns when it is sent, when the store refuses to answer, or after `seconds`."""
        self._attempts_left = 1 if self.down else 2
        self._settled.clear()
        self._flushing = True
        self._wake.set()
        if self.is_alive():
            self._settled.wait(seconds)
        self._flushing = False

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
        if self.replay is None and not self._failures:
            return 0.0  # at once, so that the run shows up as it begins
        if not self._failures:
            return self.interval
        if self._flushing and self._attempts_left > 0:
            return min(self.interval, 1.0)
        return min(self.interval * 2**self._failures, LONGEST_PAUSE)

    def _one_pass(self) -> None:
        flushing = self._flushing
        try:
            if self.replay is None:
                self.replay = Replay(self.folder, self.store, self.warn)
            self.replay.send_all()
        except Exception as error:
            self._failed(error)
            if flushing:
                self._attempts_left -= 1
                if self._attempts_left <= 0:
                    self._settled.set()
        else:
            self._succeeded()
            if flushing:
                self._settled.set()

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        log.debug("sending failed", exc_info=error)
        if self._failures == 1:
            self.warn(
                f"tracking: {self.store.shown} does not accept metrics ({short(error)}); the run continues and keeps "
                f"them in {self.folder / rec.FOLDER}"
            )

    def _succeeded(self) -> None:
        if self._failures:
            self._failures = 0
            self.warn(f"tracking: {self.store.shown} accepts metrics again")

    def warn(self, text: str) -> None:
        try:
            self._tell(text)
        except Exception:
            log.exception("the warning could not be shown: %s", text)
