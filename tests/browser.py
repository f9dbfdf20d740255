"""A headless Chromium, driven over the DevTools protocol through a pair of pipes: no driver, no dependency."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
"""Where it is; ``None`` if there is none."""
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--disable-smooth-scrolling",  # which goes on while a test goes on too
    "--remote-debugging-pipe",
)
# Chromium reads descriptor 3 and writes descriptor 4.
_PUT_IN_PLACE = """
import os, sys
high = [os.dup(int(number)) for number in sys.argv[1:3]]  # 3 and 4 may be among them
for place, number in enumerate(high, 3):
    os.dup2(number, place)
    os.set_inheritable(place, True)
os.execv(sys.argv[3], sys.argv[3:])
"""
KEYS = {
    "Enter": 13,
    "Tab": 9,
    "Home": 36,
    "End": 35,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}


class Browser:
    """One browser with one page; everything waits for Chromium's answer."""

    def __init__(self, folder: Path) -> None:
        """``folder`` gets its profile."""
        assert CHROMIUM is not None
        child_in, self._out = os.pipe()
        self._in, child_out = os.pipe()
        wrapper = [sys.executable, "-c", _PUT_IN_PLACE, str(child_in), str(child_out)]
        command = [*wrapper, CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            command,
            pass_fds=(child_in, child_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(child_in)
        os.close(child_out)
        self._numbers = count(1)
        self._buffer = b""
        self._session: str | None = None
        self.problems: list[str] = []
        """Errors of the page, of its scripts and of its security policy."""
        self.requests: list[str] = []
        """Every address that the page asked for."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Performance.enable", timeDomain="threadTicks")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session = None
        self.call("Browser.close")
        self._process.wait()  # for however long: the test's own limit ends what hangs
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Ask for something; the answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read()
            if reply.get("id") == number:
                assert "error" not in reply, reply["error"]
                result: dict[str, Any] = reply["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._in, 1 << 16)
            assert data, "Chromium has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, about: Mapping[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(about["exceptionDetails"]))
        elif event == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.problems.append(about["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif event == "Page.javascriptDialogOpening":
            self.problems.append(f"a dialog: {about['message']}")

    def open(
        self,
        page: Path,
        *,
        width: int = 1400,
        height: int = 900,
        dark: bool = False,
        script: bool = True,
    ) -> None:
        """Open a file, and wait until it is loaded and drawn."""
        self.problems = []
        self.requests = []
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url=page.absolute().as_uri())
        while self.evaluate("document.readyState") != "complete":
            pass
        if script:
            self.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")

    def computed(self) -> float:
        """The seconds that the page's own thread has computed; what else the machine does counts for nothing."""
        metrics = self.call("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        reply = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def until(self, condition: str) -> bool:
        """Wait until something is so in the page, looked at once a frame; then it is true."""
        look = f"const look = () => ({condition}) ? r(true) : requestAnimationFrame(look)"
        return bool(self.evaluate(f"new Promise(r => {{ {look}; look(); }})"))

    def key(self, key: str) -> None:
        """Press a key."""
        about: dict[str, Any] = {"key": key, "code": key, "modifiers": 0}
        about["windowsVirtualKeyCode"] = KEYS.get(key, ord(key[0]))
        if len(key) == 1:
            about["text"] = key
        elif key == "Enter":
            about["text"] = "\r"
        self.call("Input.dispatchKeyEvent", type="keyDown", **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def centre(self, selector: str) -> tuple[float, float]:
        """Where an element is, scrolled into view."""
        x, y = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        return x, y

    def mouse(self, kind: str, x: float, y: float, **about: object) -> None:
        """A mouse event: ``mousePressed``, ``mouseReleased``, ``mouseMoved`` or ``mouseWheel``."""
        pressed = (
            {"button": "left", "clickCount": 1} if kind in ("mousePressed", "mouseReleased") else {}
        )
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed, **about)

    def click(self, selector: str) -> None:
        """Click an element."""
        x, y = self.centre(selector)
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)
