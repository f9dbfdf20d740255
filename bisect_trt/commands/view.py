"""`bisect-trt view`: a page that follows a run, or several, in a browser.

This machine alone can ask for the page, and it only ever reads. Loopback is not enough for that: a page of somebody else's, open
in the same browser, could have its own name point to 127.0.0.1 (DNS rebinding) and read what is served. Its requests carry that
name, so only those that name this machine are answered.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import sys
import time
import webbrowser
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from markupsafe import Markup

from bisect_trt.commands.binding import CALL_FILE, RUN_FILE, Binding
from bisect_trt.commands.log import read_probes
from bisect_trt.errors import BisectError, UnavailableError, UsageError
from bisect_trt.onnxlib.load import load_model
from bisect_trt.probe.journal import JOURNAL
from bisect_trt.probe.workspace import KEY_LENGTH
from bisect_trt.report.console import Console
from bisect_trt.report.page import render
from bisect_trt.report.result import RESULT_FILE, read_result
from bisect_trt.report.run_pages import RunView, compare_sections, list_sections, message_section, page, run_sections

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
_CUT = " units"
"""In the title of a candidate that the whole model was cut down to, and of no other."""
_LATE = 1.0
"""Seconds by which the journal is newer than the result of a run that goes on again."""


class Runs:
    """The runs of a folder, or one run; what was read of each is kept until its files change."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is a run's own, or holds runs.

        Raises:
            UnavailableError: It is neither.
        """
        self._folder = folder
        self._kept: dict[str, tuple[tuple[int, ...], RunView]] = {}
        self._names: dict[Path, tuple[tuple[str, tuple[str, ...]], ...]] = {}
        if not folder.is_dir():
            raise UnavailableError(f"{folder} is no folder; give that of a run, or one that holds runs.")

    def folders(self) -> dict[str, Path]:
        """Each run's folder by its name, the newest first."""
        found = [self._folder] if _is_run(self._folder) else [f for f in self._folder.iterdir() if _is_run(f)]
        found.sort(key=lambda folder: (_times(folder), folder.name), reverse=True)
        return {folder.resolve().name: folder for folder in found}

    def all(self) -> list[RunView]:
        """Every run that can be read, the newest first."""
        views = []
        for name in self.folders():
            with contextlib.suppress(BisectError, OSError):  # it is being written, or is damaged: the others are there
                views.append(self.read(name, nodes=False))
        return views

    def read(self, name: str, *, nodes: bool = True) -> RunView:
        """One run.

        Args:
            name: One of :meth:`folders`.
            nodes: Whether to read the model and the best candidate too.

        Raises:
            UnavailableError: There is no such run, or it is damaged.
        """
        folder = self.folders().get(name)
        if folder is None:
            raise UnavailableError(f"there is no run {name} in {self._folder}.")
        state, key = (*_times(folder), int(nodes)), f"{name}:{nodes}"
        if key not in self._kept or self._kept[key][0] != state:
            self._kept[key] = state, self._read(folder, nodes)
        return self._kept[key][1]

    def _read(self, folder: Path, nodes: bool) -> RunView:
        called = (folder / CALL_FILE).exists()
        binding = Binding.read(folder, CALL_FILE if called else RUN_FILE)
        command, *words = binding.argv or ("",)
        probes, unfinished = read_probes(folder)
        result = _result(folder)
        cut = [probe for probe in probes if probe["verdict"] == "FAIL" and _CUT in probe["title"]]
        best = min(cut, key=lambda probe: probe["size"], default=None)
        return RunView(
            name=folder.resolve().name,
            words=f"bisect_trt.{command}({', '.join(words)})" if called else f"bisect-trt {shlex.join(binding.argv)}",
            command=command,
            began=(folder / (CALL_FILE if called else RUN_FILE)).stat().st_mtime,
            touched=max(path.stat().st_mtime for path in _files(folder)),
            result=result,
            probes=probes,
            running=[str(entry["title"]) for entry in unfinished],
            best=best,
            nodes=self._states(folder, binding, best, result) if nodes else (),
        )

    def _states(
        self, folder: Path, binding: Binding, best: Mapping[str, Any] | None, result: Mapping[str, Any] | None
    ) -> Sequence[tuple[str, str]]:
        """Name and state of each node of the model; none where it is not there any more."""
        models = [Path(binding.cwd) / path for path in binding.files if path.endswith(".onnx")]
        every = self._outputs(models[0]) if models else ()
        culprits = {out for node in (result or {}).get("culprits") or () for out in node["outputs"]}
        kept = {out for node in (result or {}).get("keep_fp32") or () for out in node["outputs"]}
        within: set[str] | None = None
        if best is not None:
            candidate = folder / "candidates" / str(best["key"])[:KEY_LENGTH]
            inner = candidate / "model.onnx"
            read = self._outputs(inner if inner.exists() else candidate.with_suffix(".onnx"))
            within = {out for _, outputs in read for out in outputs} or None

        def state(outputs: tuple[str, ...]) -> str:
            if culprits.intersection(outputs):
                return "culprit"
            if kept.intersection(outputs):
                return "kept"
            if culprits:
                return "out"
            if within is None:
                return "unknown"
            return "best" if within.intersection(outputs) else "out"

        return [(name, state(outputs)) for name, outputs in every]

    def _outputs(self, path: Path) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Name and outputs of a model's nodes, read once; candidates never change, and the model is the run's."""
        if path not in self._names:
            try:
                model = load_model(path, structure=True)
            except (BisectError, OSError):
                return ()
            self._names[path] = tuple((node.name or node.output[0], tuple(node.output)) for node in model.graph.node)
        return self._names[path]


def _is_run(folder: Path) -> bool:
    return (folder / RUN_FILE).exists() or (folder / CALL_FILE).exists()


def _files(folder: Path) -> list[Path]:
    return [path for name in (RUN_FILE, CALL_FILE, JOURNAL, RESULT_FILE) if (path := folder / name).exists()]


def _times(folder: Path) -> tuple[int, ...]:
    """When its files were written, that of the start first."""
    return tuple(path.stat().st_mtime_ns for path in _files(folder))


def _result(folder: Path) -> dict[str, Any] | None:
    """How it ended; ``None`` while it runs, and while it goes on again after it had ended early."""
    file, journal = folder / RESULT_FILE, folder / JOURNAL
    if not file.exists():
        return None
    if journal.exists() and journal.stat().st_mtime > file.stat().st_mtime + _LATE:
        return None
    return read_result(folder)


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
            self._send(*page("not found", message_section(str(error))), HTTPStatus.NOT_FOUND)

    def _answer(self) -> None:
        address = urlsplit(self.path)
        parts = [unquote(part) for part in address.path.split("/") if part]
        if not parts:
            self._follow("Runs", list_sections(self.shown.all()))
        elif parts == ["compare"]:
            names = parse_qs(address.query).get("run", [])
            self._follow("Compared", compare_sections([self.shown.read(name, nodes=False) for name in names]))
        elif parts[0] == "run" and len(parts) == 2:
            self._follow(parts[1], run_sections(self.shown.read(parts[1]), time.time()))
        elif parts[0] == "run" and parts[2:] == ["report"]:
            result = self.shown.read(parts[1], nodes=False).result
            if result is None:
                raise UsageError(f"run {parts[1]} has not ended, so it has no report yet.")
            self._send(render(result), _REPORT_POLICY)
        else:
            raise UsageError(f"there is no page {address.path}.")

    def _follow(self, title: str, sections: Markup) -> None:
        """A whole page, or its sections alone if the page itself asks, and nothing if they are what it has."""
        if not self.headers.get(SECTIONS):
            self._send(*page(title, sections))
            return
        text = str(sections)
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


def _some(folder: Path) -> Runs:
    runs = Runs(folder)
    if not runs.folders():
        raise UnavailableError(f"no run lies in {folder}; give the folder of a run, or one that holds runs.")
    return runs
