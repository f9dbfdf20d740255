"""What all pictures share: matplotlib, where it is there; figures; names of files."""

from __future__ import annotations

import re
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_trt.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GOOD, BAD, MARK = "#2a6fbb", "#c8372d", "#8a8a8a"
_NAME_LENGTH = 100


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
