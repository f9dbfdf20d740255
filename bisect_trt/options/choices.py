"""The modes of a search; a module by itself, because the search imports nothing else of the options."""

from __future__ import annotations

from enum import Enum


class Mode(str, Enum):
    """How to search."""

    AUTO = "auto"
    """Bisection; delta debugging once most candidates break in other ways."""
    BISECT = "bisect"
    """Bisection only."""
    LINEAR = "linear"
    """One unit at a time."""
    DDMIN = "ddmin"
    """Delta debugging only."""
