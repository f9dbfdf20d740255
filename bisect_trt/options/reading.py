"""What a value of an option becomes, given as a word or as a Python value: numbers of a range, shapes, sizes, choices."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

from bisect_trt.errors import ConflictError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG]?)i?B?", re.IGNORECASE | re.ASCII)
_SHAPE = "a shape such as [1,3,224,224], of whole numbers from 0 up"
_RANGE = "a range [LOW,HIGH] of two finite numbers"
_SIZES = (
    "NAME:[D,...], each D a size, a range 1..64 or 1..64:8, or a list {1,2,7}, with a name in front (n=1..64) or not"
)
_MOST_SIZES = 1_000_000
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

    def __str__(self) -> str:
        return f"top-{self.k},axis={self.axis}"


@dataclass(frozen=True)
class Sizes:
    """The sizes that one dimension is to be tried at.

    Attributes:
        sizes: These, in order, each once; one alone is not swept.
        name: What the dimension is called; dimensions of one name have one size.
    """

    sizes: tuple[int, ...]
    name: str = ""


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
similarity = number(-1, 1, "a number from -1 to 1")
decibels = number(-math.inf, math.inf, "a number of decibels")


def one_of(*kinds: type[Enum]) -> Callable[[Any], Any]:
    """A reader of one of several choices, by its word."""

    def read(value: Any) -> Enum:  # noqa: ANN401 - whatever was given
        for kind in kinds:
            with suppress(ValueError):
                return kind(value)
        raise ValueError(f"one of {', '.join(each.value for kind in kinds for each in kind)}")

    return read


def regex(value: Any) -> str:  # noqa: ANN401 - whatever was given
    """A regular expression."""
    try:
        re.compile(value)
    except (re.error, TypeError) as error:
        raise ValueError(f"a regular expression ({error})") from None
    return str(value)


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


def swept_shape(value: Any) -> tuple[str, tuple[Sizes, ...]]:  # noqa: ANN401 - whatever was given
    """``x:[1..64,3,224,224]``, or such a pair: an input and the sizes of each of its dimensions.

    A dimension is a size, a range with both ends (``1..64``), one with a step (``1..64:8``) or a list (``{1,2,7}``, also in
    parentheses or brackets), which may have ranges in it; ``n=`` before it names the dimension.
    """
    if isinstance(value, str):
        name, colon, text = value.rpartition(":[")
        if not colon or not name or not text.endswith("]"):
            raise ValueError(_SIZES)
        parts: list[Any] = _split(text[:-1])
    else:
        name, parts = value[0], list(value[1])
    if any(isinstance(part, Sizes) for part in parts):
        return name, tuple(part if isinstance(part, Sizes) else _sizes(str(part)) for part in parts)
    return name, tuple(_sizes(_as_word(part)) for part in parts)


def _as_word(part: Any) -> str:  # noqa: ANN401 - whatever was given
    """A dimension of Python's, a number or several, as its word."""
    if isinstance(part, str) or not isinstance(part, Iterable):
        return str(part)
    return f"{{{','.join(map(str, part))}}}"


def _split(text: str) -> list[str]:
    """The parts between commas, but for those within any brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    if depth or (not text.strip()):
        raise ValueError(_SIZES)
    return parts


def _sizes(text: str) -> Sizes:
    name, equals, rest = text.strip().rpartition("=")
    if equals and not name.strip():
        raise ValueError(_SIZES)
    rest = rest.strip()
    listed = [rest]
    if rest[:1] + rest[-1:] in ("{}", "[]", "()"):
        listed = rest[1:-1].split(",")
    found: set[int] = set()
    for each in listed:
        match = re.fullmatch(r"\s*(\d{1,9})(?:\.\.(\d{1,9})(?::(\d{1,9}))?)?\s*", each, re.ASCII)
        if match is None:
            raise ValueError(_SIZES)
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if high < low or step < 1 or (high - low) // step >= _MOST_SIZES:
            raise ValueError(f"{_SIZES}; a range goes up, by a step from 1 up, over at most {_MOST_SIZES:,} sizes")
        found.update(range(low, high + 1, step))
    return Sizes(tuple(sorted(found)), name.strip())


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


def once(flag: str) -> Callable[[Any], Any]:
    """A check that no name of an option's pairs is given twice."""

    def check(pairs: Any) -> Any:  # noqa: ANN401 - a tuple of pairs
        names = [name for name, _ in pairs]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConflictError(f"{flag} is given twice for {twice!r}; give it once.")
        return pairs

    return check


def absolute(value: Any) -> str:  # noqa: ANN401 - whatever was given
    """An absolute path: worker processes read and write it."""
    if not isinstance(value, str | os.PathLike):
        raise ValueError("a path")
    return str(Path(value).absolute())


def existing_file(value: Any) -> str:  # noqa: ANN401 - whatever was given
    """The absolute path of a file."""
    path = absolute(value)
    if not os.path.isfile(path):  # noqa: PTH113 - it takes names that no file can have
        raise ValueError("the path of a file that exists")
    return path


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
