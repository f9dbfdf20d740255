"""What all pictures share: matplotlib, where it is there; figures; names of files; how they are opened."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.reporting.console import Console

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GOOD, BAD, MARK = "#2a6fbb", "#c8372d", "#8a8a8a"
_NAME_LENGTH = 100
MOST_WINDOWS = 8
"""Of more pictures the folder is opened."""


def require_matplotlib(option: str) -> None:
    """Make sure that pictures can be drawn before anything else is done.

    Raises:
        UnavailableError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UnavailableError(
            f"{option} draws with matplotlib, which is not installed; run: pip install 'bisect-trt[plots]'"
        )


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches; not one of pyplot's, which would keep it alive."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import

    return Figure(figsize=(width, height), dpi=110, layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure, in the format that the file's name says.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"the picture {path} cannot be written: {error.strerror}; name another place.") from error


def plain(text: str) -> str:
    """Text that matplotlib shows as it is: dollars begin a formula otherwise."""
    return text.replace("$", r"\$")


def file_name(tensor: str, sample: int | None, kind: str) -> str:
    """A file's name for a picture of a tensor; different for different tensors."""
    plain = re.sub(r"[^\w.-]+", "_", tensor)[:_NAME_LENGTH].strip("_.") or "tensor"
    if plain != tensor:
        plain += f"-{zlib.crc32(tensor.encode(errors='replace')):08x}"
    return f"{plain}{'' if sample is None else f'-sample{sample}'}.{kind}.png"


def open_pictures(paths: Sequence[Path], console: Console) -> None:
    """Open pictures, or say where they lie if there is no display for them."""
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
