"""Drive a headless Chromium by its DevTools protocol: open a page, collect its complaints, take screenshots."""

import base64
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import websocket

FETCHED = Path(sys.prefix) / "chromium" / "chromium"
"""On Debian, `make test` puts a Chromium here."""

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)
WAIT_S = 240.0


def browser_path() -> str | None:
    """Return the Chromium of this machine; the environment's CHROMIUM comes first, a fetched one last."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    return found or (str(FETCHED) if FETCHED.exists() else None)


class Page:
    """One tab. `complaints` are console messages that are not plain logs, exceptions, and requests that left."""

    def __init__(self, connection: websocket.WebSocket, session: str) -> None:
        self.connection = connection
        self.session = session
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._numbers = itertools.count(1)
        self._loaded = False

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        number = next(self._numbers)
        self.connection.send(
            json.dumps({"id": number, "method": method, "params": parameters, "sessionId": self.session})
        )
        while True:
            message = json.loads(self.connection.recv())
            self._note(message)
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                return message["result"]  # type: ignore[no-any-return]

    def _note(self, message: dict[str, Any]) -> None:
        kind, seen = message.get("method"), message.get("params", {})
        if kind == "Runtime.consoleAPICalled" and seen["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(part.get("value", part)) for part in seen["args"]))
        elif kind == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(seen["exceptionDetails"]))
        elif kind == "Log.entryAdded" and seen["entry"]["level"] != "info":
            self.complaints.append(seen["entry"]["text"])
        elif kind == "Network.requestWillBeSent":
            self.requests.append(seen["request"]["url"])
        elif kind == "Page.loadEventFired":
            self._loaded = True

    def open(self, path: Path) -> None:
        """Load a file, and wait until it is loaded and drawn."""
        self.go(path.resolve().as_uri())

    def go(self, url: str) -> None:
        """Load a page, and wait until it is loaded and drawn."""
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.call(f"{domain}.enable")
        self._loaded = False
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._note(json.loads(self.connection.recv()))
        self.settle()

    def settle(self) -> None:
        """Wait until two frames have been drawn."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def look_like(self, *, width: int, height: int = 900, scheme: str = "light", media: str = "screen") -> None:
        """Set the window's width, the colour scheme, and screen or paper."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.settle()

    def pdf(self, path: Path) -> None:
        """Print the page on A4 as a browser does by default, without backgrounds."""
        self.call("Emulation.setEmulatedMedia", media="", features=[])
        printed = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)
        path.write_bytes(base64.b64decode(printed["data"]))

    def screenshot(self, path: Path, *, height: int | None = None) -> None:
        """Return the whole page, or its top, as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def page(chromium: str, profile: Path) -> Iterator[Page]:
    """Open a tab in a new browser, which ends with the block."""
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    process = subprocess.Popen(
        [chromium, *FLAGS, *root, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        connection = websocket.create_connection(_address(process), timeout=WAIT_S, suppress_origin=True)
        try:
            yield _attached(connection)
        finally:
            connection.close()
    finally:
        process.terminate()
        process.wait(timeout=WAIT_S)
        assert process.stderr is not None
        process.stderr.close()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        found = re.search(r"DevTools listening on (ws://\S+)", line)
        if found:
            return found[1]
    raise RuntimeError(f"the browser did not start: {''.join(said)[-2000:]}")


def _attached(connection: websocket.WebSocket) -> Page:
    def ask(method: str, **parameters: object) -> dict[str, Any]:
        connection.send(json.dumps({"id": 0, "method": method, "params": parameters}))
        while (message := json.loads(connection.recv())).get("id") != 0:
            pass
        return message["result"]  # type: ignore[no-any-return]

    target = ask("Target.createTarget", url="about:blank")["targetId"]
    return Page(connection, ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
