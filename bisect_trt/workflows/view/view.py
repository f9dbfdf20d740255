"""`bisect-trt view`: a page that follows a run, or several, in a browser; or the same page once, as a file."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

from bisect_trt.errors import UnavailableError
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.html.runs import list_sections, page, run_sections
from bisect_trt.tensors.npz import replacing
from bisect_trt.workflows.view.folders import Runs, now
from bisect_trt.workflows.view.server import LOOPBACK, serve


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
