"""``view``: a run as a page that follows it in a browser.

The page is served on the loopback interface, to whoever knows the random token that every address begins with. So no other
user of this machine can read them, nor a web page that points its own name to 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from markupsafe import Markup

from bisect_trt.commands.binding import CALL_FILE, RUN_FILE, Binding
from bisect_trt.errors import BisectError, OutputFileError, UnknownNameError
from bisect_trt.probe.ledger import JOURNAL, read_journal
from bisect_trt.probe.workspace import KEY_LENGTH
from bisect_trt.report.console import Console, open_page
from bisect_trt.report.page import frame, macro, render, sentence
from bisect_trt.report.result import RESULT_FILE, read_result
from bisect_trt.report.text import Json, plural, seconds

LOOPBACK = "127.0.0.1"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Content-Type": "text/html; charset=utf-8",
}
_NOTHING = "default-src 'none'"
_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
)
"""The report's own policy, in the page, is narrower; what both allow is allowed."""
_CUT = " units"
"""In the title of a candidate that the whole model was cut down to, and of no other."""
_LATE_S = 1.0
"""Seconds by which the journal is newer than the result of a resumed run."""
_IDLE_S = 120
"""Seconds without a new line in the journal after which the page says so."""
_SHOWN = 100
"""Probes in the table."""


@dataclass(frozen=True)
class EarlierRun:
    """A run, read from its folder while it works or after.

    Attributes:
        folder: The run's folder.
        binding: What it is bound to.
        words: The command line, or the Python call.
        probes: The verdicts, in the order in which the search asked.
        running: The probes that never ended.
    """

    folder: Path
    binding: Binding
    words: str
    probes: Sequence[Json]
    running: Sequence[Json]

    @classmethod
    def read(cls, folder: Path) -> EarlierRun:
        """Read a run's folder.

        Raises:
            UnavailableError: It is no run's folder.
        """
        called = (folder / CALL_FILE).exists()
        binding = Binding.read(folder, CALL_FILE if called else RUN_FILE)
        command, *words = binding.argv or ("",)
        said = f"bisect_trt.{command}({', '.join(words)})" if called else f"bisect-trt {shlex.join(binding.argv)}"
        verdicts: dict[int, Json] = {}
        unfinished: dict[str, Json] = {}
        journal = folder / JOURNAL
        for entry in read_journal(journal):
            if entry["event"] == "started":
                unfinished[entry["key"]] = entry
            elif entry["event"] in ("outcome", "moot"):
                unfinished.pop(entry["key"], None)
            elif entry["event"] == "verdict":
                verdicts[entry["number"]] = entry
            elif entry["event"] == "undo":
                verdicts.pop(entry["number"], None)
        return cls(folder, binding, said, [verdicts[number] for number in sorted(verdicts)], list(unfinished.values()))

    def candidate(self, probe: Json) -> Path:
        """Return the folder of a probe's candidate."""
        return self.folder / "candidates" / str(probe["key"])[:KEY_LENGTH]

    @cached_property
    def result(self) -> Json | None:
        """The result; ``None`` while the run is at work, also after it was resumed."""
        file, journal = self.folder / RESULT_FILE, self.folder / JOURNAL
        if not file.exists() or (journal.exists() and journal.stat().st_mtime > file.stat().st_mtime + _LATE_S):
            return None
        return read_result(self.folder)

    @property
    def progress(self) -> str:
        """The smallest failing candidate that was cut out of the model so far, or the number of probes."""
        cut = [probe for probe in self.probes if probe["verdict"] == "FAIL" and _CUT in probe["title"]]
        if cut:
            best = min(cut, key=lambda probe: probe["size"])
            return f"{best['title']} still fail{'s' if best['size'] == 1 else ''}"
        return f"{plural(len(self.probes), 'probe')} done" if self.probes else "nothing is known yet"

    @property
    def headline(self) -> str:
        """The answer, or the progress while there is none."""
        return self.progress if self.result is None else sentence(self.result)


def _written(run: Path) -> list[float]:
    """Return when the files of a run were written, in seconds since the epoch, that of the start first; none for others."""
    begun = [path for path in (run / RUN_FILE, run / CALL_FILE) if path.exists()]
    later = (run / JOURNAL, run / RESULT_FILE) if begun else ()
    return [path.stat().st_mtime for path in (*begun, *later) if path.exists()]


def run_page(run: EarlierRun, root: str = "") -> tuple[str, str]:
    """Return the page of one run, its state and its probes, and its content security policy."""
    counts = Counter(str(probe["verdict"]).lower() for probe in run.probes)
    verdicts = ", ".join(f"{counts[key]} {key}" for key in ("fail", "pass", "unresolved") if counts[key])
    written, ended = _written(run.folder), run.result is not None
    facts = [
        ("Command", run.words),
        ("Started", f"{datetime.fromtimestamp(written[0]):%Y-%m-%d %H:%M:%S}"),
        ("Probes", f"{len(run.probes):,}{f' ({verdicts})' if verdicts else ''}"),
        ("Running now", None if ended else ", ".join(str(probe["title"]) for probe in run.running)),
    ]
    idle = time.time() - max(written)
    silent = seconds(idle // 60 * 60) if not ended and idle > _IDLE_S else None
    newest = list(reversed(run.probes[-_SHOWN:]))
    return _page(run.folder.name, macro("runs.html", "run", run, root, facts, silent, newest))


def _page(title: str, main: Markup) -> tuple[str, str]:
    foot = "Made by bisect-trt from the folder of the run."
    text, policy = frame(title, main, foot, "runs.js", extra="connect-src 'self'; form-action 'self'")
    return text, f"{policy}; frame-ancestors 'none'; base-uri 'none'"


class RunServer(ThreadingHTTPServer):
    """Serves the pages of a run on the loopback interface.

    Attributes:
        root: What the path of every address begins with: the secret token.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        """Bind to the port, or to any free one for 0; ``folder`` is the run's.

        Raises:
            UsageError: The port is taken, or needs other rights.
        """
        self._folder, self.root = folder, f"/{secrets.token_urlsafe(16)}"
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            raise OutputFileError(
                f"port {port} cannot be used: {error}; leave out --port, and a free one is taken."
            ) from error

    def page(self, parts: Sequence[str]) -> tuple[str, str]:
        """Return a page by the parts of its address, and its content security policy.

        Raises:
            UnavailableError: The run is damaged.
            UsageError: There is no such page.
        """
        run = EarlierRun.read(self._folder)
        if not parts:
            return run_page(run, self.root)
        if parts == ["report"] and run.result is not None:
            return render(run.result), _REPORT_POLICY
        raise UnknownNameError(f"there is no page /{'/'.join(parts)}.")

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the base class has them
        """Print the traceback of an error, unless the browser closed the connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET for the run and its report."""

    server: RunServer
    timeout = 30
    server_version, sys_version = "bisect-trt", ""

    def do_GET(self) -> None:
        root = self.server.root
        token, *parts = [unquote(part) for part in urlsplit(self.path).path.split("/") if part] or [""]
        if not secrets.compare_digest(f"/{token}".encode(), root.encode()):
            self._send("Open the address that `bisect-trt view` printed.", _NOTHING, HTTPStatus.FORBIDDEN)
            return
        try:
            self._send(*self.server.page(parts))
        except BisectError as error:
            self._send(*_page("not found", macro("runs.html", "message", str(error))), HTTPStatus.NOT_FOUND)

    def _send(self, text: str, policy: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        body = text.encode(errors="backslashreplace")
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Security-Policy": policy, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class calls it so
        """Print nothing: the terminal is the user's."""


def view(folder: Path, console: Console, port: int = 0, *, browser: bool = True) -> None:
    """Serve the pages until Ctrl-C.

    Args:
        folder: The run's.
        console: Prints the address.
        port: 0 for any free one.
        browser: Whether to open one, where there is a display.

    Raises:
        UnavailableError: There is no run.
        UsageError: The port cannot be used.
    """
    EarlierRun.read(folder)
    with RunServer(folder, port) as server:
        address = f"http://{LOOPBACK}:{server.server_address[1]}{server.root}/"
        console.answer(f"{address} (Ctrl-C ends it)")
        sys.stdout.flush()
        if browser:
            open_page(address)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
