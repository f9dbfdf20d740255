"""What a value of an option becomes, given as a word or as a Python value: numbers of a range, shapes, sizes, choices."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG]?)i?B?", re.IGNORECASE | re.ASCII)
_SHAPE = "a shape such as [1,3,224,224], of whole numbers from 0 up"
_RANGE = "a range [LOW,HIGH] of two finite numbers"
_TOP_K = "top-K or top-K,axis=N with K from 1 up"


@dataclass(frozen=True)
class TopK:
    """Take the indices of the largest values instead of the values.

    Attributes:
        k: How many; all, where the axis is shorter.
        axis: Along which axis; negative from the last one.
    """

    k: int
    axis: int = -1


def number(low: float, high: float, wanted: str) -> Callable[[Any], float]:
    """A reader of numbers of a range, the ends included; NaN is in none."""

    def read(value: Any) -> float:  # noqa: ANN401 - whatever was given
        try:
            if isinstance(value, bool):
                raise TypeError
            found = float(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(wanted) from None
        if not low <= found <= high:
            raise ValueError(wanted)
        return found

    return read


tolerance = number(0, math.inf, "a number from 0 up")
quantile = number(0, 1, "a number from 0 to 1")


def one_of(kind: type[Enum]) -> Callable[[Any], Any]:
    """A reader of one of several choices, by its word."""

    def read(value: Any) -> Enum:  # noqa: ANN401 - whatever was given
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"one of {', '.join(each.value for each in kind)}") from None

    return read


def places(value: Any) -> int:  # noqa: ANN401 - whatever was given
    """A number of places."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if not isinstance(value, str) or not value.isascii() or not value.isdigit() or len(value) > 18:
        raise ValueError("a whole number of places from 0 up")
    return int(value)


def top_k(value: Any) -> TopK:  # noqa: ANN401 - whatever was given
    """``top-5`` or ``top-5,axis=1``."""
    if isinstance(value, TopK):
        return value
    match = re.fullmatch(r"top-(\d{1,18})(?:,axis=(-?\d{1,18}))?", value, re.ASCII) if isinstance(value, str) else None
    if match is None or int(match[1]) == 0:
        raise ValueError(_TOP_K)
    return TopK(int(match[1]), int(match[2] or -1))


def shape(value: Any) -> tuple[int, ...]:  # noqa: ANN401 - whatever was given
    """``[1,3,224,224]``; ``[]`` is a scalar."""
    sizes = _list(value, int, _SHAPE)
    if any(size < 0 for size in sizes):
        raise ValueError(_SHAPE)
    return tuple(sizes)


def value_range(value: Any) -> tuple[float, float]:  # noqa: ANN401 - whatever was given
    """``[0,1]``: two finite numbers, the lower first."""
    numbers = _list(value, float, _RANGE)
    if len(numbers) != 2:
        raise ValueError(_RANGE)
    low, high = numbers
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ValueError(f"{_RANGE}, the lower first")
    return low, high


def _list(value: Any, kind: Callable[[Any], Any], wanted: str) -> list[Any]:  # noqa: ANN401 - whatever was given
    if isinstance(value, str):
        inner = value.strip()
        if not (inner.startswith("[") and inner.endswith("]")):
            raise ValueError(wanted)
        parts: list[Any] = inner[1:-1].split(",") if inner[1:-1].strip() else []
    else:
        parts = list(value) if isinstance(value, Iterable) else [None]
    try:
        numbers = [kind(part) for part in parts]
    except (TypeError, ValueError, OverflowError):
        raise ValueError(wanted) from None
    # int("1.5") is refused, and int(1.5) is 1.
    if not all(isinstance(part, str) or number == part for number, part in zip(numbers, parts, strict=True)):
        raise ValueError(wanted)
    return numbers


def pair(value: Any) -> tuple[str, str]:  # noqa: ANN401 - whatever was given
    """``NAME:VALUE``, split at the first colon, or such a pair; Python's values become the words for them."""
    if isinstance(value, str):
        name, colon, text = value.partition(":")
        if name and colon:
            return name, text
    elif isinstance(value, Iterable):
        name, text = value
        return str(name), str(int(text) if isinstance(text, bool) else text)
    raise ValueError("NAME:VALUE")


def assignment(value: Any) -> tuple[str, str]:  # noqa: ANN401 - whatever was given
    """``NAME=VALUE``, split at the first equals sign, or such a pair; Python's values become the words for them."""
    if isinstance(value, str):
        name, equals, text = value.partition("=")
        if name and equals:
            return name, text
        raise ValueError("NAME=VALUE")
    return pair(value)


def pool_limit(value: Any) -> tuple[str, int]:  # noqa: ANN401 - whatever was given
    """``workspace:4G``, or such a pair: a memory pool and its size in bytes."""
    pool, colon, limit = value.rpartition(":") if isinstance(value, str) else (value[0], ":", value[1])
    try:
        if not colon or not pool:
            raise ValueError
        return pool, size(limit)
    except ValueError:
        raise ValueError("POOL:SIZE, such as workspace:4G") from None


def size(value: Any) -> int:  # noqa: ANN401 - whatever was given
    """``4G`` in bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) and len(value) < 100 else None
    if match is None:
        raise ValueError("a size in bytes, such as 512K or 16M")
    return int(Fraction(match.group(1)) * 1024 ** " KMG".index(match.group(2).upper() or " "))
