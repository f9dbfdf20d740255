"""Command-line values that may be for one tensor: ``VALUE`` or ``NAME:VALUE``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from bisect_trt.errors import UsageError

T = TypeVar("T")


def parse_named(
    option: str, values: Sequence[str], parse: Callable[[str], T], *, need_name: bool = False
) -> dict[str, T]:
    """Read values that are each for one tensor or, under the name ``''``, for all that are not named.

    Args:
        option: The flag, for messages.
        values: Texts; what follows the last colon is the value, so names may contain colons.
        parse: Reads one value, or raises ``ValueError`` saying what it should have been ("a number").
        need_name: Whether a value for all makes no sense.

    Raises:
        UsageError: If a value cannot be read, lacks a name that it needs, or is given twice for one tensor.
    """
    form = "NAME:VALUE" if need_name else "VALUE or NAME:VALUE"
    parsed: dict[str, T] = {}
    for value in values:
        name, colon, text = value.rpartition(":")
        if need_name and not colon:
            raise UsageError(f"{option} {value}: which tensor it is for is missing; write {form}")
        try:
            result = parse(text)
        except ValueError as err:
            raise UsageError(f"{option} {value}: '{text}' is not {err}; write {form}") from err
        if name in parsed:
            raise UsageError(f"{option} is given twice for {f'{name!r}' if name else 'all tensors'}; give it once")
        parsed[name] = result
    return parsed


def quoted(names: Iterable[str], limit: int = 20) -> str:
    """Names for a message, the first few of them where there are many."""
    every = [f"'{name}'" for name in names]
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return (", ".join(every[:limit]) or "none") + more
