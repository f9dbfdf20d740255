"""What options take that is no plain word: numbers of a range, times, sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

import typer

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG]?)i?B?", re.IGNORECASE)


def between(low: float, high: float) -> Callable[[float | None], float | None]:
    """A callback for an option that takes a number of a range; NaN is in none, which Typer's own ranges forget."""

    def check(value: float | None) -> float | None:
        if value is not None and not low <= value <= high:
            raise typer.BadParameter(f"{value} is not between {low:g} and {high:g}.")
        return value

    return check


seconds = between(0.001, 1e8)
"""A time. The longest is three years; what waits cannot wait for infinity."""


def parse_size(text: str) -> int | None:
    """``4G`` in bytes; ``None`` for what is no size."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    return int(Fraction(match.group(1)) * 1024 ** " KMG".index(match.group(2).upper() or " "))
