"""Headless Chromium for tests, spoken to over the DevTools pipe with the standard library only.

`Browser().open(path)` loads a local file with the network off, and remembers what a reader would not see: console
messages, errors, and every request that was attempted. `dump_dom` and `screenshot` do one thing and close.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    *("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars", "--mute-audio"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe"),
)
SKIP_REASON = "no Chromium on this machine: install it (Debian: apt-get install chromium) or set CHROMIUM to its path"


def find_chromium() -> str | None:
    """Path of a Chromium or Chrome, or None; the environment variable CHROMIUM comes first."""
    return next(filter(None, map(shutil.which, (os.environ.get("CHROMIUM", ""), *NAMES))), None)


def dump_dom(path: Path) -> str:
    """The document after its scripts ran."""
    with Browser() as browser:
        browser.open(path)
        return browser.evaluate("document.documentElement.outerHTML")


def screenshot(path: Path, png: Path, width: int, height: int = 0, *, dark: bool = False) -> None:
    """The page as a reader sees it at this width; a height of 0 takes the whole page."""
    with Browser() as browser:
        browser.open(path, width=width, height=height or 900, dark=dark)
        browser.screenshot(png, whole=not height)


class Browser:
    """One browser with one tab and a profile of its own; use it in a `with`."""

    def __init__(self) -> None:
        self.console: list[str] = []
        """Console messages, uncaught errors and policy violations, in order."""
        self.requests: list[str] = []
        """Addresses of everything the pages asked for, their own files left out."""

    def __enter__(self) -> "Browser":
        binary = find_chromium()
        if binary is None:
            raise FileNotFoundError(SKIP_REASON)
        self._profile = tempfile.mkdtemp(prefix="browser-")
        command_read, command_write = map(_move_up, os.pipe())
        answer_read, answer_write = map(_move_up, os.pipe())

        def connect() -> None:
            os.dup2(command_read, 3)
            os.dup2(answer_write, 4)

        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        self._process = subprocess.Popen(
            [binary, *FLAGS, *sandbox, f"--user-data-dir={self._profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,  # only 3 and 4 are inheritable: Python opens everything else closed on exec
            preexec_fn=connect,
            start_new_session=True,
        )
        os.close(command_read)
        os.close(answer_write)
        self._write, self._read = command_write, answer_read
        self._buffer, self._number, self._session, self._seen = b"", 0, "", set[str]()
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)
        os.close(self._read)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Loads a local file and waits until it is drawn."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media="", features=features)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._seen.discard("Page.loadEventFired")
        address = path.resolve().as_uri()
        self._own = address
        self.call("Page.navigate", url=address)
        while "Page.loadEventFired" not in self._seen:
            self._receive(time.monotonic() + 60)
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page, awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script!r} failed in the page: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screenshot(self, png: Path, *, whole: bool = True) -> None:
        """Saves what is visible, or the whole page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        png.write_bytes(base64.b64decode(data))

    def print(self, pdf: Path) -> None:
        """Saves the page as it prints on A4."""
        options = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": True, "preferCSSPageSize": True}
        pdf.write_bytes(base64.b64decode(self.call("Page.printToPDF", **options)["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One DevTools command and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._write, content) :]
        deadline = time.monotonic() + 60
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method} failed: {answer['error']}")
                return answer["result"]

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("The browser did not answer within a minute.")
            content = os.read(self._read, 1 << 20)
            if not content:
                raise RuntimeError("The browser ended.")
            self._buffer += content
        first, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(first)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, details: dict[str, Any]) -> None:
        self._seen.add(event)
        if event == "Runtime.consoleAPICalled":
            self.console.append(f"{details['type']}: {_join(details['args'])}")
        elif event == "Runtime.exceptionThrown":
            thrown = details["exceptionDetails"]
            self.console.append(f"uncaught: {thrown.get('exception', {}).get('description', thrown['text'])}")
        elif event == "Log.entryAdded":
            self.console.append(f"{details['entry']['level']}: {details['entry']['text']}")
        elif event == "Network.requestWillBeSent":
            address = details["request"]["url"]
            if address.partition("#")[0] != getattr(self, "_own", ""):
                self.requests.append(address)


def _join(arguments: Sequence[dict[str, Any]]) -> str:
    return " ".join(str(argument.get("value", argument.get("description", ""))) for argument in arguments)


def _move_up(handle: int) -> int:
    """The same pipe under a number above 9, so that 3 and 4 are free in the child."""
    moved = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(handle)
    return moved
