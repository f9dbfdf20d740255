"""Opens pictures in whatever the system shows them with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bisect_trt.reporting.console import Console

MOST_WINDOWS = 8
"""Of more pictures the folder is opened."""


def open_pictures(paths: Sequence[Path], console: Console) -> None:
    """Open pictures, or say where they lie if there is no display for them.

    Args:
        paths: The pictures, of one folder or of two.
        console: Who is told.
    """
    folders = list(dict.fromkeys(path.parent for path in paths))
    for path in folders if len(paths) > MOST_WINDOWS else paths:
        if not (_has_display() and _opens(path.absolute())):
            where = " and ".join(map(str, folders))
            console.warn(f"nothing here can show pictures; they lie in {where}")
            return


def _has_display() -> bool:
    """Whether windows can be opened: elsewhere than on Linux they always can."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _opens(path: Path) -> bool:
    """Whether the system's opener takes a file; it hands the file over and ends, the picture stays open."""
    if sys.platform == "win32":
        os.startfile(path)
        return True
    # Not typer.launch: before 0.25 it did not wait for the opener's exit status, and `open -W` would wait for the user.
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    try:
        ended = subprocess.run([opener, path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return False
    return ended.returncode == 0
