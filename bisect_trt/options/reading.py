"""Readers of option values, given as a word or as a Python value: shapes, ranges, sizes, choices, pairs, files."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from bisect_trt.errors import ConflictError

Pairs = tuple[tuple[str, str], ...]
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG]?)i?B?", re.IGNORECASE | re.ASCII)
_RANGE = re.compile(r"(\d+)\.\.(\d+)", re.ASCII)
_SHAPE = "a shape such as [1,3,224,224] or 1x3x224x224, of whole numbers from 0 up"
_SWEPT = "NAME:[D,...], each D a size, a range 1..64 or 1..64:8, or a list {1,2,7}, with or without a name (n=1..64)"
_MOST_SIZES = 1_000_000
_HARMFUL = re.compile(
    r"(?:^|[:_.=-])(?:dump|print|log|trac|debug|verb|prof|host|remote|server|port|sock|url|connect|file|path|dir|save|exit"
    r"|abort|assert|crash)(?:s|ed|e|er|ing|ging|ger|bose|ile|iler)?(?=$|[:_.=-])"
)
"""Words of options that write, connect, or end the process."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of one swept dimension.

    Attributes:
        sizes: In order, each once; one alone is not swept.
        name: The name of the dimension; dimensions of one name have one size.
    """

    sizes: tuple[int, ...]
    name: str = ""


def regex(value: Any) -> str:  # noqa: ANN401 - whatever was given
    """A regular expression."""
    try:
        re.compile(value)
    except (re.error, TypeError) as error:
        raise ValueError(f"a regular expression ({error})") from None
    return str(value)


def shape(value: Any) -> tuple[int, ...]:  # noqa: ANN401 - whatever was given
    """``[1,3,224,224]``, or trtexec's ``1x3x224x224``; ``[]`` is a scalar."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}(x\d{1,18})*", value, re.ASCII):
        value = value.split("x")
    sizes = _numbers(value, int, _SHAPE)
    if any(size < 0 for size in sizes):
        raise ValueError(_SHAPE)
    return tuple(sizes)


def ranged_shape(value: Any) -> tuple[int | range, ...]:  # noqa: ANN401 - whatever was given
    """``[1,5..9]``: as :func:`shape`, where a dimension may have all sizes of a range."""
    if not isinstance(value, str):
        return shape(value)
    ends = [shape(_RANGE.sub(end, value)) for end in (r"\1", r"\2")]
    sizes = [low if low == high else range(low, high + 1) for low, high in zip(*ends, strict=True)]
    if range(0) in sizes:
        raise ValueError(f"{_SHAPE}; a range such as 5..9 goes up")
    return tuple(sizes)


def value_range(value: Any) -> tuple[float, float]:  # noqa: ANN401 - whatever was given
    """``[0,1]``: two finite numbers, the lower first."""
    wanted = "a range [LOW,HIGH] of two finite numbers, the lower first"
    numbers = _numbers(value, float, wanted)
    if len(numbers) != 2 or not -math.inf < numbers[0] <= numbers[1] < math.inf:
        raise ValueError(wanted)
    return numbers[0], numbers[1]


def _numbers(value: Any, kind: Callable[[Any], Any], wanted: str) -> list[Any]:  # noqa: ANN401 - whatever was given
    """``[A,B,...]``, or an iterable of numbers."""
    parts: list[Any]
    if isinstance(value, str):
        inside = re.fullmatch(r"\s*\[\s*(.*?)\s*\]\s*", value, re.DOTALL)
        if inside is None:
            raise ValueError(wanted)
        parts = inside[1].split(",") if inside[1] else []
    else:
        parts = list(value) if isinstance(value, Iterable) else [None]
    try:
        numbers = [kind(part) for part in parts]
    except (TypeError, ValueError, OverflowError):
        raise ValueError(wanted) from None
    # int("1.5") is refused, and int(1.5) is 1.
    if not all(
        isinstance(part, str) or number == part for number, part in zip(numbers, parts, strict=True)
    ):
        raise ValueError(wanted)
    return numbers


def swept_shape(value: Any) -> tuple[str, tuple[Sizes, ...]]:  # noqa: ANN401 - whatever was given
    """``x:[1..64,3,224,224]``: an input and the sizes of each of its dimensions.

    A dimension is a size, a range with both ends (``1..64``), one with a step (``1..64:8``) or a
    list of these (``{1,2,7}``); ``n=`` before it names the dimension.
    """
    name, colon, text = value.rpartition(":[") if isinstance(value, str) else ("", "", "")
    if not colon or not name or not text.endswith("]"):
        raise ValueError(_SWEPT)
    # Commas within braces separate the sizes of one dimension, not dimensions.
    return name, tuple(map(_sizes, re.split(r",(?![^{]*\})", text[:-1])))


def _sizes(text: str) -> Sizes:
    # An optional name, then a list in braces or a single size or range.
    match = re.fullmatch(r"\s*(?:([^={}]*[^={}\s])\s*=)?\s*(?:\{([^{}]*)\}|([^{}=]*))\s*", text)
    if match is None:
        raise ValueError(_SWEPT)
    numbers: set[int] = set()
    for word in (match[2] or match[3] or "").split(","):
        part = re.fullmatch(r"\s*(\d{1,9})(?:\.\.(\d{1,9})(?::(\d{1,9}))?)?\s*", word, re.ASCII)
        if part is None:
            raise ValueError(_SWEPT)
        low = int(part[1])
        high = int(part[2] or part[1])
        step = int(part[3] or 1)
        if high < low or step < 1 or (high - low) // step >= _MOST_SIZES:
            raise ValueError(
                f"{_SWEPT}; a range goes up, by a step from 1 up, over at most {_MOST_SIZES:,} sizes"
            )
        numbers.update(range(low, high + 1, step))
    return Sizes(tuple(sorted(numbers)), (match[1] or "").strip())


def pair(value: Any) -> tuple[str, str]:  # noqa: ANN401 - whatever was given
    """``NAME:VALUE``, split at the first colon, or such a pair; Python's values become the words for them."""
    return _pair(value, ":")


def assignment(value: Any) -> tuple[str, str]:  # noqa: ANN401 - whatever was given
    """``NAME=VALUE``, split at the first equals sign, or such a pair; Python's values become the words for them."""
    return _pair(value, "=")


def harmful(option: str) -> bool:
    """Return whether an option of a compiler writes, connects, or ends the process, by the words of its name and value."""
    return _HARMFUL.search(option.lower()) is not None


def compiler_option(value: Any) -> str:  # noqa: ANN401 - whatever was given
    """``NAME=VALUE``, one option of the compiler, with or without its dash.

    Raises:
        ValueError: It is not that, or it writes, connects, or ends the process.
    """
    option = str(value).removeprefix("-")
    if not re.fullmatch(r"[^\s=-][^\s=]*=\S+", option):
        raise ValueError("NAME=VALUE, such as peep:fc_h_fusion=off")
    if harmful(option):
        raise ValueError("one that neither writes, connects, nor ends the process")
    return option


def _pair(value: Any, between: str) -> tuple[str, str]:  # noqa: ANN401 - whatever was given
    try:
        name, text = value.split(between, 1) if isinstance(value, str) else value
    except (TypeError, ValueError):
        name = text = ""
    if not name:
        raise ValueError(f"NAME{between}VALUE")
    return str(name), str(int(text) if isinstance(text, bool) else text)


def once(flag: str) -> Callable[[Any], Any]:
    """Return a check that no name of an option's pairs is given twice."""

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
    try:
        pool, limit = value.rsplit(":", 1) if isinstance(value, str) else value
        if not pool:
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
    # A fraction keeps sizes such as 0.3G exact; a float would round them.
    return int(Fraction(match.group(1)) * 1024 ** " KMG".index(match.group(2).upper() or " "))
