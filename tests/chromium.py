"""A headless Chromium, spoken to by its DevTools protocol over two pipes: no driver, no websocket library."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1700,2000",
    "--remote-debugging-pipe",
)

# The browser reads from descriptor 3 and writes to 4; ours are moved up first, as they may be 4 and 3.
_AT_3_AND_4 = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find() -> str | None:
    """Path of an installed Chromium or Chrome."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")
        self.addresses: list[str] = []
        self._call("Network.enable")

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def text(self) -> str:
        """What a person can read on the page."""
        return self.evaluate("document.body ? document.body.innerText : ''") or ""

    def wait_for(self, expression: str, seconds: float = 60.0) -> None:
        """Waits until the expression is true on the page."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"never true on the page: {expression}\n{self.text()[:2000]}"
            time.sleep(0.2)

    def resize(self, width: int, height: int) -> None:
        """As on a screen of this size, a phone's where it is narrow."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def prefer(self, *, dark: bool, paper: bool = False) -> None:
        """The colours that a person's system asks for; paper: as it is printed."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", media="print" if paper else "", features=scheme)

    def screenshot(self, path: Path, selector: str | None = None) -> None:
        """What is in sight, or the first element that the selector finds."""
        what = {}
        if selector is not None:
            box = f"(e => [e.x + scrollX, e.y + scrollY, e.width, e.height])(document.querySelector({selector!r})"
            sides = self.evaluate(f"{box}.getBoundingClientRect())")
            what["clip"] = {**dict(zip(("x", "y", "width", "height"), sides, strict=True)), "scale": 1}
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png", **what)["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(60.0)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            if answer.get("method") == "Network.requestWillBeSent":
                self.addresses.append(answer["params"]["request"]["url"])

    def _receive(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], seconds)
            assert ready, "the browser says nothing"
            part = os.read(self._from, 1 << 16)
            assert part, "the browser ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


@contextlib.contextmanager
def browsing(profile: Path) -> Iterator[Page]:
    """A fresh browser with an empty profile; it ends with the block."""
    program = find()
    assert program is not None
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _AT_3_AND_4,
            str(their_in),
            str(their_out),
            program,
            *FLAGS,
            f"--user-data-dir={profile}",
        ],
        pass_fds=(their_in, their_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_in)
    os.close(their_out)
    try:
        yield Page(our_out, our_in)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(our_out)
        os.close(our_in)
