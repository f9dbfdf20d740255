"""What was typed, and the run that came of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Invocation:
    """What was typed.

    Attributes:
        argv: The words after the program's name.
        resumed: The folder of the run that goes on, if one does.
        folder: The run's folder, once it is open.
    """

    argv: tuple[str, ...] = ()
    resumed: Path | None = None
    folder: Path | None = None


invocation = Invocation()
