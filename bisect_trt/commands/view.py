"""``view``: runs as pages that follow them in a browser.

The pages are served on the loopback interface, to whoever knows the random token in the printed address; a browser keeps it as
a cookie. So no other user of this machine can read them, nor a web page that points its own name to 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import contextlib
import os
import secrets
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

from bisect_trt.commands.binding import CALL_FILE, RUN_FILE, Binding
from bisect_trt.errors import BisectError, UnavailableError, UsageError
from bisect_trt.onnxlib.load import load_model
from bisect_trt.probe.journal import JOURNAL, read_journal
from bisect_trt.probe.workspace import KEY_LENGTH
from bisect_trt.report.console import Console
from bisect_trt.report.page import render
from bisect_trt.report.result import RESULT_FILE, read_result
from bisect_trt.report.run_pages import RunView, list_sections, message_section, page, run_sections

LOOPBACK = "127.0.0.1"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NOTHING = "default-src 'none'"
_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
)
"""The report's own policy, in the page, is narrower; what both allow is allowed."""
_CUT = " units"
"""In the title of a candidate that the whole model was cut down to, and of no other."""
_LATE = 1.0
"""Seconds by which the journal is newer than the result of a resumed run."""


def read_probes(run: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the verdicts of a run by number, and the probes that never ended."""
    verdicts: dict[int, dict[str, Any]] = {}
    unfinished: dict[str, dict[str, Any]] = {}
    journal = run / JOURNAL
    for entry in read_journal(journal) if journal.exists() else ():
        if entry["event"] == "started":
            unfinished[entry["key"]] = entry
        elif entry["event"] in ("outcome", "moot"):
            unfinished.pop(entry["key"], None)
        elif entry["event"] == "verdict":
            verdicts[entry["number"]] = entry
        elif entry["event"] == "undo":
            verdicts.pop(entry["number"], None)
    return [verdicts[number] for number in sorted(verdicts)], list(unfinished.values())


def started(run: Path) -> tuple[Binding, str, str]:
    """Return what a run is bound to, its command, and its command line or call.

    Raises:
        UnavailableError: It is no run's folder.
    """
    called = (run / CALL_FILE).exists()
    binding = Binding.read(run, CALL_FILE if called else RUN_FILE)
    command, *words = binding.argv or ("",)
    said = f"bisect_trt.{command}({', '.join(words)})" if called else f"bisect-trt {shlex.join(binding.argv)}"
    return binding, command, said


def candidate_folder(run: Path, probe: Mapping[str, Any]) -> Path:
    """Return the folder of a probe's candidate."""
    return run / "candidates" / str(probe["key"])[:KEY_LENGTH]


def model_of(folder: Path) -> Path:
    """Return the model of a candidate, which lies beside its folder where it shares a file of weights with others."""
    model = folder / "model.onnx"
    return model if model.exists() else folder.with_suffix(".onnx")


class Runs:
    """The runs of a folder, or one run."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is a run's own, or holds runs.

        Raises:
            UnavailableError: It holds none.
        """
        self._folder = folder
        self._nodes: dict[Path, tuple[tuple[str, tuple[str, ...]], ...]] = {}
        if not folder.is_dir() or not self.folders():
            raise UnavailableError(f"no run lies in {folder}; give the folder of a run, or one that holds runs.")

    def folders(self) -> dict[str, Path]:
        """Return each run's folder by its name, the newest first."""
        found = [folder for folder in (self._folder, *self._folder.iterdir()) if _is_run(folder)]
        if found[:1] == [self._folder]:
            del found[1:]
        found.sort(key=lambda folder: (_modified(folder), folder.name), reverse=True)
        return {folder.resolve().name: folder for folder in found}

    def all(self) -> list[RunView]:
        """Return every run that can be read, the newest first."""
        views = []
        for name in self.folders():
            with contextlib.suppress(BisectError, OSError):  # it is being written, or is damaged
                views.append(self.read(name, nodes=False))
        return views

    def read(self, name: str, *, nodes: bool = True) -> RunView:
        """Return one run.

        Args:
            name: One of :meth:`folders`.
            nodes: Whether to read the model and the best candidate too.

        Raises:
            UnavailableError: There is no such run, or it is damaged.
        """
        folder = self.folders().get(name)
        if folder is None:
            raise UnavailableError(f"there is no run {name} in {self._folder}.")
        binding, command, said = started(folder)
        probes, unfinished = read_probes(folder)
        result = _result(folder)
        cut = [probe for probe in probes if probe["verdict"] == "FAIL" and _CUT in probe["title"]]
        best, modified = min(cut, key=lambda probe: probe["size"], default=None), _modified(folder)
        return RunView(
            name=name,
            words=said,
            command=command,
            began=modified[0],
            touched=max(modified),
            result=result,
            probes=probes,
            running=[str(entry["title"]) for entry in unfinished],
            best=best,
            nodes=self._states(folder, binding, best, result or {}) if nodes else (),
        )

    def _states(
        self, folder: Path, binding: Binding, best: Mapping[str, Any] | None, result: Mapping[str, Any]
    ) -> Sequence[tuple[str, str]]:
        """Return name and state of each node of the model; none where the model is gone."""
        models = [Path(binding.cwd) / path for path in binding.files if path.endswith(".onnx")]
        culprits, kept = (
            {out for node in result.get(field) or () for out in node["outputs"]} for field in ("culprits", "keep_fp32")
        )
        inner = () if best is None else self._outputs(model_of(candidate_folder(folder, best)))
        within = {out for _, outputs in inner for out in outputs}

        def state(outputs: tuple[str, ...]) -> str:
            if culprits.intersection(outputs):
                return "culprit"
            if kept.intersection(outputs):
                return "kept"
            if not culprits and not within:
                return "unknown"
            return "best" if not culprits and within.intersection(outputs) else "out"

        return [(name, state(outputs)) for name, outputs in (self._outputs(models[0]) if models else ())]

    def _outputs(self, path: Path) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return name and outputs of a model's nodes, read once; candidates never change, and the model is the run's."""
        if path not in self._nodes:
            try:
                model = load_model(path, structure=True)
            except (BisectError, OSError):
                return ()
            self._nodes[path] = tuple((node.name or node.output[0], tuple(node.output)) for node in model.graph.node)
        return self._nodes[path]


def _is_run(folder: Path) -> bool:
    return (folder / RUN_FILE).exists() or (folder / CALL_FILE).exists()


def _modified(folder: Path) -> list[float]:
    """Return when the files of a run were written, in seconds since the epoch, that of the start first."""
    files = (folder / name for name in (RUN_FILE, CALL_FILE, JOURNAL, RESULT_FILE))
    return [path.stat().st_mtime for path in files if path.exists()]


def _result(folder: Path) -> dict[str, Any] | None:
    """Return the result; ``None`` while the run is at work, also after it was resumed."""
    file, journal = folder / RESULT_FILE, folder / JOURNAL
    if not file.exists():
        return None
    if journal.exists() and journal.stat().st_mtime > file.stat().st_mtime + _LATE:
        return None
    return read_result(folder)


class RunServer(ThreadingHTTPServer):
    """Serves the pages of some runs on the loopback interface.

    Attributes:
        shown: The runs.
        token: The secret of the address.
    """

    def __init__(self, shown: Runs, port: int = 0) -> None:
        """Bind to the port, or to any free one for 0.

        Raises:
            UsageError: The port is taken, or needs other rights.
        """
        self.shown, self.token = shown, secrets.token_urlsafe(16)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"port {port} cannot be used: {error}; leave out --port, and a free one is taken."
            ) from error

    @property
    def cookie(self) -> str:
        """The cookie with the token; its name has the port, since browsers send cookies to every port of a host."""
        return f"bisect-trt-{self.server_address[1]}={self.token}"

    def address(self, path: str) -> str:
        """Return the address of a page, with the token."""
        return f"http://{LOOPBACK}:{self.server_address[1]}{path}?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the base class has them
        """Print the traceback of an error, unless the browser closed the connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET for the list, a run and a run's report."""

    server: RunServer
    timeout = 30
    server_version, sys_version = "bisect-trt", ""

    def do_GET(self) -> None:
        address, cookie = urlsplit(self.path), self.server.cookie
        if _same(parse_qs(address.query).get("token", [""])[0], self.server.token):
            more = {
                "Location": f"/{address.path.lstrip('/')}",
                "Set-Cookie": f"{cookie}; Path=/; HttpOnly; SameSite=Lax",
            }
            self._send("", _NOTHING, HTTPStatus.SEE_OTHER, more)
        elif not any(_same(part.strip(), cookie) for part in self.headers.get("Cookie", "").split(";")):
            self._send("Open the address that `bisect-trt view` printed.", _NOTHING, HTTPStatus.FORBIDDEN)
        else:
            try:
                self._answer([unquote(part) for part in address.path.split("/") if part])
            except BisectError as error:
                self._send(*page("not found", message_section(str(error))), HTTPStatus.NOT_FOUND)

    def _answer(self, parts: Sequence[str]) -> None:
        shown = self.server.shown
        if not parts:
            self._send(*page("Runs", list_sections(shown.all())))
        elif parts[0] == "run" and len(parts) == 2:
            self._send(*page(parts[1], run_sections(shown.read(parts[1]), time.time())))
        elif parts[0] == "run" and parts[2:] == ["report"]:
            result = shown.read(parts[1], nodes=False).result
            if result is None:
                raise UsageError(f"run {parts[1]} has not ended, so it has no report yet.")
            self._send(render(result), _REPORT_POLICY)
        else:
            raise UsageError(f"there is no page /{'/'.join(parts)}.")

    def _send(
        self, text: str, policy: str, status: HTTPStatus = HTTPStatus.OK, more: Mapping[str, str] | None = None
    ) -> None:
        body = text.encode(errors="backslashreplace")
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Security-Policy": policy, **(more or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class calls it so
        """Print nothing: the terminal is the user's."""


def _same(given: str, secret: str) -> bool:
    return secrets.compare_digest(given.encode(), secret.encode())


def view(folder: Path, console: Console, port: int = 0, *, browser: bool = True) -> None:
    """Serve the pages until Ctrl-C.

    Args:
        folder: Of a run, which is shown, or of several, which are listed.
        console: Prints the address.
        port: 0 for any free one.
        browser: Whether to open one, where there is a display.

    Raises:
        UnavailableError: There is no run.
        UsageError: The port cannot be used.
    """
    runs = Runs(folder)
    names = list(runs.folders())
    with RunServer(runs, port) as server:
        address = server.address(runs.read(names[0], nodes=False).link if len(names) == 1 else "/")
        console.answer(f"{address} (Ctrl-C ends it)")
        sys.stdout.flush()
        if browser and (sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            webbrowser.open(address)  # elsewhere it would be a browser in this terminal
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
