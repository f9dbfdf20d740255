"""`bisect-trt view`: a page that follows a run, or several, in a browser; or the same page once, as a file.

This machine alone can ask for the page, and it only ever reads. Loopback is not enough for that: a page of somebody else's, open
in the same browser, could have its own name point to 127.0.0.1 (DNS rebinding) and read what is served. Its requests carry that
name, so only those that name this machine are answered.
"""

from __future__ import annotations

import hashlib
import os
import sys
import webbrowser
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from bisect_trt.errors import BisectError, UnavailableError, UsageError
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.html.beside import compare_sections
from bisect_trt.reporting.html.markup import Markup, join, tag
from bisect_trt.reporting.html.page import render
from bisect_trt.reporting.html.runs import list_sections, page, run_sections
from bisect_trt.tensors.npz import replacing
from bisect_trt.workflows.view.folders import Runs, now

LOOPBACK = "127.0.0.1"
SECTIONS = "X-Sections"
"""The header with which a page asks for its sections alone."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
)
"""The report's own policy, in the page, is narrower; what both allow is allowed."""


def serve(runs: Runs, port: int = 0) -> ThreadingHTTPServer:
    """A server that is bound and not started.

    Args:
        runs: What it shows.
        port: 0 for any that is free.

    Raises:
        UsageError: The port is taken, or not ours to take.
    """

    class Bound(_Handler):
        shown = runs

    try:
        return ThreadingHTTPServer((LOOPBACK, port), Bound)
    except (OSError, OverflowError) as error:
        raise UsageError(f"port {port} cannot be used: {error}; leave out --port, and a free one is taken.") from error


class _Handler(BaseHTTPRequestHandler):
    """Answers GET for the list, a run, a run's report and a comparison."""

    shown: Runs
    timeout = 30
    server_version, sys_version = "bisect-trt", ""

    def do_GET(self) -> None:
        _, port = self.request.getsockname()
        if self.headers.get("Host") not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
            self._send("This is for this machine alone.", "default-src 'none'", HTTPStatus.FORBIDDEN)
            return
        try:
            self._answer()
        except BisectError as error:
            sections = [tag("section", tag("h1", str(error)), id="error")]
            self._send(*page("not there", sections, follow=True), HTTPStatus.NOT_FOUND)

    def _answer(self) -> None:
        address = urlsplit(self.path)
        parts = [unquote(part) for part in address.path.split("/") if part]
        if not parts:
            self._follow("Runs", list_sections(self.shown.all()))
        elif parts == ["compare"]:
            names = parse_qs(address.query).get("run", [])
            self._follow("Compared", compare_sections([self.shown.read(name, nodes=False) for name in names]))
        elif parts[0] == "run" and len(parts) == 2:
            self._follow(parts[1], run_sections(self.shown.read(parts[1]), now()))
        elif parts[0] == "run" and parts[2:] == ["report"]:
            result = self.shown.read(parts[1], nodes=False).result
            if result is None:
                raise UsageError(f"run {parts[1]} has not ended, so it has no report yet.")
            self._send(render(result), _REPORT_POLICY)
        else:
            raise UsageError(f"there is no page {address.path}.")

    def _follow(self, title: str, sections: Sequence[Markup]) -> None:
        """A whole page, or its sections alone if the page itself asks, and nothing if they are what it has."""
        if not self.headers.get(SECTIONS):
            self._send(*page(title, sections, follow=True))
            return
        text = join(sections)
        digest = f'"{hashlib.sha256(text.encode()).hexdigest()[:16]}"'
        if self.headers.get("If-None-Match") == digest:
            self._send("", "default-src 'none'", HTTPStatus.NOT_MODIFIED, etag=digest)
        else:
            self._send(text, "default-src 'none'", etag=digest)

    def _send(self, text: str, policy: str, status: HTTPStatus = HTTPStatus.OK, etag: str | None = None) -> None:
        body = text.encode(errors="backslashreplace")
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Security-Policy": policy, **({"ETag": etag} if etag else {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class calls it so
        """Say nothing: the terminal is the user's."""


def view(folder: Path, console: Console, port: int = 0, *, browser: bool = True) -> None:
    """Serve the page until Ctrl-C.

    Args:
        folder: Of a run, which is shown, or of several, which are listed.
        console: Where the address is said.
        port: 0 for any that is free.
        browser: Whether to open one, where there is a display.

    Raises:
        UnavailableError: There is no run.
        UsageError: The port cannot be used.
    """
    runs = _some(folder)
    names = list(runs.folders())
    with serve(runs, port) as server:
        path = runs.read(names[0], nodes=False).link if len(names) == 1 else "/"
        address = f"http://{LOOPBACK}:{server.server_address[1]}{path}"
        console.answer(f"{address} (Ctrl-C ends it)")
        sys.stdout.flush()
        if browser and (sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            webbrowser.open(address)  # elsewhere it would be a browser in this terminal
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            server.server_close()


def write_once(folder: Path, file: Path) -> None:
    """Write what the page shows now into a file that asks nobody for more.

    Raises:
        UnavailableError: There is no run.
        UsageError: The file cannot be written.
    """
    runs = _some(folder)
    names = list(runs.folders())
    sections = run_sections(runs.read(names[0]), now()) if len(names) == 1 else list_sections(runs.all())
    text, _ = page(names[0] if len(names) == 1 else "Runs", sections, follow=False)
    with replacing(file) as out:
        out.write(text.encode(errors="backslashreplace"))


def _some(folder: Path) -> Runs:
    runs = Runs(folder)
    if not runs.folders():
        raise UnavailableError(f"no run lies in {folder}; give the folder of a run, or one that holds runs.")
    return runs
